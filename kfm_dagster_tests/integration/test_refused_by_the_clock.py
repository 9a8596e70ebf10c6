"""A stage that the clock refuses (E_SYNC, `unlocked: reject`), tried again by Dagster as the pipeline card says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.nodes import ProvenanceEmit, StacRegister, operators
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.card import StageState
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.reading import ClockDecision, ClockState
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.clocks import LockedClock
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, deliver, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.integration.gating import under
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

JOB = "ingest_nexrad_l2"
POLICY = "retry_policy: {max_retries: 3, backoff: exp+jitter, deadline: 10m}"


REFUSED_AT = list(operators()).index(ProvenanceEmit.operator) + 1
"""The look of the stage that is refused: each stage looks once whenever it is tried."""


@dataclass
class ScriptedClock(LockedClock):
    """Unlocked from REFUSED_AT on."""

    looks: int = 0

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        self.looks += 1
        if self.looks >= REFUSED_AT:
            return ClockDecision(state=ClockState.UNLOCKED, reason="kernel gives an offset of 5.000 s")
        return super().decided(contract, objects)


@pytest.mark.clause("PCS-03", "PCS-06", "PCS-10", "PCS-14")
@pytest.mark.parametrize(
    ("policy", "minutes_per_look", "tries"),
    [
        ("retry_policy: {max_retries: 2, backoff: const, base: 10ms, deadline: 10m}", 0, 3),
        ("retry_policy: {max_retries: 0, backoff: const, base: 10ms, deadline: 10m}", 0, 1),
        # The third is refused ten minutes after the first; a fourth would begin later.
        ("retry_policy: {max_retries: 20, backoff: const, base: 10ms, deadline: 10m}", 5, 3),
        ("retry_policy: {max_retries: 3, backoff: const, base: 10ms, deadline: 10m, retry_on: [E_INTERNAL]}", 0, 1),
    ],
)
def test_a_clock_that_stays_unlocked_ends_with_the_retries_or_the_deadline_and_the_run_is_rolled_back(
    face: Face, monkeypatch: pytest.MonkeyPatch, policy: str, minutes_per_look: int, tries: int
) -> None:
    pipeline = face.pipeline
    deliver(pipeline, *volumes(2))
    under(pipeline, POLICY, policy, ("unlocked: restrict", "unlocked: reject"))
    clock = pipeline.calibration = ScriptedClock()
    skew = "kfm_dagster.ingest.pipeline.clock_skew"
    monkeypatch.setattr(skew, lambda: timedelta(minutes=minutes_per_look) * max(clock.looks - REFUSED_AT, 0))
    before = trees.files(Path(pipeline.settings.catalog))
    result = face.execute(JOB, partition=DAY.isoformat(), raise_on_error=False)

    assert not result.success
    assert clock.looks - REFUSED_AT + 1 == tries
    retried = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY]
    assert [event.step_retry_data.seconds_to_wait for event in retried] == [0.01] * (tries - 1)
    run_id, lifecycle = result.dagster_run.run_id, pipeline.stages.lifecycle
    lines = lifecycle.store.audit.of_stage(run_id, f"nexrad-l2.{ProvenanceEmit.operator}")
    assert [(line["kind"], line["event"]) for line in lines] == [
        ("stop", "E_SYNC"),
        *[("retry", "attempt 1"), ("stop", "E_SYNC")] * (tries - 1),
        ("compensation", "run rolled back"),
    ]
    *_, registered = lifecycle.store.audit.of_stage(run_id, f"nexrad-l2.{StacRegister.operator}")
    assert (registered["kind"], registered["event"], registered["details"]["because"]) == (
        "compensation",
        "done",
        "nexrad-l2.provenance_emit",
    )
    [refused] = [one for one in own_tx(lifecycle.store).of_run(run_id) if one.stage.endswith("provenance_emit")]
    assert (refused.attempt, refused.state) == (1, StageState.PENDING)
    assert traces.statuses(pipeline) == {Status.PENDING: 2}
    assert trees.files(Path(pipeline.settings.catalog)) == before
    verify_chain(lifecycle.store.audit.lines())
