"""Each end, quarantine and recovery of a unit writes one log event; each quarantine, one governance entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

import pytest
import sqlalchemy as sa

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import GovernanceAction, GovernanceEntry
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.record import HistoryEntry
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.ledger.bench import JANE, Bench, Clock, Events, expected_event, logged, make_bench, with_retry
from kfm_dagster_tests.transactions import own_tx

RUN = "run-1"
TRANSIENT = "storage_unavailable"
FIELDS = {"event", "wal_id", "dataset", "last_error_code", "attempt", "run_id"}


class RollbackError(Exception):
    """Raised by a test to roll back a transaction."""


@dataclass
class Scene:
    """A ledger, a unit, and a unit of a newer version of the same object."""

    bench: Bench
    contracts: ContractRegistry
    unit: Envelope
    newer: Envelope

    def under(self, **retry: Any) -> Self:
        """Continue with contracts of another retry policy; the clock keeps its time."""
        clock = self.bench.clock
        self.bench = make_bench(self.bench.database, with_retry(self.contracts, **retry))
        self.bench.clock.now = clock.now
        return self

    def claimed(self, attempt: int = 1) -> Envelope:
        """Record the unit and claim it for its n-th attempt."""
        [claim] = self.bench.claimed(self.unit)
        while claim.attempt < attempt:
            self.bench.ledger.settle([failed(claim, TRANSIENT)], run_id=RUN)
            self.bench.ledger.requeue([self.unit.wal_id])
            [claim] = self.bench.claim(self.unit)
        return claim

    def quarantine(self, tx: Transaction) -> object:
        return self.bench.ledger.quarantine([self.unit.wal_id], reason_code="odd", decision=JANE, tx=tx)

    def override(self, tx: Transaction, status: Status, action: GovernanceAction) -> object:
        version = {self.unit.wal_id: self.record.version}
        return self.bench.ledger.override(version, from_status=status, action=action, decision=JANE, tx=tx)

    @property
    def record(self) -> Any:
        return self.bench.ledger.get(self.unit.wal_id)

    @property
    def history(self) -> list[HistoryEntry]:
        return list(self.bench.ledger.history(self.unit.wal_id))

    @property
    def entries(self) -> list[GovernanceEntry]:
        return own_tx(self.bench.ledger.log).entries(action=GovernanceAction.QUARANTINE, wal_id=self.unit.wal_id)


def brought_to(status: str) -> Callable[[Scene], object]:
    return lambda scene: scene.bench.bring_to(status, scene.unit)


def superseded(scene: Scene) -> None:
    scene.claimed()
    scene.bench.ledger.ensure([scene.newer])


def expired(scene: Scene, attempt: int = 1) -> None:
    scene.claimed(attempt)
    scene.bench.clock.advance(961)


def switched_off(scene: Scene) -> None:
    expired(scene)
    scene.bench.ledger.switches.engage(scene.unit.dataset, JANE)


Before = Callable[[Scene], object]
Act = Callable[[Scene, Transaction], object]


def attempted(number: int) -> Before:
    return lambda scene: scene.claimed(number)


def calling(name: str, **arguments: Any) -> Act:
    """Return an act that calls a method of the ledger."""
    return lambda scene, tx: getattr(scene.bench.ledger, name)(**arguments, tx=tx)


def ending(end: Callable[[Envelope], Envelope], attempt: int = 1) -> Act:
    """Return an act that settles the unit's attempt with an outcome."""
    return lambda scene, tx: scene.bench.ledger.settle([end(scene.unit.evolve(attempt=attempt))], run_id=RUN, tx=tx)


def failing(code: str, attempt: int = 1) -> Act:
    return ending(lambda unit: failed(unit, code), attempt)


