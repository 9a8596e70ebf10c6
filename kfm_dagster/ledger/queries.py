"""Questions to the ledger: everything that reads and changes nothing.

Belongs here: named queries as typed values. Does not belong here: changes (`store.py`), messages (`deliveries.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.ledger.joining import reading
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord, record_of
from kfm_dagster.ledger.reports import PendingPartition
from kfm_dagster.ledger.rows import as_json, moment
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Database, Transaction


class LedgerQueries:
    """Read access. Every method joins the caller's transaction when one is given."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, wal_id: str, *, tx: Transaction | None = None) -> NoddWalRecord | None:
        """Return a record, or None."""
        with reading(self.database, tx) as view:
            row = view.run("ledger.get", wal_id=wal_id).mappings().one_or_none()
        return None if row is None else record_of(row)

    def history(self, wal_id: str, *, tx: Transaction | None = None) -> list[HistoryEntry]:
        """Return every change of a record, oldest first; empty for an unknown id."""
        with reading(self.database, tx) as view:
            rows = view.run("ledger.history", wal_id=wal_id).mappings().all()
        return [HistoryEntry.model_validate(dict(row)) for row in rows]

    def statuses(self, wal_ids: Iterable[str], *, tx: Transaction | None = None) -> dict[WalId, Status]:
        """Return where the given units stand; an unknown one is left out."""
        with reading(self.database, tx) as view:
            rows = view.run("ledger.statuses", wal_ids=as_json(sorted(wal_ids))).all()
        return {WalId(row.wal_id): Status(row.status) for row in rows}

    def held(self, units: Sequence[Envelope], *, run_id: str, tx: Transaction | None = None) -> frozenset[WalId]:
        """Return those of the claimed units whose claim still stands: nobody has taken it back or settled it."""
        with reading(self.database, tx) as view:
            rows = view.run("ledger.held", wal_ids=as_json([unit.wal_id for unit in units]), run_id=run_id).all()
        attempts = {row.wal_id: row.attempts for row in rows}
        return frozenset(unit.wal_id for unit in units if attempts.get(unit.wal_id) == unit.attempt)

    def find(
        self,
        *,
        dataset: str | None = None,
        status: Status | None = None,
        partition: str | None = None,
        error_code: str | None = None,
        limit: int = 100,
        after: str | None = None,
        tx: Transaction | None = None,
    ) -> list[NoddWalRecord]:
        """Return records in the order of wal_id; the last one's id as `after` gives the next page."""
        with reading(self.database, tx) as view:
            rows = view.run(
                "ledger.find",
                dataset=dataset,
                status=status,
                partition=partition,
                error_code=error_code,
                limit=limit,
                after=after,
            )
            return [record_of(row) for row in rows.mappings()]

    def pending_by_partition(self, *, tx: Transaction | None = None) -> list[PendingPartition]:
        """Return the work that waits, by dataset and partition."""
        with reading(self.database, tx) as view:
            rows = view.run("ledger.pending_by_partition").all()
        return [
            PendingPartition(
                dataset=row.dataset, partition=row.partition_key, units=row.units, oldest=moment(row.oldest)
            )
            for row in rows
        ]

    def counts(self, *, tx: Transaction | None = None) -> dict[str, dict[Status, int]]:
        """Return the number of records by dataset and status; every status is there."""
        found: dict[str, dict[Status, int]] = {}
        with reading(self.database, tx) as view:
            for row in view.run("ledger.counts"):
                found.setdefault(row.dataset, dict.fromkeys(Status, 0))[Status(row.status)] = row.units
        return dict(sorted(found.items()))

    def in_progress_runs(self, *, tx: Transaction | None = None) -> list[str]:
        """Return the runs that hold claims."""
        with reading(self.database, tx) as view:
            return list(view.run("ledger.in_progress_runs").scalars())

    def in_flight(self, *, tx: Transaction | None = None) -> int:
        """Return the number of units that are pending or in progress."""
        with reading(self.database, tx) as view:
            return int(view.run("ledger.in_flight").scalar_one())

    def replay_reasons(self, *, tx: Transaction | None = None) -> Mapping[str, str]:
        """Return the vocabulary of replay reasons with their meaning."""
        with reading(self.database, tx) as view:
            return {row.code: row.meaning for row in view.run("ledger.replay_reasons")}
