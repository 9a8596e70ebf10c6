"""The ledger keeps its rules under random sequences of actions by two runs, recovery and a person.

The actions run on both databases, one after the other; `simulation/` tests crashes and concurrency.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Envelope, Lane
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ledger.record import NoddWalRecord, replay_history
from kfm_dagster.ledger.state_machine import LEGAL, Status
from kfm_dagster_tests.factories import PERSON, envelope, failed, finished
from kfm_dagster_tests.ledger.bench import JANE, Bench, counted, expected_event, logged
from kfm_dagster_tests.transactions import own_tx

NUMBERS = itertools.count()
"""Different units for each Hypothesis example, since examples share a database."""
RUNS = ("run-1", "run-2")
DATASET = "nexrad-l2"
CLAIM_LOST = FenceIssue.CLAIM_LOST
MAX_ATTEMPTS = 3
LEAVING = {("succeeded", "pending"), ("quarantined", "pending")}


@dataclass(kw_only=True)
class Walk:
    """Three units and the actions on these units; each action gets some of the units and a run."""

    bench: Bench
    units: Sequence[Envelope]
    held: dict[tuple[str, str], list[Envelope]] = field(default_factory=lambda: defaultdict(list))
    """Every claimed envelope by run and unit, oldest first. It stays after its claim has ended, because a slow worker
    still writes and settles it, even after the worker's own run claimed the unit again."""
    is_switched_off: bool = False

    def ensure(self, chosen: list[Envelope], _run: str) -> None:
        self.bench.ledger.ensure(chosen)

    def backfill(self, chosen: list[Envelope], _run: str) -> None:
        created = self.bench.ledger.ensure(chosen, lane=Lane.BULK).created
        assert {self.record(wal_id).lane for wal_id in created} <= {Lane.BULK}

    def claim(self, chosen: list[Envelope], run: str) -> None:
        claimed = self.bench.claim(*chosen, run_id=run)
        assert not (claimed and self.is_switched_off)
        assert [unit.lane for unit in claimed] == sorted((unit.lane for unit in claimed), key=list(Lane).index)
        for unit in claimed:
            self.held[run, unit.wal_id].append(unit)

    def write(self, chosen: list[Envelope], run: str) -> None:
        """Check the fence: it accepts only the run's current claims, and none while the dataset is switched off."""
        for claimed in self.claims(chosen, run):
            with self.bench.database.transaction() as tx:
                refused = self.bench.ledger.leases.fence(run)(tx, {claimed.wal_id: claimed.attempt})
            refusal = FenceIssue.KILL_SWITCH if self.is_switched_off else None
            expected = refusal if self.is_held(claimed, run) else CLAIM_LOST
            assert refused.get(claimed.wal_id) == expected

    def renew(self, chosen: list[Envelope], run: str) -> None:
        """Renew the lease: only current claims are extended."""
        for claimed in self.claims(chosen, run):
            held = self.is_held(claimed, run)
            assert self.bench.ledger.leases.renew(run, {claimed.wal_id: claimed.attempt}) == held

    def succeed(self, chosen: list[Envelope], run: str) -> None:
        self.settle(chosen, run, finished)

    def fail(self, chosen: list[Envelope], run: str) -> None:
        self.settle(chosen, run, failed)

    def refuse(self, chosen: list[Envelope], run: str) -> None:
        self.settle(chosen, run, partial(failed, code="governance_hard_fail"))

    def settle(self, chosen: list[Envelope], run: str, end: Callable[[Envelope], Envelope]) -> None:
        # Old claims first: a ledger that mistook an old claim for the current one would then settle the unit too early.
        for unit in self.claims(chosen, run):
            before, held = self.record(unit.wal_id), self.is_held(unit, run)
            report = self.bench.ledger.settle([end(unit)], run_id=run)
            # The run's own success does not count as lost.
            own = (before.status, before.ingest_run_id) == (Status.SUCCEEDED, run)
            assert (unit.wal_id in report.lost) is not (held or own)
            assert held or self.record(unit.wal_id) == before

    def requeue(self, chosen: list[Envelope], _run: str) -> None:
        moved = self.bench.ledger.requeue([unit.wal_id for unit in chosen], reason="incident", run_id="replay")
        assert not (moved and self.is_switched_off)
        assert {self.record(wal_id).lane for wal_id in moved} <= {Lane.BULK}
        assert {self.bench.successor(wal_id) for wal_id in moved} <= {None}

    def retry_due(self, chosen: list[Envelope], _run: str) -> None:
        self.bench.ledger.retry_due(now=self.bench.clock.now, limit=len(chosen))

    def lose_run(self, _chosen: list[Envelope], run: str) -> None:
        self.bench.ledger.release_lost(run_ids=[run])
        assert run not in self.bench.ledger.in_progress_runs()

    def expire(self, _chosen: list[Envelope], _run: str) -> None:
        valid = {
            lease.run_id for lease in own_tx(self.bench.ledger.leases).all() if lease.expires_at >= self.bench.clock.now
        }
        holding = set(self.bench.ledger.in_progress_runs())
        self.bench.ledger.release_lost()
        assert set(self.bench.ledger.in_progress_runs()) == holding & valid

    def quarantine(self, chosen: list[Envelope], _run: str) -> None:
        statuses = self.bench.ledger.statuses(unit.wal_id for unit in chosen)
        allowed = [wal_id for wal_id, status in statuses.items() if (status, "quarantined") in LEGAL]
        self.bench.ledger.quarantine(allowed, reason_code="person", decision=JANE)

    def release(self, chosen: list[Envelope], _run: str) -> None:
        self.override(chosen, Status.QUARANTINED, GovernanceAction.RELEASE)

    def repeat(self, chosen: list[Envelope], _run: str) -> None:
        self.override(chosen, Status.SUCCEEDED, GovernanceAction.REPEAT)

    def override(self, chosen: list[Envelope], status: Status, action: GovernanceAction) -> None:
        records = [record for unit in chosen if (record := self.bench.ledger.get(unit.wal_id)) is not None]
        # A decision on an outdated version changes nothing.
        late = {record.wal_id: record.version - 1 for record in records if record.version > 1}
        ledger = self.bench.ledger
        assert not own_tx(ledger).override(late, from_status=status, action=action, decision=JANE)
        moved = own_tx(ledger).override(
            {record.wal_id: record.version for record in records}, from_status=status, action=action, decision=JANE
        )
        assert moved == {record.wal_id for record in records if record.status == status}

    def switch(self, _chosen: list[Envelope], _run: str) -> None:
        change = self.bench.ledger.switches.release if self.is_switched_off else self.bench.ledger.switches.engage
        change(DATASET, PERSON)
        self.is_switched_off = not self.is_switched_off

    def claims(self, chosen: list[Envelope], run: str) -> list[Envelope]:
        return [claimed for unit in chosen for claimed in self.held[run, unit.wal_id]]

    def is_held(self, unit: Envelope, run: str) -> bool:
        record = self.record(unit.wal_id)
        return (record.status, record.ingest_run_id, record.attempts) == (Status.IN_PROGRESS, run, unit.attempt)

    def record(self, wal_id: str) -> NoddWalRecord:
        return self.bench.ledger.get(wal_id)