STRICT = {"codes": ["missing_object"], "max_attempts": 1}
EXHAUSTED, ABSENT = "attempts_exhausted", "missing_object"
ROLLED_BACK = {"run_id": RUN, "dataset": "nexrad-l2", "because": "token=geheim"}
RETRY = calling("retry_due", now=Clock.now + timedelta(days=1), limit=9)
WAYS: dict[str, tuple[Any, ...]] = {
    "an attempt fails": (Scene.claimed, failing(ABSENT), ("failed", ABSENT)),
    "a chain is not complete": (
        Scene.claimed,
        ending(lambda unit: finished(unit).evolve(provenance=None)),
        ("failed", "incomplete_chain"),
    ),
    "the last attempt fails": (
        attempted(3),
        failing(TRANSIENT, 3),
        ("failed", TRANSIENT),
        ("quarantined", TRANSIENT, EXHAUSTED),
    ),
    "an error is permanent": (
        Scene.claimed,
        failing("size_zero"),
        ("failed", "size_zero"),
        ("quarantined", "size_zero", EXHAUSTED),
    ),
    "the deadline is over": (
        lambda scene: (scene.under(deadline_seconds=60).claimed(), scene.bench.clock.advance(61)),
        failing(TRANSIENT),
        ("failed", TRANSIENT),
        ("quarantined", TRANSIENT, "deadline_exceeded"),
    ),
    "governance refuses": (
        Scene.claimed,
        failing("governance_hard_fail"),
        ("failed", "governance_hard_fail"),
        ("quarantined", "governance_hard_fail", "the object is not there"),
    ),
    "a superseded unit fails": (
        superseded,
        failing("etag_mismatch"),
        ("failed", "etag_mismatch"),
        ("quarantined", "etag_mismatch", "superseded"),
    ),
    "a newer version is announced": (
        brought_to("pending"),
        lambda scene, tx: scene.bench.ledger.ensure([scene.newer], tx=tx),
        ("quarantined", "superseded", "superseded"),
    ),
    "a newer version of a failure is announced": (
        brought_to("failed"),
        lambda scene, tx: scene.bench.ledger.ensure([scene.newer], tx=tx),
        ("quarantined", ABSENT, "superseded"),
    ),
    "a version is announced late": (
        lambda scene: scene.bench.ledger.ensure([scene.newer]),
        lambda scene, tx: scene.bench.ledger.ensure([scene.unit], tx=tx),
        ("quarantined", "stale_event", "stale_event"),
    ),
    "a run is lost": (
        Scene.claimed,
        calling("release_lost", run_ids=[RUN]),
        ("failed", "worker_lost"),
        ("recovered", "worker_lost"),
    ),
    "the run of a superseded unit is lost": (
        superseded,
        calling("release_lost", run_ids=[RUN]),
        ("failed", "worker_lost"),
        ("quarantined", "worker_lost", "superseded"),
    ),
    "a lease is over": (expired, calling("release_lost"), ("failed", "lease_expired"), ("recovered", "lease_expired")),
    "the lease of the last attempt is over": (
        lambda scene: expired(scene, 3),
        calling("release_lost"),
        ("failed", "lease_expired"),
        ("quarantined", "lease_expired", EXHAUSTED),
    ),
    "a lease is over while the kill switch is on": (switched_off, calling("release_lost"), ("failed", "lease_expired")),
    "a run is rolled back": (
        Scene.claimed,
        calling("release_rolled_back", **ROLLED_BACK),
        ("failed", "run_rolled_back"),
        ("recovered", "run_rolled_back"),
    ),
    "a run is rolled back by an error that is not compensable": (
        Scene.claimed,
        lambda scene, tx: calling("release_rolled_back", **ROLLED_BACK, not_compensable=[scene.unit.wal_id])(scene, tx),
        ("failed", "run_rolled_back"),
        ("quarantined", "run_rolled_back", "not_compensable"),
    ),
    "a retry is due": (brought_to("failed"), RETRY, ("recovered", ABSENT)),
    "a retry is due, but the contract allows no more attempts": (
        lambda scene: (scene.bench.bring_to("failed", scene.unit), scene.under(permanent=STRICT)),
        RETRY,
        ("quarantined", ABSENT, EXHAUSTED),
    ),
    "a redelivery or a replay": (
        brought_to("failed"),
        lambda scene, tx: scene.bench.ledger.requeue([scene.unit.wal_id], reason="incident", run_id="replay", tx=tx),
        ("recovered", ABSENT),
    ),
    "a pending unit is quarantined": (brought_to("pending"), Scene.quarantine, ("quarantined", "odd", JANE.reason)),
    "a failed unit is quarantined": (brought_to("failed"), Scene.quarantine, ("quarantined", ABSENT, JANE.reason)),
    "a person releases": (
        brought_to("quarantined"),
        lambda scene, tx: scene.override(tx, Status.QUARANTINED, GovernanceAction.RELEASE),
        ("recovered", "test"),
    ),
    # The unit had succeeded, so its repetition does not count as a recovery and writes no event.
    "a person repeats a succeeded unit": (
        brought_to("succeeded"),
        lambda scene, tx: scene.override(tx, Status.SUCCEEDED, GovernanceAction.REPEAT),
    ),
    "an attempt succeeds": (Scene.claimed, ending(finished), ("succeeded",)),
}
"""Each start state and call with the expected events: kind, error code and, for a quarantine, the reason."""


@pytest.fixture
def scene(bench: Bench, contracts: ContractRegistry) -> Scene:
    older = envelope(0, sequencer="00A1")
    return Scene(bench, contracts, older, envelope(0, sequencer="00A2", object_version="f" * 32))


@pytest.fixture
def log() -> Iterator[Events]:
    with logged() as events:
        yield events


