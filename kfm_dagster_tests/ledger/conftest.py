"""Fixtures of the ledger's tests; each test runs once on SQLite and once on PostgreSQL."""

from __future__ import annotations

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.ledger.bench import Bench, make_bench


@pytest.fixture
def bench(database: Database, contracts: ContractRegistry) -> Bench:
    return make_bench(database, contracts)
