"""Faults that each gate detects in Dagster, their effect on units and batch, and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pint
import pytest

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.gate_checks import NAMES
from kfm_dagster.defs.jobs import PATH_JOB
from kfm_dagster.demo.samples.nexrad_level2 import ELEVATIONS
from kfm_dagster.ingest import nodes, path_arrivals
from kfm_dagster.ingest.nodes import ProvenanceEmit, StacRegister, operators
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.path.volume import PathArrival
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.settings import FeedKind
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.card import StageState
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.reading import ClockDecision, ClockState
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.clocks import LockedClock
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, PARTITION, assert_conserved, deliver, put, volumes
from kfm_dagster_tests.integration.face import Face, materialisations
from kfm_dagster_tests.integration.gating import alter_metadata, beyond_the_pole, change_contract, gates, under
from kfm_dagster_tests.transactions import own_tx

STAGE = "nexrad-l2.path_arrival"
PATH_CHECKS = ("G3_path_conventions", "G4_dimensional_closure", "G7_covariance_consistency")
UNITS, BEAMS = 3, len(set(ELEVATIONS))
STOPS = ("G4: {on_failure: fail_units", "G4: {on_failure: stop")
REVIEW = "human_review: [E_DIM, E_UQ]"
Patch = pytest.MonkeyPatch


@pytest.mark.clause("PCS-09")
def test_every_gate_is_a_blocking_check_with_a_description(face: Face) -> None:
    graph = face.repository.asset_graph
    specs = {key.name: graph.get_check_spec(key) for key in graph.asset_check_keys if key.name[0] == "G"}
    assert set(specs) == set(NAMES.values())
    assert len({spec.description for spec in specs.values()}) == len(NAMES)
    assert all(spec.blocking for spec in specs.values())


@pytest.mark.clause("DAG-11", "PCS-12")
def test_the_coverage_gate_passes_for_a_sample_feed_but_not_for_a_whole_feed(face: Face, monkeypatch: Patch) -> None:
    deliver(face.pipeline, *volumes(2))
    with monkeypatch.context() as patch:
        patch.setattr(face.pipeline, "settings", face.pipeline.settings.model_copy(update={"feed": FeedKind.SAMPLE}))
        result = face.ingest(partition=PARTITION)
        check = gates(result)["ledger", "G6_coverage"]
        assert check.passed
        assert "KFM_FEED" in str(check.metadata["observed"].value)
        assert "tag" not in materialisations(result)["ledger"]
    # The result for a sample feed is not reused for a whole feed, and a reused result hides no failure.
    second = face.ingest(partition=PARTITION)
    third = face.ingest(partition=PARTITION)
    for result in (second, third):
        assert not gates(result)["ledger", "G6_coverage"].passed


def incomplete(face: Face, monkeypatch: Patch) -> None:
    """Make the reader drop a property that the contract requires, without an issue."""
    required = face.pipeline.registry["nexrad-l2"].metadata_extract.required
    alter_metadata(monkeypatch, lambda _: True, **{required[0]: None})


def uncited(face: Face, monkeypatch: Patch) -> None:
    """Remove all citations from the contract."""
    change_contract(face, monkeypatch, citations=[])


def late(face: Face, monkeypatch: Patch) -> None:
    """Run live units half a day after their announcement."""
    face.pipeline.clock = lambda: datetime(2025, 4, 3, 12, tzinfo=UTC)


def doubled(face: Face, monkeypatch: Patch) -> None:
    """Make an operator return a unit twice."""
    plain = nodes.IntegrityCheck.transform
    monkeypatch.setattr(nodes.IntegrityCheck, "transform", lambda self: [*(got := plain(self)), got[0]])


@pytest.mark.clause("PCS-02", "PCS-09", "PCS-13")
@pytest.mark.parametrize(
    ("trip", "shipped", "noun", "check", "stop"),
    [
        (incomplete, "G1: {on_failure: fail_units", "metadata", "G1_schema_completeness", None),
        (uncited, "G2: {on_failure: stop", "metadata", "G2_citation_compliance", "S5"),
        (late, "G5: {on_failure: restrict", "integrity", "G5_freshness", "S2"),
        (doubled, "G8: {on_failure: fail_units", "integrity", "G8_uniqueness", None),
    ],
)
def test_a_stopping_gate_blocks_every_downstream_step(
    face: Face,
    monkeypatch: Patch,
    trip: Callable[..., None],
    shipped: str,
    noun: str,
    check: str,
    stop: str | None,
) -> None:
    trip(face, monkeypatch)
    under(face.pipeline, shipped, f"{shipped.split(':', maxsplit=1)[0]}: {{on_failure: stop")
    deliver(face.pipeline, *volumes(2))
    result = face.ingest(partition=PARTITION, raise_on_error=False)
    failed = [key for key, check in gates(result).items() if not check.passed]
    assert failed == [(noun, check)]
    evaluation = gates(result)[noun, check]
    assert (evaluation.severity, evaluation.blocking) == (dg.AssetCheckSeverity.ERROR, True)
    assert ("tag" in evaluation.metadata) == (stop is not None)
    before = ["envelopes", "integrity", "metadata"]
    assert set(materialisations(result)) == set(before[: before.index(noun)])
    store = face.pipeline.stages.lifecycle.store
    assert [line["event"] for line in store.audit.lines() if line["kind"] == "stop"] == ([stop] if stop else [])
    states = {row.stage.partition(".")[2]: row.state for row in own_tx(store).of_run(result.dagster_run.run_id)}
    stopped = {"integrity": "integrity_check", "metadata": "metadata_extract"}[noun]
    assert (states[stopped], "stac_register" in states) == (StageState.ROLLED_BACK, False)
    # The run is rolled back, so its units are pending again.
    assert traces.statuses(face.pipeline) == {Status.PENDING: 2}
    assert_conserved(face.pipeline)


def states_by_key(face: Face) -> dict[str, tuple[str, int, str | None]]:
    """Return status, attempts and last reason of each record, by the last part of its object's key."""
    unit_records = own_tx(face.pipeline.ledger).find(dataset="nexrad-l2")
    return {
        unit.object_uri.rpartition("/")[2]: (unit.status, unit.attempts, unit.change_reason) for unit in unit_records
    }