@pytest.mark.clause("WSM-20", "SEC-02", "TEL-06")
@pytest.mark.parametrize("name", WAYS)
def test_each_committed_change_is_one_event_and_each_quarantine_one_entry(name: str, scene: Scene, log: Events) -> None:
    before, act, *expected = WAYS[name]
    before(scene)
    log.clear()
    changes, entries, database = len(scene.history), len(scene.entries), scene.bench.database
    rows = every_row(database)
    with suppress(RollbackError), database.transaction() as tx:
        act(scene, tx)
        raise RollbackError
    assert log == []
    assert every_row(database) == rows

    with database.transaction() as tx:
        act(scene, tx)
        assert log == []
    new = scene.history[changes:]
    assert [(event["event"], event["last_error_code"]) for event in log] == [(*change, None)[:2] for change in expected]
    assert log == [event for change in new if (event := expected_event(change, scene.unit.dataset))]
    assert all(set(event) == FIELDS | ({"stac_item_id"} if event["event"] == "succeeded" else set()) for event in log)
    written = scene.entries[: len(scene.entries) - entries]
    quarantined = [change for change in new if change.to_status == Status.QUARANTINED]
    assert [(entry.record_version, entry.from_status, entry.to_status, entry.actor) for entry in written] == [
        (change.version, change.from_status, change.to_status, change.actor) for change in quarantined
    ]
    assert [entry.reason for entry in written] == [change[2] for change in expected if change[0] == "quarantined"]


def test_the_table_has_every_error_code_of_the_ledger() -> None:
    covered = {(change[0], code) for _, _, *expected in WAYS.values() for change in expected for code in change[1:]}
    of_ledger = {code.value for code in LedgerCode}
    assert of_ledger - {code for _, code in covered} == set()


@pytest.mark.clause("SEC-04", "TEL-06")
def test_an_event_is_a_json_line_with_unit_and_run_and_without_free_text(scene: Scene, log: Events) -> None:
    claim = scene.claimed()
    error = failed(claim)
    secret = replace(error.integrity.issues[0], message="s3://bucket/key?X-Amz-Signature=geheim of jane@example.org")
    scene.bench.ledger.settle([error.evolve(integrity=replace(error.integrity, issues=(secret,)))], run_id=RUN)
    [record] = log.records
    assert (record.name, record.levelname) == ("kfm_dagster.ledger.events", "WARNING")
    assert json.loads(record.getMessage()).keys() == FIELDS
    assert not any(part in str(vars(record)) for part in ("geheim", "jane", "bucket"))


@pytest.mark.clause("WSM-20")
def test_a_quarantine_logs_a_warning_unless_a_person_decided_it(scene: Scene, log: Events) -> None:
    """The command already prints the decision, so a warning would be noise."""
    scene.bench.bring_to("failed", scene.unit)
    log.records.clear()
    with scene.bench.database.transaction() as tx:
        scene.quarantine(tx)
    scene.bench.ledger.ensure([envelope(1, sequencer="00B2", object_version="b" * 32)])
    scene.bench.ledger.ensure([envelope(1, sequencer="00B1", object_version="a" * 32)])
    assert [(record.event, record.levelname) for record in log.records] == [  # type: ignore[attr-defined]
        ("quarantined", "INFO"),
        ("quarantined", "WARNING"),
    ]


@pytest.mark.clause("WSM-20")
def test_units_released_in_one_call_have_events_with_their_own_reasons(scene: Scene, log: Events) -> None:
    """A named run and a run with an expired lease are released in one call."""
    second = envelope(1)
    expired(scene)
    scene.bench.claimed(second, run_id="run-2")
    scene.bench.ledger.release_lost(run_ids=["run-2"])
    assert sorted(
        (event["event"], event["wal_id"], event["last_error_code"], event["run_id"]) for event in log
    ) == sorted(
        (event, unit.wal_id, code, run_id)
        for unit, code, run_id in ((second, "worker_lost", "run-2"), (scene.unit, "lease_expired", RUN))
        for event in ("failed", "recovered")
    )


@pytest.mark.clause("WSM-20")
def test_events_need_no_additional_sql_statement(bench: Bench, log: Events) -> None:
    def statements(units: list[Envelope]) -> int:
        claimed = bench.claimed(*units)
        log.clear()
        executed: list[str] = []

        def execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            executed.append(statement)

        sa.event.listen(bench.database.engine, "before_cursor_execute", execute)
        bench.ledger.settle([failed(unit, "size_zero") for unit in claimed], run_id=RUN)
        sa.event.remove(bench.database.engine, "before_cursor_execute", execute)
        assert len(log) == 2 * len(units)
        return len(executed)

    assert statements([envelope(0)]) == statements([envelope(number) for number in range(1, 101)])
