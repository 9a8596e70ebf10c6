"""Run-state stores: their protocol, and the relational store (SQLite, PostgreSQL).

Belongs here: the protocol that the contract test suite checks for every store. Does not belong here: the choice of an
environment's store (`choice.py`), and stores outside the database (`object_store.py`, `delta_store.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kfm_dagster.run_state.record import Outcome, RunState, count_write
from kfm_dagster.storage.database import Database, Transaction


class RunStateStore(Protocol):
    """Stores a record per (dataset_id, run_id)."""

    def get(self, dataset_id: str, run_id: str) -> RunState | None:
        """Return the record, or None."""
        ...

    def of_run(self, run_id: str) -> Sequence[RunState]:
        """Return the records of a run's nodes, in the order of writing."""
        ...

    def put(self, record: RunState, tx: Transaction) -> None:
        """Write the record at the caller's commit, unless `is_kept` keeps the earlier record.

        Raises RunStateError, before any write, for an invalid record.
        """
        ...

    def counts(self) -> Mapping[Outcome, int]:
        """Return the number of records by outcome, zeros included."""
        ...


class RelationalRunState:
    """Run-state in the table `run_state` of the project's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, dataset_id: str, run_id: str) -> RunState | None:
        """Return the record, or None."""
        with self._database.snapshot() as tx:
            return tx.row(RunState, "run_state.of_run", dataset_id=dataset_id, run_id=run_id)

    def of_run(self, run_id: str) -> Sequence[RunState]:
        """Return the records of a run's nodes, in the order of writing."""
        with self._database.snapshot() as tx:
            return tx.rows(RunState, "run_state.of_run", run_id=run_id, dataset_id=None)

    def put(self, record: RunState, tx: Transaction) -> None:
        """Write the record in the caller's transaction, unless `is_kept` keeps the earlier record.

        Raises RunStateError for an invalid record.
        """
        if tx.run("run_state.put", record.as_json()).rowcount:
            tx.after_commit(lambda: count_write(record.outcome))

    def counts(self) -> Mapping[Outcome, int]:
        """Return the number of records by outcome, zeros included."""
        with self._database.snapshot() as tx:
            return by_outcome({Outcome(row.outcome): row.records for row in tx.run("run_state.counts")})


def by_outcome(counts: Mapping[Outcome, int]) -> dict[Outcome, int]:
    """Return a count for every outcome."""
    return {outcome: counts.get(outcome, 0) for outcome in Outcome}


def is_kept(current: RunState | None, record: RunState) -> bool:
    """Return whether the existing record must be kept, so that `record` does not replace it.

    A rollback may replace any record, and only a rollback replaces a withdrawn record. Otherwise a success is replaced
    only by work on other inputs, and never by a skip.
    """
    if current is None or record.rolled_back_by is not None:
        return False
    if current.rolled_back_by is not None:
        return True
    same = record.outcome is Outcome.SKIPPED or record.inputs_hash == current.inputs_hash
    return current.outcome is Outcome.SUCCESS and same