@pytest.mark.clause("PCS-04", "PCS-23")
def test_a_unit_that_breaks_closure_is_quarantined_after_one_attempt_and_the_others_continue(
    face: Face, objects: Path
) -> None:
    items = volumes(UNITS)
    put(objects, items)
    at_fault, *others = (item.key.rpartition("/")[2] for item in items)
    under(face.pipeline, *STOPS)
    with beyond_the_pole(at_fault):
        assert not face.ingest(partition=PARTITION, raise_on_error=False).success
    where = states_by_key(face)
    assert where.pop(at_fault) == (Status.QUARANTINED, 1, LedgerCode.NOT_COMPENSABLE)
    assert where == dict.fromkeys(others, (Status.PENDING, 1, "retry"))
    [case] = QuarantineCases(face.pipeline.database, clock=face.pipeline.clock).find(CaseState.OPEN)
    assert case.reason == LedgerCode.NOT_COMPENSABLE
    assert "E_DIM" in str(own_tx(face.pipeline.ledger).find(status=Status.QUARANTINED)[0].last_error_message)
    # The next run ingests the sound units.
    assert face.ingest(partition=PARTITION).success
    where = states_by_key(face)
    assert {where[name][0] for name in others} == {Status.SUCCEEDED}
    assert where[at_fault][:2] == (Status.QUARANTINED, 1)


@pytest.mark.clause("PCS-04", "PCS-14", "PCS-23")
def test_every_unit_is_retried_if_the_card_makes_the_error_compensable(face: Face, objects: Path) -> None:
    items = volumes(UNITS)
    put(objects, items)
    under(face.pipeline, *STOPS, (REVIEW, "human_review: [E_UQ]"))
    with beyond_the_pole(items[0].key):
        assert not face.ingest(partition=PARTITION, raise_on_error=False).success
    assert set(states_by_key(face).values()) == {(Status.PENDING, 1, "retry")}


@pytest.mark.clause("PCS-04", "PCS-23")
def test_a_fault_of_the_whole_batch_quarantines_all_its_units(face: Face, objects: Path, monkeypatch: Patch) -> None:
    put(objects, volumes(UNITS))
    under(face.pipeline, REVIEW, "human_review: [E_DIM, E_GATE]")
    uncited(face, monkeypatch)
    assert not face.ingest(partition=PARTITION, raise_on_error=False).success
    assert set(states_by_key(face).values()) == {(Status.QUARANTINED, 1, LedgerCode.NOT_COMPENSABLE)}


def a_short_index(arrival: PathArrival) -> PathArrival:
    beam = replace(arrival.beams[0], n_eff=arrival.beams[0].n_eff[:-1])
    return replace(arrival, beams=(beam, *arrival.beams[1:]))


