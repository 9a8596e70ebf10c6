"""Queries of the ledger: reads only.

Belongs here: queries with typed results. Does not belong here: changes (`store.py`), messages (`deliveries.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from operator import attrgetter
from typing import Any

from kfm_dagster.contracts.envelope import CLOSED, Envelope, Lane, WalId
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord, record_of
from kfm_dagster.ledger.reports import (
    DayReport,
    FailingUnit,
    FailingUnits,
    Mismatch,
    MoveCount,
    ObjectVersion,
    PendingPartition,
)
from kfm_dagster.ledger.rows import claimed_envelopes
from kfm_dagster.ledger.search import Budget, UnitFilter, walk
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Database, Transaction

FIRST_DAY, LAST_DAY = "0001-01-01", "9999-12-31"
"""Bounds of every partition."""


class LedgerQueries:
    """Reads of the ledger."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, wal_id: str, *, tx: Transaction) -> NoddWalRecord | None:
        """Return a record, or None."""
        row = tx.run("ledger.get", wal_id=wal_id).mappings().one_or_none()
        return None if row is None else record_of(row)

    def history(self, wal_id: str, *, tx: Transaction) -> list[HistoryEntry]:
        """Return every change of a record, oldest first; empty for an unknown id."""
        rows = tx.run("ledger.histories", wal_ids=[wal_id]).mappings().all()
        return [HistoryEntry.model_validate(dict(row)) for row in rows]

    def statuses(self, wal_ids: Iterable[str], *, tx: Transaction) -> dict[WalId, Status]:
        """Return the statuses of units; unknown units are omitted."""
        rows = tx.run("ledger.statuses", wal_ids=sorted(wal_ids)).all()
        return {WalId(row.wal_id): Status(row.status) for row in rows}

    def holds(
        self,
        *,
        dataset: str,
        partition: str,
        statuses: Iterable[Status],
        run_id: str | None = None,
        tx: Transaction,
    ) -> bool:
        """Return whether a partition, or only a run's part of it, has a unit of these statuses."""
        where = {"dataset": dataset, "partition": partition, "run_id": run_id}
        return any(tx.run("ledger.holds", where, status=status.value).scalar_one() for status in statuses)

    def find(self, *, limit: int = 100, tx: Transaction, **criteria: Any) -> list[NoddWalRecord]:
        """Return matching records, newest event first; `criteria` are fields of a UnitFilter."""
        matches = (row for _, row in walk(tx, UnitFilter(**criteria), budget=Budget()) if row and row["is_match"])
        return [record_of(row) for row in itertools.islice(matches, limit)]

    def versions(self, wal_id: str, *, tx: Transaction) -> list[ObjectVersion]:
        """Return the known versions of a unit's object, oldest event first; empty for an unknown id."""
        return tx.rows(ObjectVersion, "ledger.versions_of", wal_id=wal_id)

    def lacking_sidecars(self, uris: Iterable[str], *, tx: Transaction) -> list[Envelope]:
        """Return the objects' units that a sidecar can still complete, as envelopes before any step."""
        rows = tx.run("ledger.lacking_sidecars", uris=sorted(uris))
        return claimed_envelopes(rows)

    def endless_volumes(self, chunks: Iterable[str], *, tx: Transaction) -> list[Envelope]:
        """Return the newest chunk of each volume to close, given the new `chunks`.

        A volume is to be closed if it has no last chunk, is not closed yet, and its radar has a later volume. Only the
        volumes of the new chunks, and the volume before each, are examined. Each returned chunk gets the message of the
        new chunk that led to it.
        """
        rows = tx.run("ledger.endless_volumes", wal_ids=sorted(chunks), closed=CLOSED)
        return claimed_envelopes(rows)

    def pending_by_partition(self) -> list[PendingPartition]:
        """Return the pending work by dataset, partition and lane."""
        with self.database.snapshot() as tx:
            return tx.rows(PendingPartition, "ledger.pending_by_partition")

    def day(self, *, dataset: str, partition: str) -> DayReport:
        """Return the statuses and failures of a dataset's day."""
        where = {"dataset": dataset, "partition": partition}
        with self.database.snapshot() as tx:
            counts = self.status_counts(dataset, first=partition, last=partition, tx=tx)
            failing = {row.code: int(row.units) for row in tx.run("ledger.day_failing", where)}
        return DayReport(counts=counts, failing=failing)

    def status_counts(
        self, dataset: str, *, first: str = FIRST_DAY, last: str = LAST_DAY, tx: Transaction
    ) -> dict[Status, int]:
        """Return a dataset's records by status, counted over days `first` to `last`, with zeros."""
        rows = tx.run("ledger.status_counts", dataset=dataset, first=first, last=last)
        return dict.fromkeys(Status, 0) | {Status(row.status): int(row.units) for row in rows}

    def failing_of_day(self, *, dataset: str, partition: str, limit: int) -> list[FailingUnit]:
        """Return a day's units that need attention (`DayReport.failing`), quarantined units first."""
        where = {"dataset": dataset, "partition": partition, "limit": limit}
        with self.database.snapshot() as tx:
            return tx.rows(FailingUnit, "ledger.day_failing_units", where)

    def failing(self, *, tx: Transaction) -> list[FailingUnits]:
        """Return all units that need attention (`DayReport.failing`), by dataset and code."""
        return tx.rows(FailingUnits, "ledger.failing")

    def oldest_waiting(self, *, tx: Transaction) -> datetime | None:
        """Return when the first of the units that wait for an attempt was discovered, or None."""
        discovered: datetime | None = tx.run("ledger.oldest_waiting").scalar_one()
        return discovered

    def counts(self, *, tx: Transaction) -> dict[str, dict[Status, int]]:
        """Return the number of records by dataset and status, zeros included."""
        counts: dict[str, dict[Status, int]] = {}
        for row in tx.run("ledger.counts"):
            counts.setdefault(row.dataset, dict.fromkeys(Status, 0))[Status(row.status)] = row.units
        return dict(sorted(counts.items()))

    def in_progress_runs(self) -> list[str]:
        """Return the runs that hold claims."""
        with self.database.snapshot() as tx:
            return list(tx.run("ledger.in_progress_runs").scalars())

    def in_flight(self, lane: Lane | None = None, *, today: date) -> int:
        """Return the number of units in flight, of days not after `today`, in a lane or in both."""
        with self.database.snapshot() as tx:
            return int(tx.run("ledger.in_flight", lane=lane, today=today.isoformat()).scalar_one())

    def succeeded_of_run(self, run_id: str, wal_ids: Iterable[str], *, tx: Transaction) -> dict[WalId, int]:
        """Return the units of `wal_ids` whose last change is a success in this run, with versions."""
        rows = tx.run("ledger.statuses", wal_ids=sorted(wal_ids)).all()
        return {
            WalId(row.wal_id): row.version
            for row in rows
            if row.status == Status.SUCCEEDED and row.ingest_run_id == run_id
        }

    def mismatches(self, *, limit: int = 100) -> list[Mismatch]:
        """Return the results that differ from the result of an earlier success, newest first."""
        with self.database.snapshot() as tx:
            return tx.rows(Mismatch, "ledger.mismatches", limit=limit)

    def mismatch_counts(self, *, tx: Transaction) -> dict[str, int]:
        """Return by dataset the number of unpermitted differences from an earlier success."""
        return {row.dataset: int(row.mismatches) for row in tx.run("ledger.mismatch_counts")}

    def pending_units(self, *, tx: Transaction) -> list[Any]:
        """Return by dataset the number of pending units, and when the first of them became pending."""
        return list(tx.run("ledger.pending_units"))

    def waiting(self, *, tx: Transaction) -> dict[str, Any]:
        """Return quantiles of the event times of live units in flight, by queue."""
        return {row.queue: row for row in tx.run("ledger.waiting")}

    def move_counts(self, *, tx: Transaction) -> list[MoveCount]:
        """Return the numbers of transitions by dataset, status, replay reason and attempt."""
        counts = [MoveCount.of(row) for row in tx.run("totals.read") if row.metric == "nodd_wal_moves"]
        return sorted(counts, key=attrgetter("dataset", "to_status", "replay_reason", "attempt"))

    def replay_reasons(self, *, tx: Transaction) -> Mapping[str, str]:
        """Return the vocabulary of replay reasons with their meaning."""
        return {row.code: row.meaning for row in tx.run("ledger.replay_reasons")}
