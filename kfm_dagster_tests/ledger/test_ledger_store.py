"""The effect of each ledger operation on records and their claims."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, assume, given, settings

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    Priority,
    ProvenanceResult,
    ProvenanceStatus,
    RawReference,
    StacResult,
    StacStatus,
)
from kfm_dagster.contracts.issues import FenceIssue, Issue, Severity
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import IllegalTransitionError, RefusedError, UnknownReplayReasonError
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.changes import DEFAULT_LEASE
from kfm_dagster.ledger.policy import backoff_seconds
from kfm_dagster.ledger.reports import FailingUnits, RecoverReport
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.telemetry.totals import Total, kept_totals
from kfm_dagster_tests.factories import PERSON, envelope, envelopes, failed, finished
from kfm_dagster_tests.ledger.bench import DAY, JANE, Bench, make_bench
from kfm_dagster_tests.transactions import own_tx

RUN = "run-1"


@pytest.mark.clause("WSM-03")
def test_a_new_unit_gets_a_pending_record_without_attempts_or_results(bench: Bench) -> None:
    unit = envelope()
    result = bench.ledger.ensure([unit, unit])
    record = bench.ledger.get(unit.wal_id)
    assert (result.created, result.existing) == ({unit.wal_id}, {})
    assert (record.status, record.attempts, record.version) == ("pending", 0, 1)
    assert record.created_at == record.updated_at == bench.clock.now
    assert {record.integrity_status, record.metadata_status, record.stac_status, record.provenance_status} == {
        "unknown"
    }
    assert (record.ingest_run_id, record.worker_id, record.last_attempt_at, record.replay_reason) == (None,) * 4
    assert record.extension == {"site": "KTLX"}


@pytest.mark.clause("WSM-04", "WSM-10", "WAL-09")
def test_a_claim_stamps_run_worker_and_time_and_adds_one_attempt(bench: Bench) -> None:
    unit = envelope()
    bench.ledger.ensure([unit])
    bench.clock.advance(5)
    (claimed,) = bench.claim()
    record = bench.ledger.get(unit.wal_id)
    assert claimed == unit.evolve(attempt=1, record_version=2)
    assert (record.status, record.attempts, record.version) == ("in_progress", 1, 2)
    assert record.last_attempt_at == record.updated_at == bench.clock.now
    assert (record.ingest_run_id, record.worker_id) == (RUN, "worker-1")
    assert bench.claim(unit, run_id="run-2") == []
    assert bench.ledger.get(unit.wal_id) == record


def test_claims_take_units_by_priority_then_by_age_up_to_the_limit(bench: Bench) -> None:
    units = [
        envelope(0, priority=Priority.LOW),
        envelope(1),
        envelope(2, priority=Priority.HIGH),
        envelope(3, priority=Priority.HIGH),
    ]
    units[3] = units[3].evolve(event_time=units[2].event_time - timedelta(hours=1))
    bench.ledger.ensure(units)
    # Claimed one by one, so that the database must order them.
    for number in (3, 2, 1):
        claimed = bench.ledger.claim(dataset="nexrad-l2", partition=DAY, run_id=RUN, limit=1)
        assert [unit.wal_id for unit in claimed] == [units[number].wal_id]
    bench.ledger.release_lost(run_ids=[RUN])
    claimed = bench.ledger.claim(dataset="nexrad-l2", partition=DAY, run_id=RUN, limit=3)
    assert [unit.wal_id for unit in claimed] == [units[number].wal_id for number in (3, 2, 1)]
    assert bench.ledger.claim(dataset="nexrad-l2", partition="2025-12-04", run_id=RUN, limit=3) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(unit=envelopes())
def test_a_claimed_envelope_equals_the_recorded_envelope(bench: Bench, unit: Envelope) -> None:
    # message-parse admits only printable ASCII in version and sequencer.
    assume("\0" not in f"{unit.object_version}{unit.sequencer}")
    sections = dict.fromkeys(("integrity", "metadata", "stac", "provenance", "replay_reason", "replay_run_id"))
    parsed = unit.evolve(**sections, attempt=0, record_version=0)
    ensured = bench.ledger.ensure([parsed], lane=parsed.lane)
    if not ensured.created - ensured.stale:
        return
    claimed = bench.ledger.claim(
        dataset=unit.dataset, partition=unit.partition, run_id=RUN, limit=1, wal_ids=[unit.wal_id]
    )
    # The ledger adds the peers' sizes and the raw reference.
    assert [unit.evolve(raw=RawReference(), peer_sizes=None) for unit in claimed] == [
        parsed.evolve(attempt=1, record_version=2, raw=RawReference(), peer_sizes=None)
    ]
    if "\0" not in f"{parsed.raw.sqs_message_id}{parsed.raw.subject}":
        assert claimed[0].raw == parsed.raw


@pytest.mark.clause("WSM-04")
def test_a_writer_whose_clock_is_behind_keeps_the_record_s_later_time(bench: Bench) -> None:
    ahead = bench.clock.now
    bench.ledger.ensure([envelope(1), envelope(2)])
    bench.clock.advance(-60)
    done, broken = bench.claim()
    bench.ledger.settle([finished(done), failed(broken)], run_id=RUN)
    assert bench.ledger.requeue([broken.wal_id], reason="retry") == {broken.wal_id}
    for unit in (done, broken):
        record, history = bench.ledger.get(unit.wal_id), bench.ledger.history(unit.wal_id)
        assert (record.updated_at, record.last_attempt_at) == (ahead, ahead)
        assert {entry.at for entry in history} == {ahead}


INCOMPLETE: list[dict[str, object]] = [
    {"integrity": None},
    {"metadata": None},
    {"stac": StacResult(write_status=StacStatus.FAILED)},
    {"stac": None},
    {"provenance": ProvenanceResult(status=ProvenanceStatus.FAILED)},
    {"provenance": None},
]


@pytest.mark.clause("WSM-05", "WSM-18")
def test_a_unit_without_a_complete_chain_fails_even_if_no_step_reports_an_issue(bench: Bench) -> None:
    bench.ledger.ensure([envelope(number) for number in range(len(INCOMPLETE))])
    claimed = [finished(unit).evolve(**change) for unit, change in zip(bench.claim(), INCOMPLETE, strict=True)]
    assert bench.ledger.settle(claimed, run_id=RUN).failed == tuple(sorted(unit.wal_id for unit in claimed))
    assert {record.last_error_code for record in bench.ledger.find()} == {"incomplete_chain"}


@pytest.mark.clause("WSM-06")
def test_a_failure_keeps_code_redacted_message_and_the_time_of_the_next_attempt(bench: Bench) -> None:
    (claimed,) = bench.claimed(envelope())
    issue = Issue(
        code="access_denied",
        severity=Severity.FAILED,
        message="GET https://b.s3.amazonaws.com/k?X-Amz-Signature=deadbeef failed for jane@noaa.gov "
        + "too far away " * 90,
    )
    unit = claimed.evolve(integrity=Integrity(status=CheckStatus.FAILED, issues=(issue,)))
    bench.ledger.settle([unit], run_id=RUN)
    record = bench.ledger.get(unit.wal_id)
    assert (record.status, record.last_error_code, record.integrity_status) == ("failed", "access_denied", "failed")
    assert (record.metadata_status, record.stac_status) == ("unknown", "unknown")
    assert record.last_error_message.startswith("GET https://b.s3.amazonaws.com/k?[redacted] failed for [redacted]")
    assert len(record.last_error_message) == 500
    assert record.next_attempt_at == bench.clock.now + timedelta(seconds=60)


@pytest.mark.clause("WSM-05", "WSM-07")
def test_a_success_clears_the_previous_error_and_its_record_names_the_item(bench: Bench) -> None:
    failed = bench.bring_to("failed", envelope())
    bench.ledger.requeue([envelope().wal_id])
    # Requeueing keeps the last error.
    assert bench.ledger.get(envelope().wal_id).last_error_code == failed.last_error_code is not None
    claimed = bench.claim()
    bench.clock.advance(2)
    report = bench.ledger.settle([finished(unit) for unit in claimed], run_id=RUN)
    record = bench.ledger.get(envelope().wal_id)
    assert report.succeeded == (record.wal_id,)
    assert (record.status, record.last_error_code, record.last_error_message) == ("succeeded", None, None)
    assert (record.stac_status, record.stac_collection_id) == ("created", "nexrad-l2")
    assert (record.attempts, record.version, record.updated_at) == (2, 6, bench.clock.now)


@pytest.mark.clause("OPR-09")
@pytest.mark.parametrize("ended", ["never", "earlier", "in the same batch", "failed in the batch", "lost in the batch"])
def test_a_unit_is_superseded_only_by_a_newer_success(bench: Bench, ended: str) -> None:
    """An unsettled newer unit can still be rolled back; then the object would have no Item."""
    newer, older = envelope(1), envelope(2)
    first, yielding = bench.claimed(newer, older)
    if ended == "earlier":
        bench.ledger.settle([finished(first)], run_id=RUN)
    assert yielding.wal_id == older.wal_id
    outcome = finished(yielding)
    outcome = outcome.evolve(
        stac=replace(outcome.stac, write_status=StacStatus.NO_OP, superseded=True, superseded_by=newer.wal_id)
    )
    of_newer = {
        "in the same batch": [finished(first)],
        "failed in the batch": [failed(first)],
        "lost in the batch": [finished(first).evolve(attempt=9)],
    }.get(ended, [])
    report = bench.ledger.settle([outcome, *of_newer], run_id=RUN)
    if ended in {"earlier", "in the same batch"}:
        assert older.wal_id in report.succeeded
        return
    assert older.wal_id in report.failed
    record = bench.ledger.get(older.wal_id)
    assert (record.status, record.last_error_code, record.stac_status) == ("failed", "catalog_conflict", "failed")
    assert newer.wal_id in (record.last_error_message or "")
    # A unit with a failure of its own keeps that error.
    bench.ledger.requeue([older.wal_id])
    (reclaimed,) = bench.claim(older)
    bench.ledger.settle([failed(reclaimed).evolve(stac=outcome.stac)], run_id=RUN)
    assert bench.ledger.get(older.wal_id).last_error_code == "missing_object"


@pytest.mark.clause("WSM-07")
def test_an_unknown_replay_reason_is_refused_until_it_is_configured(bench: Bench, contracts: ContractRegistry) -> None:
    bench.bring_to("failed", envelope())
    with pytest.raises(UnknownReplayReasonError, match="observed reprocess-2025; expected backfill or dlq-drain"):
        bench.ledger.requeue([envelope().wal_id], reason="reprocess-2025")
    assert bench.ledger.get(envelope().wal_id).status == "failed"
    governed = {"reprocess-2025": "the yearly reprocessing"}
    ledger = Ledger(bench.database, registry=contracts, worker_id="w", clock=bench.clock, reasons=governed)
    assert own_tx(ledger).requeue([envelope().wal_id], reason="reprocess-2025") == {envelope().wal_id}
    # Reason and meaning stay recorded under any later configuration.
    assert bench.ledger.replay_reasons()["reprocess-2025"] == "the yearly reprocessing"


@pytest.mark.clause("WSM-10")
def test_a_redelivery_starts_a_second_attempt_only_of_a_failed_unit(bench: Bench) -> None:
    states = ("pending", "in_progress", "succeeded", "failed", "quarantined")
    units = {state: envelope(number) for number, state in enumerate(states)}
    for state, unit in units.items():
        bench.bring_to(state, unit)
    untouched = [bench.ledger.get(units[state].wal_id) for state in ("in_progress", "succeeded", "quarantined")]
    existing = bench.ledger.ensure(units.values()).existing
    assert bench.ledger.requeue(existing, run_id="run-2") == {units["failed"].wal_id}
    claimed = bench.claim(*units.values(), run_id="run-2")
    assert {unit.wal_id: unit.attempt for unit in claimed} == {units["pending"].wal_id: 1, units["failed"].wal_id: 2}
    assert untouched == [bench.ledger.get(units[state].wal_id) for state in ("in_progress", "succeeded", "quarantined")]


@pytest.mark.clause("WSM-08")
def test_a_quarantine_sets_a_missing_error_code_and_keeps_an_existing_code(bench: Bench) -> None:
    pending, broken = envelope(0), envelope(1)
    bench.bring_to("pending", pending)
    bench.bring_to("failed", broken)
    units = [pending.wal_id, broken.wal_id]
    assert bench.ledger.quarantine(units, reason_code="sensitive_site", decision=JANE) == tuple(sorted(units))
    records = [bench.ledger.get(wal_id) for wal_id in units]
    assert [record.last_error_code for record in records] == ["sensitive_site", "missing_object"]
    assert {(record.status, record.changed_by, record.change_reason) for record in records} == {
        ("quarantined", "jane", "sensitive_site")
    }


@pytest.mark.clause("WSM-02", "WSM-08")
def test_a_quarantine_changes_no_unit_unless_every_unit_is_pending_or_failed(bench: Bench) -> None:
    fine = envelope(0)
    bench.bring_to("pending", fine)
    for number, state in enumerate(("in_progress", "succeeded", "quarantined", None), start=1):
        wrong = envelope(number)
        if state:
            bench.bring_to(state, wrong)
        with pytest.raises(IllegalTransitionError, match=f"{wrong.wal_id}: {state or 'null'} > quarantined"):
            bench.ledger.quarantine([fine.wal_id, wrong.wal_id], reason_code="x", decision=JANE)
        assert bench.ledger.get(fine.wal_id).status == "pending"


@pytest.mark.clause("WSM-11", "BEY-02")
def test_a_claim_is_released_after_its_lease_and_not_at_the_lease_s_last_instant(bench: Bench) -> None:
    old, live = envelope(0), envelope(1)
    bench.bring_to("in_progress", old)
    bench.clock.advance(DEFAULT_LEASE.total_seconds())
    assert bench.ledger.release_lost() == RecoverReport()
    bench.claimed(live, run_id="run-2")
    bench.clock.advance(1e-6)
    report = bench.ledger.release_lost()
    assert (report.requeued, report.quarantined, report.failed) == ((old.wal_id,), (), ())
    assert bench.ledger.get(live.wal_id).status == "in_progress"
    assert [(entry.to_status, entry.reason) for entry in bench.ledger.history(old.wal_id)[2:]] == [
        ("failed", "lease_expired"),
        ("pending", "retry"),
    ]


@pytest.mark.clause("BEY-02")
@pytest.mark.parametrize("who", ["an earlier attempt of the same run", "another run with the right attempt"])
def test_only_the_run_and_attempt_of_a_claim_can_write_and_settle(bench: Bench, who: str) -> None:
    unit = envelope(0)
    (stale,) = bench.claimed(unit)
    bench.ledger.release_lost(run_ids=["run-1"])
    (held,) = bench.claim(unit)
    assert (stale.attempt, held.attempt) == (1, 2)
    wrong, run_id = (stale, "run-1") if who.startswith("an earlier") else (held, "run-2")
    for end in (finished, failed):
        assert bench.ledger.settle([end(wrong)], run_id=run_id).lost == (unit.wal_id,)
    with bench.database.transaction() as tx:
        refused = bench.ledger.leases.fence(run_id)(tx, {wrong.wal_id: wrong.attempt})
        assert refused == {unit.wal_id: FenceIssue.CLAIM_LOST}
        assert bench.ledger.leases.fence("run-1")(tx, {held.wal_id: held.attempt}) == {}
    assert bench.ledger.settle([finished(held)], run_id="run-1").succeeded == (unit.wal_id,)


def test_a_record_names_the_worker_that_claimed_the_unit_last(bench: Bench, contracts: ContractRegistry) -> None:
    unit = envelope(0)
    bench.bring_to("in_progress", unit)
    bench.ledger.release_lost(run_ids=["run-1"])
    another = Ledger(bench.database, registry=contracts, worker_id="worker-2", clock=bench.clock)
    own_tx(another).claim(dataset="nexrad-l2", partition=DAY, run_id="run-2", limit=1)
    assert bench.ledger.get(unit.wal_id).worker_id == "worker-2"


@pytest.mark.clause("WSM-11")
def test_claims_of_dead_runs_are_released_until_attempts_run_out(bench: Bench) -> None:
    unit, other = envelope(0), envelope(1)
    bench.ledger.ensure([unit, other])
    bench.claim(other, run_id="alive")
    for attempt in (1, 2, 3):
        bench.claim(unit, run_id=f"dead-{attempt}")
        report = bench.ledger.release_lost(run_ids=[f"dead-{attempt}", "never-was"])
        assert (report.requeued if attempt < 3 else report.quarantined) == (unit.wal_id,)
    record = bench.ledger.get(unit.wal_id)
    assert (record.status, record.last_error_code, record.attempts) == ("quarantined", "worker_lost", 3)
    assert bench.ledger.in_progress_runs() == ["alive"]


@pytest.mark.clause("WSM-11", "SEC-09")
@pytest.mark.parametrize("is_rolled_back", [False, True], ids=["dead", "rolled back"])
def test_a_batch_that_fails_is_halved_until_the_faulty_unit_runs_alone(bench: Bench, *, is_rolled_back: bool) -> None:
    units = [envelope(number) for number in range(20)]
    cause = units[13].wal_id
    bench.ledger.ensure(units)
    sizes: list[int] = []
    most = 2 + 2 * 5
    while len(sizes) <= most:
        run_id = f"run-{len(sizes)}"
        claimed = bench.ledger.claim(dataset="nexrad-l2", partition=DAY, run_id=run_id, limit=50)
        if not claimed:
            break
        sizes.append(len(claimed))
        if cause not in {unit.wal_id for unit in claimed}:
            bench.ledger.settle([finished(unit) for unit in claimed], run_id=run_id)
        elif is_rolled_back:
            bench.ledger.release_rolled_back(run_id=run_id, dataset="nexrad-l2", because="ValueError", bisect=True)
        else:
            bench.ledger.release_lost(run_ids=[run_id])
    assert sizes[:3] == [20, 20, 10]
    assert 1 in sizes
    assert len(sizes) <= most
    assert [record.wal_id for record in bench.ledger.find(status=Status.QUARANTINED)] == [cause]
    counts = {**dict.fromkeys(Status, 0), Status.SUCCEEDED: 19, Status.QUARANTINED: 1}
    assert bench.ledger.counts() == {"nexrad-l2": counts}


@pytest.mark.clause("SEC-09")
def test_a_unit_that_must_run_alone_shares_no_run_with_units_of_another_dataset(bench: Bench) -> None:
    def claim(dataset: str, run_id: str) -> list[str]:
        return [unit.dataset for unit in bench.ledger.claim(dataset=dataset, partition=DAY, run_id=run_id, limit=50)]

    lost, fresh = ("nexrad-l2", "goes-abi"), "hrrr"
    bench.ledger.ensure(
        envelope(number, dataset=dataset, object_uri=f"s3://b/{dataset}/{number}")
        for dataset in (*lost, fresh)
        for number in range(2)
    )
    for number in range(3):
        assert [claim(dataset, f"dies-{number}") for dataset in lost] == [[dataset] * 2 for dataset in lost]
        bench.ledger.release_lost(run_ids=[f"dies-{number}"])
    assert [claim(dataset, "alone") for dataset in (*lost, fresh)] == [["nexrad-l2"], [], []]
    assert [claim(dataset, "taken") for dataset in (fresh, *lost)] == [[fresh] * 2, [], []]


@pytest.mark.clause("WSM-11")
def test_a_rollback_that_no_single_unit_caused_uses_an_attempt_of_each_unit(bench: Bench) -> None:
    units = [envelope(number) for number in range(2)]
    bench.ledger.ensure(units)
    for attempt in (1, 2, 3):
        bench.claim(*units, run_id=f"run-{attempt}")
        report = bench.ledger.release_rolled_back(run_id=f"run-{attempt}", dataset="nexrad-l2", because="no disk")
    assert len(report.quarantined) == 2


@pytest.mark.clause("WSM-11")
def test_a_rollback_releases_only_the_claims_of_its_run_and_dataset(bench: Bench) -> None:
    unit, done, other = (envelope(number) for number in range(3))
    (_, claimed) = bench.claimed(unit, done)
    bench.ledger.settle([finished(claimed)], run_id="run-1")
    bench.claimed(other, run_id="run-2")
    for dataset, taken in (("goes-abi", ()), ("nexrad-l2", (unit.wal_id,)), ("nexrad-l2", ())):
        report = bench.ledger.release_rolled_back(run_id="run-1", dataset=dataset, because="token=abc of a stage")
        assert report == RecoverReport(requeued=taken)
    record = bench.ledger.get(unit.wal_id)
    assert (record.status, record.last_error_code) == ("pending", "run_rolled_back")
    assert "abc" not in str(record.last_error_message)
    assert bench.ledger.get(other.wal_id).status == "in_progress"


def test_the_failing_units_of_a_day_are_listed_with_quarantined_units_first(bench: Bench) -> None:
    states = {"failed": envelope(0), "quarantined": envelope(1), "succeeded": envelope(2), "pending": envelope(3)}
    for status, unit in states.items():
        bench.bring_to(status, unit)
    bench.bring_to("failed", again := envelope(4))
    bench.ledger.requeue([again.wal_id])
    where = {"dataset": "nexrad-l2", "partition": DAY}
    causes = bench.ledger.failing_of_day(**where, limit=10)
    assert [(cause.status, cause.object_uri) for cause in causes] == [
        (status, states[status].object_uri) for status in ("quarantined", "failed")
    ]
    assert {cause.code: 1 for cause in causes} == bench.ledger.day(**where).failing
    # A person's quarantine has a reason and no error.
    assert [cause.message for cause in causes] == ["", bench.ledger.get(states["failed"].wal_id).last_error_message]
    assert bench.ledger.failing_of_day(**where, limit=1) == causes[:1]
    for other in ({"dataset": "goes-abi"}, {"partition": "2025-04-02"}):
        assert bench.ledger.failing_of_day(**(where | other), limit=10) == []


KINDS = {
    "const": [(60, 60), (60, 60), (60, 60), (60, 60)],
    "exp": [(60, 60), (120, 120), (240, 240), (1800, 1800)],
    "jitter": [(30, 60), (30, 60), (30, 60), (30, 60)],
    "exp+jitter": [(30, 60), (60, 120), (120, 240), (900, 1800)],
}


@pytest.mark.clause("WSM-15")
def test_each_kind_of_backoff_has_the_expected_waits_and_spread(contracts: ContractRegistry) -> None:
    for kind, bounds in KINDS.items():
        backoff = contracts["nexrad-l2"].retry.backoff.model_copy(update={"kind": kind})
        for attempt, (least, most) in zip((1, 2, 3, 20), bounds, strict=True):
            waits = {backoff_seconds(backoff, key=str(unit), attempt=attempt) for unit in range(200)}
            assert least <= min(waits) <= max(waits) <= most
            assert waits == {backoff_seconds(backoff, key=str(unit), attempt=attempt) for unit in range(200)}
            # Waits spread over the whole range; if the range is one value, all are equal.
            assert (len(waits) == 200 and max(waits) - min(waits) > 0.9 * (most - least)) or len(waits) == 1 == (
                least == most
            )
            assert backoff_seconds(backoff, key="1", attempt=attempt, base_seconds=0) == 0


def test_a_configured_backoff_replaces_the_contract_s_backoff(bench: Bench, contracts: ContractRegistry) -> None:
    quick = make_bench(bench.database, contracts, retry_backoff_seconds=0.25)
    quick.bring_to("failed", envelope())
    assert own_tx(quick.ledger).get(envelope().wal_id).next_attempt_at == quick.clock.now + timedelta(seconds=0.25)


def test_units_that_fail_together_get_different_waits(bench: Bench, contracts: ContractRegistry) -> None:
    spread = replace(bench, ledger=own_tx(Ledger(bench.database, registry=contracts, worker_id="w", clock=bench.clock)))
    for number in range(3):
        spread.bring_to("failed", envelope(number))
    assert len({bench.ledger.get(envelope(number).wal_id).next_attempt_at for number in range(3)}) == 3


def test_counts_and_lists_agree_with_the_records(bench: Bench) -> None:
    units = [envelope(number) for number in range(6)]
    for unit, state in zip(
        units, ("pending", "pending", "in_progress", "failed", "succeeded", "quarantined"), strict=True
    ):
        bench.bring_to(state, unit)
    ledger = bench.ledger
    assert own_tx(ledger).counts() == {
        "nexrad-l2": {"pending": 2, "in_progress": 1, "failed": 1, "succeeded": 1, "quarantined": 1}
    }
    (waiting,) = ledger.pending_by_partition()
    assert (waiting.dataset, waiting.partition, waiting.units) == ("nexrad-l2", DAY, 2)
    assert (ledger.in_flight(today=units[0].event_time.date()), ledger.in_progress_runs()) == (3, [RUN])
    assert ledger.in_flight(today=units[0].event_time.date() - timedelta(days=1)) == 0
    assert [record.wal_id for record in own_tx(ledger).find(status=Status.FAILED)] == [units[3].wal_id]
    assert [record.wal_id for record in own_tx(ledger).find(code="missing_object")] == [units[3].wal_id]
    assert own_tx(ledger).find(dataset="hrrr") == own_tx(ledger).find(partition="2025-12-04") == []
    assert [len(own_tx(ledger).find(dataset="nexrad-l2", partition=DAY, limit=limit)) for limit in (4, 9)] == [4, 6]
    assert own_tx(ledger).get("00000000-0000-8000-8000-000000000000") is None


@pytest.mark.clause("WSM-11")
def test_a_lost_unit_without_a_contract_fails_and_does_not_prevent_the_release_of_other_units(
    bench: Bench, contracts: ContractRegistry
) -> None:
    orphan, with_contract = envelope(1), envelope(2, dataset="hrrr")
    bench.ledger.ensure([orphan, with_contract])
    claimed = bench.claim(orphan, run_id="dead")
    claimed += bench.ledger.claim(dataset="hrrr", partition=DAY, run_id="dead", limit=1)
    assert len(claimed) == 2
    without = ContractRegistry.of([contract for contract in contracts if contract.stac.collection != orphan.dataset])
    report = own_tx(make_bench(bench.database, without).ledger).release_lost(run_ids=["dead"])
    assert (report.failed, report.requeued) == ((orphan.wal_id,), (with_contract.wal_id,))


@pytest.mark.clause("BEY-02")
def test_a_recovery_removes_leases_without_claims(bench: Bench) -> None:
    first, second = envelope(1), envelope(2)
    bench.claimed(first, run_id="dead")
    bench.clock.advance(24 * 3600)
    bench.claimed(second, run_id="alive")
    bench.ledger.release_lost()
    assert [lease.run_id for lease in own_tx(bench.ledger.leases).all()] == ["alive"]


@pytest.mark.parametrize(
    ("action", "permitted"), [(GovernanceAction.REPAIR_AND_REPLACE, True), (GovernanceAction.REPEAT, False)]
)
def test_only_a_difference_that_the_decision_does_not_permit_is_a_mismatch_in_the_audit(
    bench: Bench, action: GovernanceAction, permitted: bool
) -> None:
    unit = envelope()
    bench.bring_to("succeeded", unit)
    bench.ledger.override({unit.wal_id: 3}, from_status=Status.SUCCEEDED, action=action, decision=JANE)
    [settled] = [finished(claimed) for claimed in bench.claim(unit)]
    differing = settled.evolve(stac=replace(settled.stac, content_sha256="0" * 64))
    assert bench.ledger.settle([differing], run_id=RUN).mismatched == (() if permitted else (unit.wal_id,))
    assert [mismatch.permitted for mismatch in bench.ledger.mismatches()] == [permitted]
    audited = own_tx(bench.ledger.log).entries(action=GovernanceAction.REPLAY_MISMATCH)
    assert [entry.wal_id for entry in audited] == ([] if permitted else [unit.wal_id])


@pytest.mark.clause("BEY-06", "SEC-02")
def test_a_discard_of_another_version_or_without_an_open_case_is_refused_and_closes_no_case(bench: Bench) -> None:
    unit, other = envelope(1), envelope(2)
    bench.bring_to("quarantined", unit)
    bench.bring_to("failed", other)
    cases = QuarantineCases(bench.database, clock=bench.clock)
    for wrong in ({unit.wal_id: 1}, {unit.wal_id: 3}, {other.wal_id: 3}, {unit.wal_id: 2, other.wal_id: 3}):
        with pytest.raises(RefusedError, match="an open case of exactly this version"):
            own_tx(cases).discard(wrong, decision=JANE)
        assert [case.state for case in own_tx(cases).of(unit.wal_id)] == [CaseState.OPEN]
        assert own_tx(bench.ledger.log).entries(action=GovernanceAction.DISCARD) == []
    own_tx(cases).discard({unit.wal_id: 2}, decision=JANE)
    with pytest.raises(RefusedError):
        own_tx(cases).discard({unit.wal_id: 2}, decision=JANE)


@pytest.mark.clause("SEC-07", "BEY-02")
def test_a_lease_is_extended_only_by_its_holder(bench: Bench, contracts: ContractRegistry) -> None:
    unit = envelope(1)
    bench.claimed(unit)
    [begun] = own_tx(bench.ledger.leases).all()
    bench.clock.advance(60)
    another = Ledger(bench.database, registry=contracts, worker_id="another", clock=bench.clock)
    leases = bench.ledger.leases
    assert another.leases.renew("run-1", {unit.wal_id: 1}) == 0
    assert leases.renew("run-2", {unit.wal_id: 1}) == 0
    assert leases.renew("run-1", {unit.wal_id: 2}) == 0
    assert leases.renew("run-1", {envelope(2).wal_id: 1}) == 0
    assert leases.renew("run-1", {}) == 0
    assert own_tx(leases).all() == [begun]
    assert leases.renew("run-1", {envelope(2).wal_id: 1, unit.wal_id: 1}) == 1
    [renewed] = own_tx(leases).all()
    assert renewed.expires_at - begun.expires_at == timedelta(seconds=60)
    # The run is executed again, and its first process resumes.
    bench.ledger.release_lost(run_ids=["run-1"])
    bench.claim(unit, run_id="run-1")
    bench.clock.advance(60)
    assert leases.renew("run-1", {unit.wal_id: 1}) == 0
    assert leases.renew("run-1", {unit.wal_id: 2}) == 1
    # Another worker claims for the run: the new lease covers only that worker's claims.
    other = envelope(2)
    own_tx(another).ensure([other])
    own_tx(another).claim(dataset="nexrad-l2", partition=DAY, run_id="run-1", limit=1, wal_ids=[other.wal_id])
    assert leases.renew("run-1", {unit.wal_id: 2}) == 0
    assert another.leases.renew("run-1", {unit.wal_id: 2}) == 0
    assert another.leases.renew("run-1", {other.wal_id: 1}) == 1


RADAR = "nexrad-l2"


def test_pending_and_failing_units_are_counted_in_the_caller_s_transaction(bench: Bench) -> None:
    begun = bench.clock.now
    bench.bring_to("failed", envelope(0))
    bench.bring_to("quarantined", envelope(1))
    bench.bring_to("pending", envelope(2))
    bench.bring_to("failed", again := envelope(4))
    bench.ledger.requeue([again.wal_id])
    bench.clock.advance(60)
    groups = [
        FailingUnits(dataset=RADAR, status=Status.FAILED, code="missing_object", units=1, retried=1, first_at=begun),
        FailingUnits(dataset=RADAR, status=Status.QUARANTINED, code="test", units=1, retried=0, first_at=begun),
    ]
    assert bench.ledger.failing() == groups
    with bench.database.transaction() as tx:
        bench.ledger.ensure([envelope(3)], tx=tx)
        bench.ledger.quarantine([envelope(2).wal_id], reason_code="test", decision=PERSON, tx=tx)
        assert tx.run("ledger.pending_units").all() == [(RADAR, 2, begun)]
        assert [(cause.code, cause.units, cause.first_at) for cause in bench.ledger.failing(tx=tx)] == [
            ("missing_object", 1, begun),
            ("test", 2, begun),
        ]


def test_waiting_times_of_live_units_are_given_as_quantiles(bench: Bench) -> None:
    units = [envelope(number, event_time=bench.clock.now - timedelta(seconds=number)) for number in range(100)]
    bench.ledger.ensure(units)

    def ago(seconds: int) -> object:
        return bench.clock.now - timedelta(seconds=seconds)

    with bench.database.snapshot() as tx:
        [waiting] = tx.run("ledger.waiting").mappings()
    waited = {"half_at": ago(49), "most_at": ago(89), "nearly_all_at": ago(98), "oldest_at": ago(99)}
    assert waiting == {"queue": units[0].queue, **waited}


def test_totals_of_attempts_are_counted_by_outcome(bench: Bench) -> None:
    bench.bring_to("succeeded", envelope(0))
    bench.bring_to("failed", envelope(1))
    with bench.database.snapshot() as view:
        totals = {(total, label): amount for (total, _, label), amount in kept_totals(view).items()}
    assert totals[Total.VALIDATION_ERRORS, "missing_object"] == 1
    assert [name for total, name in totals if total is Total.VALIDATION_ERRORS] == ["missing_object"]
    assert totals[Total.STAC_WRITES, "created"] == 1
    assert totals[Total.BYTES_INGESTED, ""] > 0
