"""The history is written by the database, complete, append-only, and enough to rebuild the record."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ledger.record import replay_history
from kfm_dagster.ledger.state_machine import LEGAL
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.ledger.bench import JANE, Bench

NUMBERS = itertools.count()
"""Units of their own for every Hypothesis example, which share a database."""


@pytest.mark.clause("WSM-17")
def test_every_transition_leaves_who_when_from_to_version_reason_and_run(bench: Bench) -> None:
    unit = envelope()
    start = bench.clock.now
    bench.ledger.ensure([unit])
    bench.clock.advance(1)
    claimed = bench.claim(run_id="run-1")
    bench.clock.advance(1)
    bench.ledger.settle([failed(one) for one in claimed], run_id="run-1")
    bench.clock.advance(1)
    bench.ledger.readmit([unit.wal_id], reason="incident", run_id="replay-1", actor="jane")
    found = [
        (one.version, (one.at - start).seconds, one.actor, one.from_status, one.to_status, one.reason, one.run_id)
        for one in bench.ledger.history(unit.wal_id)
    ]
    assert found == [
        (1, 0, "worker-1", None, "pending", "discovered", None),
        (2, 1, "worker-1", "pending", "in_progress", "claimed", "run-1"),
        (3, 2, "worker-1", "in_progress", "failed", "missing_object", "run-1"),
        (4, 3, "jane", "failed", "pending", "incident", "replay-1"),
    ]


@pytest.mark.clause("WSM-17")
def test_a_change_typed_by_hand_has_its_history_too(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("pending", unit)
    bench.type_by_hand(
        "UPDATE nodd_wal_records SET status = 'quarantined', last_error_code = 'by_hand', version = version + 1,"
        " updated_at = '2025-12-03T13:00:00.000000Z', changed_by = 'jane', change_reason = 'CHG-7'"
    )
    last = bench.ledger.history(unit.wal_id)[-1]
    assert (last.actor, last.from_status, last.to_status, last.reason) == ("jane", "pending", "quarantined", "CHG-7")
    assert replay_history(bench.ledger.history(unit.wal_id)) == bench.ledger.get(unit.wal_id)


@pytest.mark.clause("WSM-17")
def test_history_is_append_only_and_nobody_but_the_ledger_appends(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("failed", unit)
    before = bench.ledger.history(unit.wal_id)
    forgery = """
        INTO nodd_wal_transitions (
            wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
        )
        SELECT wal_id, {}, at, 'mallory', from_status, to_status, reason, run_id, attempts, fields
        FROM nodd_wal_transitions WHERE version = 3
    """
    attempts = [
        "UPDATE nodd_wal_transitions SET actor = 'mallory'",
        "DELETE FROM nodd_wal_transitions WHERE version = 1",
        "INSERT " + forgery.format(3),
        "INSERT " + forgery.format(4),
    ]
    if bench.database.dialect == "sqlite":
        attempts.append("INSERT OR REPLACE " + forgery.format(3))
    else:
        attempts.append("TRUNCATE nodd_wal_transitions")
    # What the governance log refers to cannot be truncated in any case.
    refusals = "history_is_append_only|history_is_written_by_the_ledger|referenced in a foreign key constraint"
    for attempt in attempts:
        with pytest.raises(DBAPIError, match=refusals):
            bench.type_by_hand(attempt)
    assert bench.ledger.history(unit.wal_id) == before


@dataclass
class Walk:
    """Three units, and whatever may happen to them; each method takes the units that are chosen."""

    bench: Bench
    units: list[Envelope]
    held: dict[str, Envelope] = field(default_factory=dict)
    """Claimed envelopes, also long after the claim is gone: what a slow worker would settle."""

    def ensure(self, chosen: list[Envelope]) -> None:
        self.bench.ledger.ensure(chosen)

    def claim(self, chosen: list[Envelope]) -> None:
        self.held |= {unit.wal_id: unit for unit in self.bench.claim(*chosen)}

    def succeed(self, chosen: list[Envelope]) -> None:
        self.settle(chosen, finished)

    def fail(self, chosen: list[Envelope]) -> None:
        self.settle(chosen, failed)

    def refuse(self, chosen: list[Envelope]) -> None:
        self.settle(chosen, partial(failed, code="governance_hard_fail"))

    def settle(self, chosen: list[Envelope], end: Callable[[Envelope], Envelope]) -> None:
        mine = [end(self.held[unit.wal_id]) for unit in chosen if unit.wal_id in self.held]
        self.bench.ledger.settle(mine, run_id="run-1")

    def readmit(self, chosen: list[Envelope]) -> None:
        self.bench.ledger.readmit([unit.wal_id for unit in chosen], reason="incident", run_id="replay")

    def retry_due(self, chosen: list[Envelope]) -> None:
        self.bench.ledger.retry_due(now=self.bench.clock.now, limit=len(chosen))

    def lose_run(self, _chosen: list[Envelope]) -> None:
        self.bench.ledger.release_lost(run_ids=["run-1"])

    def expire(self, _chosen: list[Envelope]) -> None:
        self.bench.ledger.release_lost()

    def quarantine(self, chosen: list[Envelope]) -> None:
        statuses = self.bench.ledger.statuses(unit.wal_id for unit in chosen)
        allowed = [wal_id for wal_id, status in statuses.items() if (status, "quarantined") in LEGAL]
        self.bench.ledger.quarantine(allowed, reason_code="person", decision=JANE)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                Walk.ensure,
                Walk.claim,
                Walk.claim,
                Walk.succeed,
                Walk.fail,
                Walk.fail,
                Walk.refuse,
                Walk.readmit,
                Walk.retry_due,
                Walk.lose_run,
                Walk.expire,
                Walk.quarantine,
            ]
        ),
        st.sets(st.integers(0, 2), min_size=1),
        st.integers(0, 2000),
    ),
    min_size=5,
    max_size=30,
)


@pytest.mark.clause("WSM-02", "WSM-17", "WAL-09")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_history_of_any_walk_is_legal_and_rebuilds_the_record(
    bench: Bench, steps: list[tuple[Callable[[Walk, list[Envelope]], None], set[int], int]]
) -> None:
    units = [envelope(next(NUMBERS)) for _ in range(3)]
    ledger = bench.ledger
    walk = Walk(bench, units)
    walk.ensure(units[:2])
    for act, chosen, seconds in steps:
        bench.clock.advance(seconds)
        act(walk, [units[number] for number in sorted(chosen)])
    for unit in units:
        history = ledger.history(unit.wal_id)
        record = ledger.get(unit.wal_id)
        assert (record is None) is (history == [])
        if record is not None:
            assert replay_history(history) == record
            assert {(entry.from_status, entry.to_status) for entry in history} <= LEGAL
            assert record.attempts == sum(entry.to_status == "in_progress" for entry in history) <= 3
            assert record.version == len(history)


def test_a_history_with_a_hole_is_refused(bench: Bench) -> None:
    bench.bring_to("failed", envelope())
    history = bench.ledger.history(envelope().wal_id)
    for broken in (history[1:], history[:1] + history[2:], history[::-1], []):
        with pytest.raises(ValueError, match="history"):
            replay_history(broken)
