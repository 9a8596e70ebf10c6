"""A stage that the clock refuses (E_SYNC, `unlocked: reject`), tried again by Dagster as the pipeline card says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.nodes import MessageParse, MetadataExtract, ProvenanceEmit, Settle, StacRegister, operators
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.store import StageAttempt
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
OPERATORS = list(operators())


@dataclass
class ScriptedClock(LockedClock):
    """Unlocked at these looks, counted from 1; each stage looks once whenever it is tried."""

    unlocked: Collection[int]
    looks: int = 0

    def decided(self, contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        self.looks += 1
        if self.looks in self.unlocked:
            return ClockDecision(state=ClockState.UNLOCKED, reason="kernel gives an offset of 5.000 s")
        return super().decided(contract, objects)


def scripted(face: Face, unlocked: Collection[int], policy: str) -> ScriptedClock:
    """Let a pipeline reject what is written by an unlocked clock, retry so, and look at such a clock."""
    pipeline = face.pipeline
    under(pipeline, POLICY, policy, ("unlocked: restrict", "unlocked: reject"))
    clock = ScriptedClock(unlocked)
    pipeline.calibration = clock
    return clock


def waits(result: Any) -> list[float]:
    """Seconds after which Dagster was asked to try a step again."""
    events = (event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY)
    return [event.step_retry_data.seconds_to_wait for event in events]


def lines_of(face: Face, run_id: str, operator: str) -> list[dict[str, Any]]:
    return list(face.pipeline.stages.lifecycle.store.audit.of_stage(run_id, f"nexrad-l2.{operator}"))


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
    deliver(face.pipeline, *volumes(2))
    refused_at = OPERATORS.index(ProvenanceEmit.operator) + 1
    clock = scripted(face, range(refused_at, 100), policy)
    skew = "kfm_dagster.ingest.pipeline.clock_skew"
    monkeypatch.setattr(skew, lambda: timedelta(minutes=minutes_per_look) * max(clock.looks - refused_at, 0))
    before = trees.files(Path(face.pipeline.settings.catalog))
    result = face.execute(JOB, partition=DAY.isoformat(), raise_on_error=False)

    assert not result.success
    assert clock.looks - refused_at + 1 == tries
    assert waits(result) == [0.01] * (tries - 1)
    run_id = result.dagster_run.run_id
    lines = lines_of(face, run_id, ProvenanceEmit.operator)
    assert [(line["kind"], line["event"]) for line in lines] == [
        ("stop", "E_SYNC"),
        *[("retry", "attempt 1"), ("stop", "E_SYNC")] * (tries - 1),
        ("compensation", "run rolled back"),
    ]
    registered = lines_of(face, run_id, StacRegister.operator)[-1]
    assert (registered["kind"], registered["event"], registered["details"]["because"]) == (
        "compensation",
        "done",
        "nexrad-l2.provenance_emit",
    )
    [refused] = [
        one
        for one in own_tx(face.pipeline.stages.lifecycle.store).of_run(run_id)
        if one.stage.endswith("provenance_emit")
    ]
    assert (refused.attempt, refused.state) == (1, StageState.PENDING)
    assert traces.statuses(face.pipeline) == {Status.PENDING: 2}
    assert trees.files(Path(face.pipeline.settings.catalog)) == before
    verify_chain(face.pipeline.stages.lifecycle.store.audit.lines())


@pytest.mark.clause("PCS-05", "PCS-06", "PCS-10", "PCS-15")
@pytest.mark.parametrize("operator", [MessageParse.operator, MetadataExtract.operator, Settle.operator])
def test_a_stage_refused_by_the_clock_succeeds_with_its_inputs_once_the_clock_is_locked(
    face: Face, operator: str
) -> None:
    deliver(face.pipeline, *volumes(2))
    refused_at = OPERATORS.index(operator) + 1
    policy = "retry_policy: {max_retries: 3, backoff: exp, base: 10ms, deadline: 10m}"
    clock = scripted(face, {refused_at, refused_at + 1}, policy)
    store = own_tx(face.pipeline.stages.lifecycle.store)
    attempts_at_look: list[list[StageAttempt]] = []
    monitored = clock.decided

    def recorded(contract: DatasetContract, objects: ObjectStores) -> ClockDecision:
        attempts_at_look.append(store.since(datetime(2000, 1, 1, tzinfo=UTC)))
        return monitored(contract, objects)

    clock.decided = recorded
    result = face.execute(JOB, partition=DAY.isoformat())

    assert result.success
    assert waits(result) == [0.01, 0.02]
    assert clock.looks == len(OPERATORS) + 2
    run_id, stage = result.dagster_run.run_id, f"nexrad-l2.{operator}"
    attempts = store.of_run(run_id)
    assert [attempt.stage for attempt in attempts] == [f"nexrad-l2.{each}" for each in OPERATORS]
    assert {(attempt.attempt, attempt.state) for attempt in attempts} == {(1, StageState.SUCCEEDED)}
    # The inputs of a refused stage are kept, and it succeeds with exactly these.
    [refused] = [attempt for attempt in attempts_at_look[refused_at] if attempt.stage == stage]
    [succeeded] = [attempt for attempt in attempts if attempt.stage == stage]
    assert refused.state is StageState.PENDING
    assert (succeeded.idempotency_key, succeeded.input_hashes, succeeded.opened_at) == (
        refused.idempotency_key,
        refused.input_hashes,
        refused.opened_at,
    )
    if operator != MessageParse.operator:
        assert succeeded.input_hashes
    lines = lines_of(face, run_id, operator)
    assert [(line["kind"], line["event"]) for line in lines if line["kind"] not in {"gate", "checkpoint"}] == [
        *[("stop", "E_SYNC"), ("retry", "attempt 1")] * 2,
        ("transition", "pending>running"),
        ("transition", "running>succeeded"),
    ]
    retries = [line["details"] for line in lines if line["kind"] == "retry"]
    assert [retry["after"] for retry in retries] == ["pending", "pending"]
    assert all(retry["interval_seconds"] >= wait for retry, wait in zip(retries, waits(result), strict=True))
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    assert len(traces.items(Path(face.pipeline.settings.catalog))) == 2
    verify_chain(face.pipeline.stages.lifecycle.store.audit.lines())
