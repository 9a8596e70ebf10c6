"""Admission: duplicate, stale and rewritten events of one object are told apart, in whatever order they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ledger.reports import EnsureResult, RecoverReport
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.factories import START, envelope, failed, finished, identified
from kfm_dagster_tests.ledger.bench import JANE, Bench, make_bench

RUN = "run-1"


def version(number: int, *, sequencer: str | None = None, later: float = 0, site: str = "KTLX") -> Envelope:
    """The n-th version of one object, announced so many seconds after the first."""
    unit = envelope(0, object_version=f"etag-{number}", sequencer=sequencer, site=site)
    return unit.evolve(event_time=START + timedelta(minutes=5, seconds=later))


def standing(bench: Bench, units: Sequence[Envelope]) -> list[str]:
    found = bench.ledger.statuses(unit.wal_id for unit in units)
    return [found[unit.wal_id].value for unit in units]


def successor(bench: Bench, unit: Envelope) -> str | None:
    [found] = [one for one in bench.ledger.versions(unit.wal_id) if one.wal_id == unit.wal_id]
    return found.superseded_by


@pytest.mark.clause("BEY-01", "WSM-03")
def test_duplicate_stale_and_rewritten_events_are_told_apart_across_batches_and_restarts(
    bench: Bench, contracts: ContractRegistry
) -> None:
    old, middle, new = (version(number, sequencer=f"0055AED6DCD9028{number}") for number in (1, 2, 3))
    assert bench.ledger.ensure([middle]) == EnsureResult(created=frozenset({middle.wal_id}), existing={})
    # Another process, later: it knows nothing but what stands in the database.
    bench = make_bench(bench.database, contracts)
    assert bench.ledger.ensure([middle]).existing == {middle.wal_id: Status.PENDING}
    rewritten = bench.ledger.ensure([new])
    assert (rewritten.created, rewritten.superseded, rewritten.stale) == ({new.wal_id}, {middle.wal_id}, frozenset())
    bench = make_bench(bench.database, contracts)
    stale = bench.ledger.ensure([old])
    assert (stale.created, stale.stale, stale.superseded) == ({old.wal_id}, {old.wal_id}, frozenset())
    again = bench.ledger.ensure([old, middle, new])
    assert (again.created, again.stale, again.superseded) == (frozenset(),) * 3
    assert standing(bench, [old, middle, new]) == ["quarantined", "quarantined", "pending"]
    reasons = [bench.ledger.get(unit.wal_id).last_error_code for unit in (old, middle)]
    assert reasons == ["stale_event", "superseded"]


NEWER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Of each pair the second is the newer one.
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
def test_which_of_two_versions_is_newer_does_not_depend_on_their_arrival(bench: Bench, arrival: str) -> None:
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
        assert standing(bench, [older, newer]) == ["quarantined", "pending"], name
        assert (successor(bench, older), successor(bench, newer)) == (newer.wal_id, None), name


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sequencers that differ in zeros on the right": ({"sequencer": "0A"}, {"sequencer": "0A00"}),
    "one time and no sequencer": ({}, {}),
}


@pytest.mark.clause("BEY-01")
def test_versions_that_cannot_be_told_apart_are_both_let_in(bench: Bench) -> None:
    for place, (name, pair) in enumerate(SAME.items()):
        units = [version(number, site=f"K{place:03d}", **facts) for number, facts in enumerate(pair)]
        for unit in units:
            bench.ledger.ensure([unit])
        assert standing(bench, units) == ["pending", "pending"], name


@pytest.mark.clause("BEY-01")
def test_other_objects_are_no_versions(bench: Bench) -> None:
    unit = version(1, sequencer="0A")
    elsewhere = version(2, sequencer="0B", site="KDDC")
    later = START + timedelta(hours=1)
    at_another_time = identified(unit, time_range_start=later, time_range_end=later, sequencer="0C")
    bench.ledger.ensure([elsewhere, at_another_time, unit])
    assert standing(bench, [unit, elsewhere, at_another_time]) == ["pending"] * 3


DEEDS = ("nothing", "claim", "succeed", "fail", "fail and retry", "quarantine")


@pytest.mark.clause("BEY-01")
def test_three_versions_in_every_order_of_arrival_end_alike(bench: Bench) -> None:
    """Whatever is done between the arrivals: only the newest is left, and what had succeeded before stays so."""
    orders = list(itertools.permutations((1, 2, 3)))
    for number, (deed, order) in enumerate(itertools.product(DEEDS, orders)):
        units = {one: version(one, sequencer=f"0{one}", site=f"K{number:03d}") for one in (1, 2, 3)}
        succeeded = set()
        for one in order:
            bench.ledger.ensure([units[one]])
            succeeded |= act(bench, deed, list(units.values()))
        work_off(bench, list(units.values()))
        ends = ["succeeded" if units[one].wal_id in succeeded else "quarantined" for one in (1, 2)]
        ends.append("quarantined" if deed == "quarantine" else "succeeded")
        assert standing(bench, list(units.values())) == ends, (order, deed)
        assert successor(bench, units[3]) is None
        assert {successor(bench, units[one]) for one in (1, 2)} <= {units[2].wal_id, units[3].wal_id}


def act(bench: Bench, deed: str, units: list[Envelope]) -> set[str]:
    """Do something to those of the units that wait; return those that succeeded by it."""
    if deed == "nothing":
        return set()
    known = bench.ledger.statuses(unit.wal_id for unit in units)
    waiting = [unit for unit in units if known.get(unit.wal_id) is Status.PENDING]
    if deed == "quarantine":
        bench.ledger.quarantine([unit.wal_id for unit in waiting], reason_code="odd", decision=JANE)
        return set()
    if deed == "fail and retry":
        # Once each: the newest must have an attempt left for its success.
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
    """Work until nothing waits: the newest object is read as announced, of an older one nothing is left to read."""
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
def test_a_unit_that_is_superseded_while_its_attempt_fails_goes_to_quarantine_when_it_is_due(bench: Bench) -> None:
    if bench.database.dialect == "sqlite":
        pytest.skip("one writer at a time: whichever comes second sees the other")
    old, new = version(1, sequencer="01"), version(2, sequencer="02")
    bench.ledger.ensure([old])
    claimed = bench.claim(old)
    with bench.database.transaction() as tx:
        report = bench.ledger.settle([failed(unit, "etag_mismatch") for unit in claimed], run_id=RUN, tx=tx)
        bench.ledger.ensure([new])  # neither sees what the other has not committed
    assert report.failed == (old.wal_id,)
    bench.clock.advance(10**6)
    assert bench.ledger.retry_due(now=bench.clock.now, limit=10) == {}
    assert standing(bench, [old, new]) == ["quarantined", "pending"]
    assert bench.ledger.history(old.wal_id)[-1].reason == "superseded"


RELEASES: dict[str, Callable[[Bench, Transaction], RecoverReport]] = {
    "rollback": lambda bench, tx: bench.ledger.release_rolled_back(
        run_id=RUN, dataset="nexrad-l2", because="a stage failed", tx=tx
    ),
    "recovery of its run": lambda bench, tx: bench.ledger.release_lost(run_ids=[RUN], tx=tx),
    "recovery of expired leases": lambda bench, tx: bench.ledger.release_lost(tx=tx),
}


@pytest.mark.clause("BEY-01", "BEY-02", "WSM-11")
@pytest.mark.parametrize("attempt", [1, 3], ids=["attempts left", "last attempt"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_claim_is_taken_back_while_a_newer_version_is_let_in(bench: Bench, release: str, attempt: int) -> None:
    """The admission refers to the claimed record by a foreign key, and holds no claim on it."""
    if bench.database.dialect == "sqlite":
        pytest.skip("one writer at a time: whichever comes second sees the other")
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
            tx.connection.exec_driver_sql("SET LOCAL lock_timeout = '20s'")  # neither may wait for the other
            report = RELEASES[release](bench, tx)
    assert report.requeued + report.quarantined == (old.wal_id,)
    assert standing(bench, [old, new]) == ["quarantined" if attempt == 3 else "pending", "pending"]
    if attempt == 1:
        # What was superseded and is tried once more finds its object overwritten, and goes there, too.
        bench.ledger.settle([failed(unit, "etag_mismatch") for unit in bench.claim(old)], run_id=RUN)
        assert bench.ledger.history(old.wal_id)[-1].reason == "superseded"


@pytest.mark.clause("BEY-01")
def test_a_released_stale_unit_is_one_attempt_and_back(bench: Bench) -> None:
    new, old = version(2, sequencer="02"), version(1, sequencer="01")
    bench.ledger.ensure([new])
    bench.ledger.ensure([old])
    moved = bench.ledger.override(
        {old.wal_id: 2}, from_status=Status.QUARANTINED, action=GovernanceAction.RELEASE, decision=JANE
    )
    assert moved == {old.wal_id}
    claimed = bench.claim(old)
    report = bench.ledger.settle([failed(unit, "etag_mismatch") for unit in claimed], run_id=RUN)
    assert report.quarantined == (old.wal_id,)
