"""A database that is away for a moment, wherever in a stage, costs a retry by Dagster and no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.nodes import IntegrityCheck
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, announce, put, take, volumes
from kfm_dagster_tests.integration.face import Face

AWAY = OperationalError("SELECT", {}, Exception("server closed the connection unexpectedly"))


def once(of: Any, *, where: Any = lambda *_: True) -> Any:
    """The method, whose first call at that place finds the database away."""
    calls: list[None] = []

    def called(*given: Any, **more: Any) -> Any:
        if where(*given) and not calls:
            calls.append(None)
            raise AWAY
        return of(*given, **more)

    return called


@pytest.mark.clause("PCS-04", "PCS-06")
@pytest.mark.parametrize("place", ["run-state is read", "the stage computes", "its failure is written down, too"])
def test_a_database_that_is_away_for_a_moment_is_asked_again(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    items = volumes(2)
    put(objects, items)
    take(face.pipeline, announce([item.event() for item in items], registry=face.pipeline.registry))
    if place == "run-state is read":
        of_the_stage = once(RelationalRunState.get, where=lambda _, name, __: name.endswith(".integrity_check"))
        monkeypatch.setattr(RelationalRunState, "get", of_the_stage)
    else:
        monkeypatch.setattr(IntegrityCheck, "transform", once(IntegrityCheck.transform))
    if place == "its failure is written down, too":
        monkeypatch.setattr(IdempotentNodes, "fail", once(IdempotentNodes.fail))
    result = face.execute("ingest_nexrad_l2", partition=DAY.isoformat())
    steps = [event.event_type_value for event in result.all_events]
    assert steps.count("STEP_UP_FOR_RETRY") == 1
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
