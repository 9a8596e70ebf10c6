"""Admission, supersession and retries of units by version, error class, deadline and switch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import FenceIssue, GateIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.reports import EnsureResult, RecoverReport
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.factories import START, envelope, failed, finished, identified
from kfm_dagster_tests.ledger.bench import DAY, JANE, Bench, make_bench, with_retry
from kfm_dagster_tests.transactions import own_tx

RUN = "run-1"


def version(number: int, *, sequencer: str | None = None, later: float = 0, site: str = "KTLX") -> Envelope:
    """Return the n-th version of an object, announced `later` seconds after the first."""
    unit = envelope(0, object_version=f"etag-{number}", sequencer=sequencer, site=site)
    return unit.evolve(event_time=START + timedelta(minutes=5, seconds=later))


def statuses_of(bench: Bench, units: Sequence[Envelope]) -> list[str]:
    status_of = bench.ledger.statuses(unit.wal_id for unit in units)
    return [status_of[unit.wal_id].value for unit in units]


@pytest.mark.clause("BEY-01", "WSM-03")
def test_duplicate_stale_and_rewritten_events_are_distinguished_across_batches_and_restarts(
    bench: Bench, contracts: ContractRegistry
) -> None:
    old, middle, new = (version(number, sequencer=f"0055AED6DCD9028{number}") for number in (1, 2, 3))
    assert bench.ledger.ensure([middle]) == EnsureResult(created=frozenset({middle.wal_id}), existing={})
    # A later process has only the database's state.
    bench = make_bench(bench.database, contracts)
    assert bench.ledger.ensure([middle]).existing == {middle.wal_id: Status.PENDING}
    rewritten = bench.ledger.ensure([new])
    assert (rewritten.created, rewritten.superseded, rewritten.stale) == ({new.wal_id}, {middle.wal_id}, frozenset())
    bench = make_bench(bench.database, contracts)
    stale = bench.ledger.ensure([old])
    assert (stale.created, stale.stale, stale.superseded) == ({old.wal_id}, {old.wal_id}, frozenset())
    repeated = bench.ledger.ensure([old, middle, new])
    assert (repeated.created, repeated.stale, repeated.superseded) == (frozenset(),) * 3
    assert statuses_of(bench, [old, middle, new]) == ["quarantined", "quarantined", "pending"]
    reasons = [bench.ledger.get(unit.wal_id).last_error_code for unit in (old, middle)]
    assert reasons == ["stale_event", "superseded"]


NEWER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # The second of each pair is newer.
    "greater sequencer": ({"sequencer": "0A"}, {"sequencer": "0B"}),
    "greater sequencer, earlier event": ({"sequencer": "0A", "later": 60}, {"sequencer": "0B"}),
    # S3: pad with zeros on the right, then compare as text. As numbers 0B < 0A01, as text without zeros 0A < 0A01.
    "shorter and greater": ({"sequencer": "0A01"}, {"sequencer": "0B"}),
    "longer and greater": ({"sequencer": "0A"}, {"sequencer": "0A01"}),
    "one digit beyond": ({"sequencer": "F" * 63}, {"sequencer": "F" * 64}),
    "no sequencer, later event": ({}, {"later": 1}),
    "sequencer of the older only, later event": ({"sequencer": "FF"}, {"later": 1}),
    "sequencer of the newer only, later event": ({}, {"sequencer": "00", "later": 1}),
    "a millisecond": ({}, {"later": 0.001}),
}


@pytest.mark.clause("BEY-01")
@pytest.mark.parametrize("arrival", ["in order", "reversed", "together", "together, reversed"])
def test_which_of_two_versions_is_newer_does_not_depend_on_their_order_of_arrival(bench: Bench, arrival: str) -> None:
    for number, (name, (first, second)) in enumerate(NEWER.items()):
        site = f"K{number:03d}"
        older, newer = version(1, site=site, **first), version(2, site=site, **second)
        batches = {
            "in order": [[older], [newer]],
            "reversed": [[newer], [older]],
            "together": [[older, newer]],
            "together, reversed": [[newer, older]],
        }[arrival]
        for batch in batches:
            bench.ledger.ensure(batch)
        assert statuses_of(bench, [older, newer]) == ["quarantined", "pending"], name
        assert (bench.successor(older.wal_id), bench.successor(newer.wal_id)) == (newer.wal_id, None), name


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sequencers that differ in zeros on the right": ({"sequencer": "0A"}, {"sequencer": "0A00"}),
    "equal times and no sequencer": ({}, {}),
}


@pytest.mark.clause("BEY-01")
def test_both_of_two_versions_without_an_order_are_admitted(bench: Bench) -> None:
    for index, (name, pair) in enumerate(SAME.items()):
        units = [version(number, site=f"K{index:03d}", **facts) for number, facts in enumerate(pair)]
        for unit in units:
            bench.ledger.ensure([unit])
        assert statuses_of(bench, units) == ["pending", "pending"], name


@pytest.mark.clause("BEY-01")
def test_units_of_another_object_or_start_are_not_versions_of_a_unit(bench: Bench) -> None:
    unit = version(1, sequencer="0A")
    elsewhere = version(2, sequencer="0B", site="KDDC")
    later = START + timedelta(hours=1)
    at_another_time = identified(unit, time_range_start=later, time_range_end=later, sequencer="0C")
    bench.ledger.ensure([elsewhere, at_another_time, unit])
    assert statuses_of(bench, [unit, elsewhere, at_another_time]) == ["pending"] * 3


DEEDS = ("nothing", "claim", "succeed", "fail", "fail and retry", "quarantine")


@pytest.mark.clause("BEY-01")
def test_three_versions_reach_the_same_statuses_in_every_order_of_arrival(bench: Bench) -> None:
    """Whatever was done between the arrivals, older versions end quarantined unless they had succeeded."""
    orders = list(itertools.permutations((1, 2, 3)))
    for number, (deed, order) in enumerate(itertools.product(DEEDS, orders)):
        units = {index: version(index, sequencer=f"0{index}", site=f"K{number:03d}") for index in (1, 2, 3)}
        succeeded = set()
        for arriving in order:
            bench.ledger.ensure([units[arriving]])
            succeeded |= act(bench, deed, list(units.values()))
        work_off(bench, list(units.values()))
        ends = ["succeeded" if units[index].wal_id in succeeded else "quarantined" for index in (1, 2)]
        ends.append("quarantined" if deed == "quarantine" else "succeeded")
        assert statuses_of(bench, list(units.values())) == ends, (order, deed)
        assert bench.successor(units[3].wal_id) is None
        assert {bench.successor(units[index].wal_id) for index in (1, 2)} <= {units[2].wal_id, units[3].wal_id}


def act(bench: Bench, deed: str, units: list[Envelope]) -> set[str]:
    """Act on the pending units; return the ids of the units that succeeded."""
    if deed == "nothing":
        return set()
    status_of = bench.ledger.statuses(unit.wal_id for unit in units)
    waiting = [unit for unit in units if status_of.get(unit.wal_id) is Status.PENDING]
    if deed == "quarantine":
        bench.ledger.quarantine([unit.wal_id for unit in waiting], reason_code="odd", decision=JANE)
        return set()
    if deed == "fail and retry":
        # One attempt of each unit, so that the newest has an attempt left to succeed.
        waiting = [unit for unit in waiting if bench.ledger.get(unit.wal_id).attempts == 0]
    claimed = bench.claim(*waiting) if waiting else []
    if deed == "claim":
        return set()
    if deed == "succeed":
        return set(bench.ledger.settle([finished(unit) for unit in claimed], run_id=RUN).succeeded)
    bench.ledger.settle([failed(unit, "storage_unavailable") for unit in claimed], run_id=RUN)
    if deed == "fail and retry":
        bench.ledger.requeue([unit.wal_id for unit in units])
    return set()


def work_off(bench: Bench, units: list[Envelope]) -> None:
    """Claim and settle until no unit is pending; only the newest version can still be read."""
    newest = units[-1].wal_id
    for _ in range(8):
        bench.ledger.release_lost(run_ids=[RUN])
        bench.ledger.requeue([unit.wal_id for unit in units])
        claimed = bench.claim(*units)
        if not claimed:
            return
        bench.ledger.settle(
            [finished(unit) if unit.wal_id == newest else failed(unit, "etag_mismatch") for unit in claimed],
            run_id=RUN,
        )
    raise AssertionError(bench.ledger.statuses(unit.wal_id for unit in units))


@pytest.mark.clause("BEY-01")
def test_a_unit_superseded_while_its_attempt_fails_is_quarantined_when_its_retry_is_due(bench: Bench) -> None:
    if bench.database.dialect == "sqlite":
        pytest.skip("one writer at a time: the second transaction sees the first")
    old, new = version(1, sequencer="01"), version(2, sequencer="02")
    claimed = bench.claimed(old)
    with bench.database.transaction() as tx:
        report = bench.ledger.settle([failed(unit, "etag_mismatch") for unit in claimed], run_id=RUN, tx=tx)
        bench.ledger.ensure([new])  # neither transaction sees the other's uncommitted changes
    assert report.failed == (old.wal_id,)
    bench.clock.advance(10**6)
    assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {}
    assert statuses_of(bench, [old, new]) == ["quarantined", "pending"]
    assert bench.ledger.history(old.wal_id)[-1].reason == "superseded"


RELEASES: dict[str, Callable[[Bench, Transaction], RecoverReport]] = {
    "rollback": lambda bench, tx: bench.ledger.release_rolled_back(
        run_id=RUN, dataset="nexrad-l2", because="a stage failed", tx=tx
    ),
    "recovery of the unit's run": lambda bench, tx: bench.ledger.release_lost(run_ids=[RUN], tx=tx),
    "recovery of expired leases": lambda bench, tx: bench.ledger.release_lost(tx=tx),
}


@pytest.mark.clause("BEY-01", "BEY-02", "WSM-11")
@pytest.mark.parametrize("attempt", [1, 3], ids=["attempts left", "last attempt"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_claim_is_revoked_while_a_newer_version_is_admitted(bench: Bench, release: str, attempt: int) -> None:
    """The admission references the claimed record by a foreign key without locking the record's claim."""
    if bench.database.dialect == "sqlite":
        pytest.skip("one writer at a time: the second transaction sees the first")
    old, new = version(1, sequencer="01"), version(2, sequencer="02")
    bench.ledger.ensure([old])
    for _ in range(attempt - 1):
        bench.claim(old)
        bench.ledger.release_lost(run_ids=[RUN])
    bench.claim(old)
    if release == "recovery of expired leases":
        bench.clock.advance(10**6)
    with bench.database.transaction() as admission:
        bench.ledger.ensure([new], tx=admission)
        with bench.database.transaction() as tx:
            tx.connection.exec_driver_sql(
                "SET LOCAL lock_timeout = '20s'"
            )  # neither transaction may wait for the other
            report = RELEASES[release](bench, tx)
    assert report.requeued + report.quarantined == (old.wal_id,)
    assert statuses_of(bench, [old, new]) == ["quarantined" if attempt == 3 else "pending", "pending"]
    if attempt == 1:
        # A retried superseded unit finds its object overwritten, and is quarantined, too.
        bench.ledger.settle([failed(unit, "etag_mismatch") for unit in bench.claim(old)], run_id=RUN)
        assert bench.ledger.history(old.wal_id)[-1].reason == "superseded"


