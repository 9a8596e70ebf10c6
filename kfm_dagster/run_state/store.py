"""Run-state stores: what every store does, and the relational one (SQLite, PostgreSQL).

Belongs here: the protocol that one contract test suite holds for every store. Does not belong here: which of them an
environment has (`choice.py`), and the ones that live outside the database (`object_store.py`, `delta_store.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.run_state.writes import count_write
from kfm_dagster.storage.database import Database, Transaction


class RunStateStore(Protocol):
    """Keeps one record per (dataset_id, run_id)."""

    def get(self, dataset_id: str, run_id: str) -> RunState | None:
        """Return the record, or None."""
        ...

    def of_run(self, run_id: str) -> Sequence[RunState]:
        """Return every node's record of a run, in the order they were written."""
        ...

    def put(self, record: RunState, tx: Transaction) -> None:
        """Insert or replace the record once the caller's transaction commits; what is kept (`is_kept`) stays.

        Raises RunStateError on a wrong record, before anything is written.
        """
        ...

    def counts(self) -> Mapping[Outcome, int]:
        """Return how many records stand with each outcome, zeros included."""
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
        """Return every node's record of a run, in the order they were written."""
        with self._database.snapshot() as tx:
            return tx.rows(RunState, "run_state.of_run", run_id=run_id, dataset_id=None)

    def put(self, record: RunState, tx: Transaction) -> None:
        """Insert or replace the record as a part of the caller's transaction; what is kept (`is_kept`) stays.

        Raises RunStateError on a wrong record.
        """
        if tx.run("run_state.put", record.as_json()).rowcount:
            tx.after_commit(lambda: count_write(record.outcome))

    def counts(self) -> Mapping[Outcome, int]:
        """Return how many records stand with each outcome, zeros included."""
        with self._database.snapshot() as tx:
            return by_outcome({Outcome(row.outcome): row.records for row in tx.run("run_state.counts")})


def by_outcome(found: Mapping[Outcome, int]) -> dict[Outcome, int]:
    """Return a count for every outcome there is."""
    return {outcome: found.get(outcome, 0) for outcome in Outcome}


def is_kept(standing: RunState | None, record: RunState) -> bool:
    """Tell whether a record must leave the standing one as it is.

    Of a success and of what was taken back nothing is overwritten by other work on the same inputs: a rollback may
    replace both, other inputs a success, and a skip neither.
    """
    if standing is None or record.rolled_back_by is not None:
        return False
    if standing.rolled_back_by is not None:
        return True
    same = record.outcome is Outcome.SKIPPED or record.inputs_hash == standing.inputs_hash
    return standing.outcome is Outcome.SUCCESS and same
