"""The database's stores for tests, with each call in its own transaction."""

from __future__ import annotations

from inspect import signature
from typing import Any

from kfm_dagster.storage.database import Database

READS = (
    "all counts engaged entries failing find get head history holds mismatch_counts move_counts newest of of_run off "
    "oldest_waiting replay_reasons since statuses units versions waiting"
)


class _OwnTransactions:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._database: Database = getattr(store, "database", None) or store._database

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if not callable(member) or "tx" not in signature(member).parameters:
            return member

        def call(*arguments: Any, **more: Any) -> Any:
            if "tx" in more:
                return member(*arguments, **more)
            with self._database.snapshot() if name in READS.split() else self._database.transaction() as tx:
                return member(*arguments, tx=tx, **more)

        return call


def own_tx(store: Any) -> Any:
    """Return a store whose methods open a transaction if none is passed."""
    return _OwnTransactions(store)