PERMANENT = "missing_object"
TRANSIENT = "storage_unavailable"


def fail(bench: Bench, unit: Envelope, code: str) -> Any:
    """Record the unit if it is new, claim it, and fail its attempt with a code."""
    return bench.ledger.settle([failed(claimed, code) for claimed in bench.claimed(unit)], run_id=RUN)


def rows(bench: Bench, unit: Envelope) -> tuple[Any, int]:
    return bench.ledger.get(unit.wal_id), len(bench.ledger.history(unit.wal_id))


AUTOMATIC: dict[str, Callable[[Bench, Envelope], object]] = {
    "due retries": lambda bench, _: bench.ledger.retry_due(now=bench.clock.now + timedelta(days=99), limit=1000),
    "redelivery": lambda bench, unit: bench.ledger.requeue(bench.ledger.ensure([unit]).existing),
    "recovery of the unit's run": lambda bench, _: bench.ledger.release_lost(run_ids=[RUN]),
    "recovery of expired leases": lambda bench, _: bench.ledger.release_lost(),
    "a claim": lambda bench, unit: bench.claim(unit),
    "a settlement that comes late": lambda bench, unit: bench.ledger.settle(
        [finished(unit.evolve(attempt=attempt)) for attempt in (1, 2, 3)], run_id=RUN
    ),
    **{
        f"a replay for {reason}": lambda bench, unit, reason=reason: bench.ledger.requeue([unit.wal_id], reason=reason)
        for reason in ReplayReason
    },
}