def a_covariance_of_one_cause(arrival: PathArrival) -> PathArrival:
    """Return covariances as if only the atmosphere were uncertain: all beams vary together."""
    return replace(arrival, t_covariance=np.full_like(arrival.t_covariance, arrival.t_covariance[0, 0]))


def a_time_in_metres(path: PathArrival) -> PathArrival:
    return replace(path, arrivals=tuple(replace(arrival, extent_m=-1.0) for arrival in path.arrivals))


def spoil(monkeypatch: Patch, fault: Callable[[PathArrival], PathArrival]) -> None:
    """Give the second volume of each computation a fault."""
    plain, numbers = path_arrivals.path_arrival, count()
    quantities = path_arrivals.as_array_quantities

    def faulty(*facts: Any, **options: Any) -> PathArrival:
        arrival = plain(*facts, **options)
        return fault(arrival) if next(numbers) % UNITS == 1 else arrival

    def measured(arrivals: Any) -> Any:
        # `a_time_in_metres` marks its volume by an impossible length; here the times get the unit metre.
        measured_quantities = quantities(arrivals)
        return (
            measured_quantities | {"T_arr": pint.Quantity(measured_quantities["T_arr"].m, "m")}
            if arrivals[0].extent_m < 0
            else measured_quantities
        )

    monkeypatch.setattr(path_arrivals, "path_arrival", faulty)
    monkeypatch.setattr(path_arrivals, "as_array_quantities", measured)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault of one volume, the check that detects it, and words of the check's description."""

    fault: Callable[[PathArrival], PathArrival]
    check: str
    words: str


CASES = [
    Case(fault=a_short_index, check="G3_path_conventions", words="shapes differ"),
    Case(fault=a_time_in_metres, check="G4_dimensional_closure", words="has the dimension [length]"),
    Case(fault=a_covariance_of_one_cause, check="G7_covariance_consistency", words="the least eigenvalue"),
]


@pytest.fixture
def day(face: Face) -> Face:
    """A day with extracted metadata."""
    deliver(face.pipeline, *volumes(UNITS))
    assert face.ingest(partition=PARTITION).success
    return face


def path_checks(result: Any) -> dict[str, dg.AssetCheckEvaluation]:
    evaluations = gates(result)
    assert {noun for noun, _ in evaluations} == {"path_arrival"}
    return {name: check for (_, name), check in evaluations.items()}


def stops(face: Face, run_id: str) -> list[str]:
    lines = face.pipeline.stages.lifecycle.store.audit.of_stage(run_id, STAGE)
    return [line["event"] for line in lines if line["kind"] == "stop"]


@pytest.mark.clause("PCS-09", "PCS-15")
def test_sound_radar_paths_pass_their_gates_and_the_stage_is_audited(day: Face) -> None:
    result = day.execute(PATH_JOB, partition=PARTITION)
    evaluations = path_checks(result)
    assert tuple(evaluations) == PATH_CHECKS
    assert all(check.passed and check.blocking for check in evaluations.values())
    assert evaluations["G4_dimensional_closure"].metadata["observed"].value == f"p_dim = 1 over {UNITS} units"
    shown = materialisations(result)["path_arrival"]
    assert (shown["run_units"], shown["run_passed"], shown["rows"]) == (UNITS, UNITS, UNITS * BEAMS)
    assert {shown["table"].rpartition(".")[2], shown["paths"].rpartition(".")[2]} == {"parquet"}
    lines = day.pipeline.stages.lifecycle.store.audit.of_stage(result.dagster_run.run_id, STAGE)
    assert [(line["kind"], line["event"]) for line in lines] == [
        ("transition", "pending>running"),
        *(("gate", gate) for gate in ("G3", "G4", "G7")),
        ("transition", "running>succeeded"),
    ]
    # With the same metadata nothing is checked a second time, and the checks report this skip.
    repeated = path_checks(day.execute(PATH_JOB, partition=PARTITION))
    assert {check.metadata["observed"].value for check in repeated.values()} == {"skipped: CONTENT_APPLIED"}


@pytest.mark.clause("PCS-09", "PCS-11", "PCS-20")
def test_a_faulty_volume_is_rejected_by_one_gate_and_the_other_volumes_have_rows(day: Face, monkeypatch: Patch) -> None:
    for case in CASES:
        with monkeypatch.context() as patch:
            spoil(patch, case.fault)
            assert_one_volume_leaves(day, case)


