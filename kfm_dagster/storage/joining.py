"""Joining the caller's transaction: the one that is given, or one of our own. Nothing else belongs here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from kfm_dagster.storage.database import Database, Transaction


def reading(database: Database, tx: Transaction | None) -> AbstractContextManager[Transaction]:
    """Read in the given transaction, or in a snapshot of its own."""
    return database.snapshot() if tx is None else nullcontext(tx)


def writing(database: Database, tx: Transaction | None) -> AbstractContextManager[Transaction]:
    """Write in the given transaction, which its owner commits, or in one that is committed at the end of the block."""
    return database.transaction() if tx is None else nullcontext(tx)