@pytest.mark.clause("WSM-14", "WSM-07")
@pytest.mark.parametrize("code", [PERMANENT, TRANSIENT, "governance_hard_fail", "claim_lost"])
def test_no_automatic_action_changes_a_unit_without_attempts_left(bench: Bench, code: str) -> None:
    unit = envelope()
    for _ in range(3):
        fail(bench, unit, code)
        bench.ledger.requeue([unit.wal_id])
    before = rows(bench, unit)
    assert before[0].status is Status.QUARANTINED
    bench.clock.advance(10**7)
    for name, action in AUTOMATIC.items():
        action(bench, unit)
        assert rows(bench, unit) == before, name


@pytest.mark.clause("WSM-14")
@pytest.mark.parametrize("limit", [1, 2])
def test_a_permanent_error_has_a_smaller_limit_of_attempts(
    limit: int, bench: Bench, contracts: ContractRegistry
) -> None:
    strict = {"codes": [PERMANENT], "max_attempts": limit}
    bench = make_bench(bench.database, with_retry(contracts, permanent=strict))
    hopeless, hopeful = envelope(1), envelope(2)
    for attempt in (1, 2, 3):
        for unit, code, most in ((hopeless, PERMANENT, limit), (hopeful, TRANSIENT, 3)):
            if attempt > most:
                continue
            report = fail(bench, unit, code)
            assert report.quarantined == ((unit.wal_id,) if attempt == most else ()), (unit, attempt)
            assert bench.ledger.requeue([unit.wal_id]) == (frozenset() if attempt == most else {unit.wal_id})
    records = [bench.ledger.get(unit.wal_id) for unit in (hopeless, hopeful)]
    assert [(record.status, record.attempts, record.change_reason) for record in records] == [
        ("quarantined", limit, "attempts_exhausted"),
        ("quarantined", 3, "attempts_exhausted"),
    ]