def assert_one_volume_leaves(day: Face, case: Case) -> None:
    """Compute the day's table; check that the gate rejects one volume and the other volumes have rows."""
    result = day.execute(PATH_JOB, partition=PARTITION)
    evaluations = path_checks(result)
    assert [name for name, check in evaluations.items() if not check.passed] == [case.check], case
    check = evaluations[case.check]
    assert check.severity is dg.AssetCheckSeverity.WARN
    [(unit, why)] = check.metadata["failing_units"].value.items()
    assert case.words in why
    shown = materialisations(result)["path_arrival"]
    assert (shown["run_passed"], shown["run_failed"], shown["rows"]) == (UNITS - 1, 1, (UNITS - 1) * BEAMS)
    assert [row.data["wal_id"] for row in shown["failing_units"].records] == [unit]
    run_id = result.dagster_run.run_id
    assert stops(day, run_id) == []
    newest = own_tx(day.pipeline.stages.lifecycle.store).newest(run_id, STAGE)
    state = day.pipeline.stages.run_states.get(STAGE, run_id)
    assert (newest.state, state.outcome) == (StageState.SUCCEEDED, Outcome.PARTIAL)


@pytest.mark.clause("PCS-14", "PCS-02", "PCS-20")
def test_the_card_s_thresholds_decide_whether_a_gate_passes(day: Face, monkeypatch: Patch) -> None:
    under(day.pipeline, "min_points: 2", "min_points: 100000")
    # If all volumes of the day fail, the stage is stopped, although the card only fails units for G3.
    stopped = day.execute(PATH_JOB, partition=PARTITION, raise_on_error=False)
    check = path_checks(stopped)["G3_path_conventions"]
    assert (check.passed, check.description) == (False, "the batch is stopped (S3)")
    assert "at least 100000" in str(check.metadata["failing_units"].value)
    assert (materialisations(stopped), stops(day, stopped.dagster_run.run_id)) == ({}, ["S3"])
    spoil(monkeypatch, a_time_in_metres)
    under(day.pipeline, "min_p_dim: 1.0", "min_p_dim: 0.5")
    assert all(check.passed for check in path_checks(day.execute(PATH_JOB, partition=PARTITION)).values())
    # With `restrict` in the card, one volume's fault restricts the day and removes no row.
    under(day.pipeline, "G4: {on_failure: fail_units", "G4: {on_failure: restrict")
    shown = materialisations(day.execute(PATH_JOB, partition=PARTITION))["path_arrival"]
    assert (shown["tag"], shown["rows"]) == ("[Restricted] G4", UNITS * BEAMS)


POLICY = "retry_policy: {max_retries: 3, backoff: exp+jitter, deadline: 10m}"


REFUSED_AT = list(operators()).index(ProvenanceEmit.operator) + 1
"""Number of the first refused check of the clock. Each attempt of a stage checks once; provenance_emit is refused."""


@dataclass
class ScriptedClock(LockedClock):
    """A clock that is unlocked from check number REFUSED_AT on."""

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
        # The third attempt is refused ten minutes after the first; a fourth would begin after the deadline.
        ("retry_policy: {max_retries: 20, backoff: const, base: 10ms, deadline: 10m}", 5, 3),
        ("retry_policy: {max_retries: 3, backoff: const, base: 10ms, deadline: 10m, retry_on: [E_INTERNAL]}", 0, 1),
    ],
)
def test_a_run_whose_clock_stays_unlocked_is_rolled_back_after_its_retries_or_its_deadline(
    face: Face, monkeypatch: pytest.MonkeyPatch, policy: str, minutes_per_look: int, tries: int
) -> None:
    pipeline = face.pipeline
    deliver(pipeline, *volumes(2))
    under(pipeline, POLICY, policy, ("unlocked: restrict", "unlocked: reject"))
    clock = pipeline.calibration = ScriptedClock()
    skew = "kfm_dagster.ingest.pipeline.clock_skew"
    monkeypatch.setattr(skew, lambda: timedelta(minutes=minutes_per_look) * max(clock.looks - REFUSED_AT, 0))
    before = trees.files(Path(pipeline.settings.catalog))
    result = face.ingest(partition=DAY.isoformat(), raise_on_error=False)

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
    [refused] = [row for row in own_tx(lifecycle.store).of_run(run_id) if row.stage.endswith("provenance_emit")]
    assert (refused.attempt, refused.state) == (1, StageState.PENDING)
    assert traces.statuses(pipeline) == {Status.PENDING: 2}
    assert trees.files(Path(pipeline.settings.catalog)) == before
    verify_chain(lifecycle.store.audit.lines())
