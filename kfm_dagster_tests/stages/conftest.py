"""Fixtures of the stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import LocalStore

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.stages.fake_node import NOW


@pytest.fixture
def runner(database: Database, tmp_path: Path) -> StageRunner:
    store = LocalStore(tmp_path / "storage", mkdir=True)
    return StageRunner(
        database=database,
        run_states=RelationalRunState(database),
        nodes=IdempotentNodes(database, clock=lambda: NOW),
        artifacts=Artifacts(lambda: store),
        code=CodeFingerprint(code_sha="c0ffee", lockfile_hash="10cc"),
        clock=lambda: NOW,
        card=Card.load().machine,
    )