@pytest.mark.clause("WSM-14")
def test_a_permanent_error_ends_the_attempts_unless_the_error_can_pass_with_time(bench: Bench) -> None:
    permanent = ("size_zero", "unreadable_format", "truncated_object", "contract_fault")
    curable = ("missing_object", "access_denied", "size_mismatch")
    for number, code in enumerate((*permanent, *curable)):
        unit, attempts = envelope(number), 1 if code in permanent else 3
        for attempt in range(1, attempts + 1):
            report = fail(bench, unit, code)
            last = attempt == attempts
            assert report.quarantined == ((unit.wal_id,) if last else ()), (code, attempt)
            assert bench.ledger.requeue([unit.wal_id]) == (frozenset() if last else {unit.wal_id})


@pytest.mark.clause("WSM-07", "WSM-14")
def test_a_failed_unit_without_attempts_under_a_stricter_contract_does_not_block_other_units(
    bench: Bench, contracts: ContractRegistry
) -> None:
    """The contract became stricter after the attempt; the unit is always due first, but blocks no other unit."""
    hopeless, hopeful = envelope(1), envelope(2)
    fail(bench, hopeless, PERMANENT)
    bench.clock.advance(1)
    fail(bench, hopeful, TRANSIENT)
    strict = make_bench(bench.database, with_retry(contracts, permanent={"codes": [PERMANENT], "max_attempts": 1}))
    assert own_tx(strict.ledger).requeue([hopeless.wal_id], reason="incident") == frozenset()
    other_bench = make_bench(bench.database, ContractRegistry.of([contracts["hrrr"]]))
    assert other_bench.ledger.requeue([hopeful.wal_id], reason="incident") == frozenset()
    due = bench.clock.now + timedelta(days=1)
    assert [own_tx(strict.ledger).retry_due(now=due, limit=1) for _ in range(3)] == [{}, {("nexrad-l2", DAY): 1}, {}]
    record = bench.ledger.get(hopeless.wal_id)
    assert (record.status, record.change_reason, record.last_error_code) == (
        "quarantined",
        "attempts_exhausted",
        PERMANENT,
    )


