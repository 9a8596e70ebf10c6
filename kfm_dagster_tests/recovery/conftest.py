"""Fixtures of the replay tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster_tests.recovery.dlq_fixture import DlqFixture, open_dlq_fixture
from kfm_dagster_tests.recovery.replays import Stand, open_stand


@pytest.fixture
def dlq_fixture(cloud_server: EmbeddedCloud, tmp_path: Path, database_url: str) -> Iterator[DlqFixture]:
    """Empty queues and an empty ledger, once on SQLite and once on PostgreSQL."""
    fixture = open_dlq_fixture(cloud_server, tmp_path / "home", database_url)
    yield fixture
    fixture.pipeline.close()


@pytest.fixture
def stand(tmp_path: Path, database_url: str) -> Iterator[Stand]:
    """An empty ledger with a replay engine."""
    stand_ = open_stand(tmp_path / "home", database_url)
    yield stand_
    stand_.pipeline.close()
