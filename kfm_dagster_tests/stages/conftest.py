"""Fixtures of the stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import LocalStore

from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.stages.fake_node import stage_runner


@pytest.fixture
def runner(database: Database, tmp_path: Path) -> StageRunner:
    store = LocalStore(tmp_path / "storage", mkdir=True)
    return stage_runner(database, RelationalRunState(database), store)