@pytest.mark.clause("WSM-15")
def test_a_transient_error_is_retried_with_growing_waits_up_to_the_limit(bench: Bench) -> None:
    unit = envelope()
    waits = []
    for _ in range(3):
        fail(bench, unit, TRANSIENT)
        record = bench.ledger.get(unit.wal_id)
        if record.next_attempt_at is None:
            break
        waits.append((record.next_attempt_at - bench.clock.now).total_seconds())
        bench.clock.advance(waits[-1] - 1)
        assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {}
        bench.clock.advance(1)
        assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {("nexrad-l2", DAY): 1}
    assert waits == [60, 120]
    assert (record.status, record.attempts) == ("quarantined", 3)


@pytest.mark.clause("WSM-15")
@pytest.mark.parametrize("late", [False, True])
def test_no_retry_starts_after_the_deadline_but_a_replay_by_a_person_does(
    late: bool, bench: Bench, contracts: ContractRegistry
) -> None:
    bench = make_bench(bench.database, with_retry(contracts, deadline_seconds=600))
    unit = envelope()
    bench.ledger.ensure([unit])
    # The next attempt would start 60 seconds after the failure.
    bench.clock.advance(541 if late else 540)
    report = fail(bench, unit, TRANSIENT)
    record = bench.ledger.get(unit.wal_id)
    if not late:
        assert (report.failed, record.status) == ((unit.wal_id,), "failed")
        # A person's replay has no deadline.
        bench.clock.advance(10**6)
        assert bench.ledger.requeue([unit.wal_id], reason="incident") == {unit.wal_id}
        assert fail(bench, unit, TRANSIENT).failed == (unit.wal_id,)
        return
    assert (report.quarantined, record.change_reason) == ((unit.wal_id,), "deadline_exceeded")
    # The reason of the failure is kept.
    assert record.last_error_code == TRANSIENT
    for reason in ReplayReason:
        assert bench.ledger.requeue([unit.wal_id], reason=reason) == frozenset()


