"""A ledger for tests, with a fixed clock and shortcuts to any state."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import Retry
from kfm_dagster.governance.log import Decision
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord
from kfm_dagster.ledger.reports import MoveCount
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import bring, with_section
from kfm_dagster_tests.transactions import own_tx

DAY = "2025-12-03"
EVENTS = "kfm_dagster.ledger.events"
JANE = Decision(actor="jane", reason="looked at it", change_ref="CHG-2")
LEGAL = {
    (None, "pending"),
    ("pending", "in_progress"),
    ("in_progress", "succeeded"),
    ("in_progress", "failed"),
    ("failed", "pending"),
    ("pending", "quarantined"),
    ("failed", "quarantined"),
}
"""The transitions that need no person (NODD WAL state machine, section 3), repeated here so that code and test do not
share errors."""
HISTORY_BY_MOVE = """
    SELECT dataset, to_status, replay_reason, attempt, count(*) AS moves
    FROM (
        SELECT
            record.dataset, entry.to_status,
            CASE entry.to_status WHEN 'pending' THEN coalesce(entry.fields ->> 'replay_reason', '') ELSE '' END
                AS replay_reason,
            CASE entry.to_status WHEN 'in_progress' THEN entry.attempts ELSE 0 END AS attempt
        FROM nodd_wal_transitions AS entry
        INNER JOIN nodd_wal_records AS record ON entry.wal_id = record.wal_id
    ) AS moved
    GROUP BY dataset, to_status, replay_reason, attempt
    ORDER BY dataset, to_status, replay_reason, attempt
"""


@dataclass
class Clock:
    """A clock that only moves by `advance`."""

    now: datetime = datetime(2025, 12, 3, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Bench:
    """A ledger with database, clock, and shortcuts to any state, each in its own transaction."""

    database: Database
    ledger: Any
    deliveries: Any
    clock: Clock

    def claim(self, *units: Envelope, run_id: str = "run-1") -> list[Envelope]:
        claimed: list[Envelope] = self.ledger.claim(
            dataset="nexrad-l2",
            partition=DAY,
            run_id=run_id,
            limit=len(units) or 100_000,
            wal_ids=[unit.wal_id for unit in units] or None,
        )
        return claimed

    def claimed(self, *units: Envelope, run_id: str = "run-1") -> list[Envelope]:
        """Record new units, and claim them."""
        self.ledger.ensure(units)
        return self.claim(*units, run_id=run_id)

    def bring_to(self, status: str, unit: Envelope) -> NoddWalRecord:
        """Record the unit and bring it to a status by legal transitions; return its record."""
        bring(self.ledger, status, [unit])
        record: NoddWalRecord = self.ledger.get(unit.wal_id)
        return record

    def successor(self, wal_id: str) -> str | None:
        """Return the unit that supersedes a unit."""
        [own] = [version for version in self.ledger.versions(wal_id) if version.wal_id == wal_id]
        return own.superseded_by

    def type_by_hand(self, sql: str, **parameters: Any) -> int:
        """Run SQL as from a database shell; return the number of rows."""
        with self.database.engine.begin() as connection:
            return connection.execute(sa.text(sql), parameters).rowcount

    def ask(self, sql: str, **parameters: Any) -> list[Any]:
        with self.database.engine.begin() as connection:
            return list(connection.execute(sa.text(sql), parameters).mappings())


def counted(database: Database) -> list[MoveCount]:
    """Count the transitions in the whole history, to compare with `Ledger.move_counts`."""
    with database.engine.begin() as connection:
        return [
            MoveCount(**{**row, "to_status": Status(row["to_status"]), "moves": int(row["moves"])})
            for row in connection.execute(sa.text(HISTORY_BY_MOVE)).mappings()
        ]


class Events(list[dict[str, Any]]):
    """The ledger's events, oldest first, and their log records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def handle(self, record: logging.LogRecord) -> None:
        fields = json.loads(record.getMessage())
        # The attributes of the log record, which formatters use, equal the fields of its JSON text.
        assert fields.items() <= vars(record).items()
        self.append(fields)
        self.records.append(record)


@contextmanager
def logged() -> Iterator[Events]:
    """Collect the ledger's events of every level."""
    events = Events()
    logger, listener = logging.getLogger(EVENTS), logging.NullHandler()
    listener.handle = events.handle
    level = logger.level
    logger.addHandler(listener)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    try:
        yield events
    finally:
        logger.setLevel(level)
        logger.propagate = True
        logger.removeHandler(listener)


def expected_event(change: HistoryEntry, dataset: str) -> dict[str, Any] | None:
    """Return the event expected for a change of the history, or None."""
    if change.to_status in {"succeeded", "failed", "quarantined"}:
        event = str(change.to_status)
    elif change.to_status == "pending" and change.from_status in {"failed", "quarantined"}:
        event = "recovered"
    else:
        return None
    fields = {
        "event": event,
        "wal_id": change.wal_id,
        "dataset": dataset,
        "last_error_code": change.fields["last_error_code"],
        "attempt": change.attempts,
        "run_id": change.run_id,
    }
    return fields | {"stac_item_id": change.fields["stac_item_id"]} if event == "succeeded" else fields


def make_bench(database: Database, contracts: ContractRegistry, **more: Any) -> Bench:
    clock = Clock()
    ledger = Ledger(database, registry=without_jitter(contracts), worker_id="worker-1", clock=clock, **more)
    return Bench(database, own_tx(ledger), own_tx(Deliveries(database, clock=clock)), clock)


def with_retry(contracts: ContractRegistry, **retry: Any) -> ContractRegistry:
    """Return the contracts with another retry policy."""
    policies = {contract.id: Retry(**contract.retry.model_dump() | retry) for contract in contracts}
    return ContractRegistry.of([contract.model_copy(update={"retry": policies[contract.id]}) for contract in contracts])


def without_jitter(contracts: ContractRegistry) -> ContractRegistry:
    """Return the contracts with backoffs that are not randomised."""
    waits = {contract.id: contract.retry.backoff.model_copy(update={"kind": "exp"}) for contract in contracts}
    return ContractRegistry.of([with_section(contract, "retry", backoff=waits[contract.id]) for contract in contracts])
