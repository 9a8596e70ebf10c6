"""When a failed unit is tried again, when no more, and who cannot make it: by error class, deadline and kill switch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import FenceIssue, GateIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import PermanentErrors
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.reports import RecoverReport
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.ledger.bench import DAY, JANE, Bench, make_bench, with_retry
from kfm_dagster_tests.transactions import own_tx

RUN = "run-1"
PERMANENT = "missing_object"
TRANSIENT = "storage_unavailable"


def fail(bench: Bench, unit: Envelope, code: str) -> Any:
    """One attempt that fails with a code."""
    return bench.ledger.settle([failed(one, code) for one in bench.claim(unit)], run_id=RUN)


def rows(bench: Bench, unit: Envelope) -> tuple[Any, int]:
    return bench.ledger.get(unit.wal_id), len(bench.ledger.history(unit.wal_id))


AUTOMATIC: dict[str, Callable[[Bench, Envelope], object]] = {
    "due retries": lambda bench, _: bench.ledger.retry_due(now=bench.clock.now + timedelta(days=99), limit=1000),
    "redelivery": lambda bench, unit: bench.ledger.requeue(bench.ledger.ensure([unit]).existing),
    "recovery of its run": lambda bench, _: bench.ledger.release_lost(run_ids=[RUN]),
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
def test_no_automatic_path_touches_a_unit_whose_attempts_are_used_up(bench: Bench, code: str) -> None:
    unit = envelope()
    bench.ledger.ensure([unit])
    for _ in range(3):
        fail(bench, unit, code)
        bench.ledger.requeue([unit.wal_id])
    before = rows(bench, unit)
    assert before[0].status is Status.QUARANTINED
    bench.clock.advance(10**7)
    for name, path in AUTOMATIC.items():
        path(bench, unit)
        assert rows(bench, unit) == before, name


@pytest.mark.clause("WSM-14")
@pytest.mark.parametrize("limit", [1, 2])
def test_a_permanent_error_has_its_own_smaller_number_of_attempts(
    limit: int, bench: Bench, contracts: ContractRegistry
) -> None:
    strict = PermanentErrors(codes=[PERMANENT], max_attempts=limit).model_dump()
    bench = make_bench(bench.database, with_retry(contracts, permanent=strict))
    hopeless, hopeful = envelope(1), envelope(2)
    bench.ledger.ensure([hopeless, hopeful])
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
def test_a_permanent_error_is_tried_once_unless_time_may_cure_it(bench: Bench) -> None:
    permanent = ("size_zero", "unreadable_format", "truncated_object", "contract_fault")
    curable = ("missing_object", "access_denied", "size_mismatch")
    for number, code in enumerate((*permanent, *curable)):
        unit, attempts = envelope(number), 1 if code in permanent else 3
        bench.ledger.ensure([unit])
        for attempt in range(1, attempts + 1):
            report = fail(bench, unit, code)
            last = attempt == attempts
            assert report.quarantined == ((unit.wal_id,) if last else ()), (code, attempt)
            assert bench.ledger.requeue([unit.wal_id]) == (frozenset() if last else {unit.wal_id})


@pytest.mark.clause("WSM-07", "WSM-14")
def test_a_failure_that_a_stricter_contract_gives_no_attempt_makes_way_for_those_behind_it(
    bench: Bench, contracts: ContractRegistry
) -> None:
    """The contract was changed after the attempt; due first at every tick, it would keep the next one from its turn."""
    hopeless, hopeful = envelope(1), envelope(2)
    bench.ledger.ensure([hopeless, hopeful])
    fail(bench, hopeless, PERMANENT)
    bench.clock.advance(1)
    fail(bench, hopeful, TRANSIENT)
    strict = make_bench(
        bench.database, with_retry(contracts, permanent=PermanentErrors(codes=[PERMANENT], max_attempts=1).model_dump())
    )
    assert own_tx(strict.ledger).requeue([hopeless.wal_id], reason="incident") == frozenset()
    other = make_bench(bench.database, ContractRegistry.of([contracts["hrrr"]]))
    assert other.ledger.requeue([hopeful.wal_id], reason="incident") == frozenset()
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
    bench.ledger.ensure([unit])
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
def test_past_the_deadline_no_retry_begins(late: bool, bench: Bench, contracts: ContractRegistry) -> None:
    bench = make_bench(bench.database, with_retry(contracts, deadline_seconds=600))
    unit = envelope()
    bench.ledger.ensure([unit])
    # The next attempt would begin 60 seconds after the failure.
    bench.clock.advance(541 if late else 540)
    report = fail(bench, unit, TRANSIENT)
    record = bench.ledger.get(unit.wal_id)
    if not late:
        assert (report.failed, record.status) == ((unit.wal_id,), "failed")
        return
    assert (report.quarantined, record.change_reason) == ((unit.wal_id,), "deadline_exceeded")
    # Why it failed stays to be read.
    assert record.last_error_code == TRANSIENT
    for reason in ReplayReason:
        assert bench.ledger.requeue([unit.wal_id], reason=reason) == frozenset()


@pytest.mark.clause("WSM-15")
def test_a_replay_that_a_person_wants_has_no_deadline(bench: Bench, contracts: ContractRegistry) -> None:
    bench = make_bench(bench.database, with_retry(contracts, deadline_seconds=600))
    unit = envelope()
    bench.ledger.ensure([unit])
    fail(bench, unit, TRANSIENT)
    bench.clock.advance(10**6)
    assert bench.ledger.requeue([unit.wal_id], reason="incident") == {unit.wal_id}
    assert fail(bench, unit, TRANSIENT).failed == (unit.wal_id,)


@pytest.mark.clause("WSM-16")
@pytest.mark.parametrize("end", ["fails", "succeeds", "is lost"])
def test_a_released_unit_without_attempts_gets_exactly_one_more(bench: Bench, end: str) -> None:
    unit = envelope()
    bench.ledger.ensure([unit])
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
            [finished(one) if end == "succeeds" else failed(one, TRANSIENT) for one in bench.claim(unit)], run_id=RUN
        )
    after = bench.ledger.get(unit.wal_id)
    assert after.attempts == 4
    assert after.status == ("succeeded" if end == "succeeds" else "quarantined")
    for reason in ReplayReason:
        assert bench.ledger.requeue([unit.wal_id], reason=reason) == frozenset()


@pytest.mark.clause("WAL-10")
@pytest.mark.parametrize("switch", ["nexrad-l2", EVERY_DATASET])
def test_a_switched_off_dataset_is_neither_claimed_nor_let_in_nor_written(bench: Bench, switch: str) -> None:
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
        let_in = [bench.ledger.requeue([broken.wal_id], reason=reason) for reason in ReplayReason]
        with bench.database.transaction() as tx:
            fenced = bench.ledger.leases.fence(RUN)(tx, attempts)
        return (
            bench.claim(waiting) == []
            and set(let_in) == {frozenset()}
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
def test_a_claim_lost_while_switched_off_is_retried_once_it_is_on(bench: Bench) -> None:
    for number, lost in enumerate(([RUN], [])):  # a dead run, an expired lease
        unit = envelope(number)
        bench.bring_to("in_progress", unit)
        bench.ledger.switches.engage("nexrad-l2", JANE)
        bench.clock.advance(0 if lost else 24 * 3600)
        # Recovery gives the claim up; the unit stays failed while its dataset is off, with attempts left.
        assert bench.ledger.release_lost(run_ids=lost) == RecoverReport(failed=(unit.wal_id,))
        assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {}
        assert bench.ledger.get(unit.wal_id).status == "failed"
        bench.ledger.switches.release("nexrad-l2", JANE)
        assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {("nexrad-l2", DAY): 1}


@pytest.mark.clause("WSM-15", "PCS-23")
def test_what_is_not_compensable_gets_no_second_attempt(bench: Bench, contracts: ContractRegistry) -> None:
    bench = make_bench(bench.database, contracts, human_review={GateIssue.G4})
    unit = envelope()
    bench.ledger.ensure([unit])
    assert fail(bench, unit, GateIssue.G4).quarantined == (unit.wal_id,)
    record = bench.ledger.get(unit.wal_id)
    assert (record.attempts, record.change_reason, record.last_error_code) == (1, GateIssue.G4, GateIssue.G4)