@pytest.mark.clause("WSM-16")
@pytest.mark.parametrize("end", ["fails", "succeeds", "is lost"])
def test_a_released_unit_without_attempts_left_gets_exactly_one_more_attempt(bench: Bench, end: str) -> None:
    unit = envelope()
    for _ in range(3):
        fail(bench, unit, TRANSIENT)
        bench.ledger.requeue([unit.wal_id])
    record = bench.ledger.get(unit.wal_id)
    bench.ledger.override(
        {unit.wal_id: record.version}, from_status=Status.QUARANTINED, action=GovernanceAction.RELEASE, decision=JANE
    )
    if end == "is lost":
        bench.claim(unit)
        assert bench.ledger.release_lost(run_ids=[RUN]).quarantined == (unit.wal_id,)
    else:
        bench.ledger.settle(
            [finished(claimed) if end == "succeeds" else failed(claimed, TRANSIENT) for claimed in bench.claim(unit)],
            run_id=RUN,
        )
    after = bench.ledger.get(unit.wal_id)
    assert after.attempts == 4
    assert after.status == ("succeeded" if end == "succeeds" else "quarantined")
    for reason in ReplayReason:
        assert bench.ledger.requeue([unit.wal_id], reason=reason) == frozenset()


@pytest.mark.clause("WAL-10")
@pytest.mark.parametrize("switch", ["nexrad-l2", EVERY_DATASET])
def test_units_of_a_switched_off_dataset_are_neither_claimed_nor_retried_nor_written(bench: Bench, switch: str) -> None:
    waiting, broken, working = envelope(1), envelope(2), envelope(3)
    bench.bring_to("pending", waiting)
    bench.bring_to("failed", broken)
    bench.bring_to("in_progress", working)
    attempts = {working.wal_id: 1}
    with bench.database.transaction() as tx:
        assert bench.ledger.leases.fence(RUN)(tx, attempts) == {}
    bench.ledger.switches.engage(switch, JANE)

    def refused() -> bool:
        later = bench.clock.now + timedelta(days=1)
        requeued = [bench.ledger.requeue([broken.wal_id], reason=reason) for reason in ReplayReason]
        with bench.database.transaction() as tx:
            fenced = bench.ledger.leases.fence(RUN)(tx, attempts)
        return (
            bench.claim(waiting) == []
            and set(requeued) == {frozenset()}
            and bench.ledger.retry_due(now=later, limit=10) == {}
            and fenced == {working.wal_id: FenceIssue.KILL_SWITCH}
        )

    assert refused()
    assert bench.ledger.statuses([waiting.wal_id, broken.wal_id]) == {
        waiting.wal_id: Status.PENDING,
        broken.wal_id: Status.FAILED,
    }
    bench.ledger.switches.release(switch, JANE)
    assert not refused()


@pytest.mark.clause("WSM-11", "WAL-10")
def test_a_unit_lost_while_its_dataset_is_switched_off_is_retried_after_the_switch_is_released(bench: Bench) -> None:
    for number, lost in enumerate(([RUN], [])):  # a dead run, an expired lease
        unit = envelope(number)
        bench.bring_to("in_progress", unit)
        bench.ledger.switches.engage("nexrad-l2", JANE)
        bench.clock.advance(0 if lost else 24 * 3600)
        # Recovery releases the claim; the unit stays failed, with attempts left, while its dataset is off.
        assert bench.ledger.release_lost(run_ids=lost) == RecoverReport(failed=(unit.wal_id,))
        assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {}
        assert bench.ledger.get(unit.wal_id).status == "failed"
        bench.ledger.switches.release("nexrad-l2", JANE)
        assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {("nexrad-l2", DAY): 1}


@pytest.mark.clause("WSM-15", "PCS-23")
def test_a_failure_that_is_not_compensable_gets_no_second_attempt(bench: Bench, contracts: ContractRegistry) -> None:
    bench = make_bench(bench.database, contracts, human_review={GateIssue.G4})
    unit = envelope()
    assert fail(bench, unit, GateIssue.G4).quarantined == (unit.wal_id,)
    record = bench.ledger.get(unit.wal_id)
    assert (record.attempts, record.change_reason, record.last_error_code) == (1, GateIssue.G4, GateIssue.G4)
