"""A deployment whose ledger is on each database, and its quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfm_dagster.contracts.identity import WalId
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster_tests.transactions import own_tx


@pytest.fixture
def deployment(home: Path, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """The environment's deployment, opened for inspection."""
    monkeypatch.setenv("KFM_SNS_VERIFY", "off")  # these tests build unsigned messages
    (tmp_path / "objects").mkdir()
    monkeypatch.setenv("KFM_WAL_DSN", database_url)
    monkeypatch.setenv("KFM_OBJECT_ROOT", str(tmp_path / "objects"))
    monkeypatch.setenv("KFM_ACTOR", "jane")
    opened = Pipeline.open(Settings.load())
    yield opened
    opened.close()


def cases_of(pipeline: Pipeline) -> QuarantineCases:
    return QuarantineCases(pipeline.database, clock=pipeline.clock)


def release(pipeline: Pipeline, wal_id: WalId, version: int, decision: Decision) -> frozenset[WalId]:
    """Release a quarantined unit at a version by the ledger itself; return the released ids."""
    return own_tx(pipeline.ledger).override(
        {wal_id: version}, from_status=Status.QUARANTINED, action=GovernanceAction.RELEASE, decision=decision
    )