ACTS = (
    Walk.ensure,
    Walk.backfill,
    *[Walk.claim] * 6,
    *[Walk.write] * 3,
    Walk.renew,
    *[Walk.succeed] * 2,
    *[Walk.fail] * 3,
    Walk.refuse,
    Walk.requeue,
    *[Walk.retry_due] * 3,
    *[Walk.lose_run] * 2,
    *[Walk.expire] * 2,
    Walk.quarantine,
    *[Walk.release] * 2,
    Walk.repeat,
    Walk.switch,
)
SECONDS = (0, 0, 0, 40, 400, 1200)
"""Seconds before an action: none, shorter than a backoff, longer than a backoff, longer than a lease (960 s)."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTS),
        st.sets(st.integers(0, 2), min_size=1),
        st.sampled_from(RUNS),
        st.sampled_from(SECONDS),
    ),
    min_size=20,
    max_size=40,
)


@pytest.mark.clause("WSM-19", "WSM-02", "WSM-16", "WSM-17", "WSM-20", "WAL-09", "WAL-10", "WAL-12", "TEL-03", "BEY-02")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_sequence_of_actions_keeps_the_rules_and_the_history_rebuilds_each_record(
    bench: Bench, steps: list[tuple[Callable[[Walk, list[Envelope], str], None], set[int], str, int]]
) -> None:
    first = next(NUMBERS)
    units = [
        envelope(first, sequencer="00A1"),
        envelope(next(NUMBERS)),
        envelope(first, sequencer="00A2", object_version="f" * 32),  # the first unit's object, overwritten
    ]
    walk = Walk(bench=bench, units=units)
    with logged() as events:
        walk.ensure(units[:2], RUNS[0])
        for act, chosen, run, seconds in steps:
            bench.clock.advance(seconds)
            act(walk, [units[number] for number in sorted(chosen)], run)
    for unit in units:
        check(bench, unit.wal_id, [event for event in events if event["wal_id"] == unit.wal_id])
    if walk.is_switched_off:
        walk.switch([], RUNS[0])
    balance = bench.deliveries.conservation()
    assert (balance.residual_units, balance.residual_messages) == (0, 0)
    assert bench.ledger.move_counts() == counted(bench.database)


def check(bench: Bench, wal_id: str, events: list[dict[str, Any]]) -> None:
    """Check the rules that hold for a unit after any actions."""
    history = bench.ledger.history(wal_id)
    record = bench.ledger.get(wal_id)
    assert (record is None) is (history == [])
    if record is None:
        return
    assert replay_history(history) == record
    assert record.version == len(history)
    changes = [(entry.from_status, entry.to_status) for entry in history]
    overrides = [entry.version for entry in history if (entry.from_status, entry.to_status) in LEAVING]
    assert set(changes) <= LEGAL | LEAVING
    # A run that dies with several units uses none of their attempts.
    lost = sum(entry.reason in {"worker_lost", "lease_expired"} for entry in history)
    assert (
        record.attempts == sum(after == "in_progress" for _, after in changes) <= MAX_ATTEMPTS + len(overrides) + lost
    )
    assert events == [event for entry in history if (event := expected_event(entry, DATASET))]
    decided = own_tx(bench.ledger.log).entries(wal_id=wal_id, limit=1000)
    assert sorted(entry.record_version or 0 for entry in decided if entry.action == GovernanceAction.QUARANTINE) == [
        entry.version for entry in history if entry.to_status == Status.QUARANTINED
    ]
    assert set(overrides) <= {entry.record_version for entry in decided if entry.change_ref == JANE.change_ref}
    superseded = [version for version in bench.ledger.versions(wal_id) if version.superseded_by is not None]
    assert all(version.sequencer == "00A1" for version in superseded)
    assert len(superseded) == (len(bench.ledger.versions(wal_id)) > 1)
