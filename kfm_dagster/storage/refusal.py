"""Refusals by the database, isolated by halving the batch, so that other items never fail.

A refusal concerns values that a column, a constraint or a trigger does not accept. If the database does not answer, is
full or busy, the whole batch fails and is retried. Does not belong here: handling refused items.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

import orjson
from sqlalchemy.exc import DBAPIError

from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Transaction, is_conflict

MAX_REASON = 400
"""Characters of a refusal's text: enough for a constraint's name and the refused values."""

_SQLITE = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_POSTGRESQL = frozenset({"22", "23", "54"})
"""Classes of SQLSTATE (PostgreSQL documentation, appendix A): data exception, integrity constraint violation (also of
our triggers), and program limit exceeded (a row too large for its index)."""
_UNWRITABLE = (ValueError, OverflowError, orjson.JSONEncodeError)
"""Errors of Python or the driver for a value that no statement can hold."""

Item = TypeVar("Item")
Written = TypeVar("Written")


def refusal_of(error: Exception) -> str | None:
    """Return why the database refuses the values; None for any other failure."""
    if not isinstance(error, DBAPIError):
        return error_text(error, MAX_REASON) if isinstance(error, _UNWRITABLE) else None
    original = error.orig
    if error.connection_invalidated or is_conflict(error):
        return None
    if (code := getattr(original, "pgcode", None)) is not None:
        is_refusal = code[:2] in _POSTGRESQL
    elif (number := getattr(original, "sqlite_errorcode", None)) is not None:
        # A trigger of the ledger names its rule in an invalid JSON path (`refuse` in storage/macros.py).
        is_refusal = number & 0xFF in _SQLITE or (number == sqlite3.SQLITE_ERROR and "JSON" in str(original))
    else:
        is_refusal = isinstance(original, _UNWRITABLE)
    # The further lines of PostgreSQL's text contain the whole row.
    return str(original).partition("\n")[0][:MAX_REASON] if is_refusal else None


def write_all_but_refused(
    tx: Transaction, items: Sequence[Item], write: Callable[[Sequence[Item]], Written]
) -> tuple[list[Written], list[tuple[Item, str]]]:
    """Write a batch, halving refused parts until each refused item is isolated.

    Returns the results of `write` for the written parts, and each refused item with the database's error text. A
    refused part leaves nothing behind. Raises errors that are not refusals. A single refused item among n costs 2 log n
    writes.
    """
    if not items:
        return [], []
    try:
        with tx.nested():
            return [write(items)], []
    except (DBAPIError, *_UNWRITABLE) as error:
        if (reason := refusal_of(error)) is None:
            raise
        if len(items) == 1:
            return [], [(items[0], reason)]
    middle = len(items) // 2
    first, refused_first = write_all_but_refused(tx, items[:middle], write)
    second, refused_second = write_all_but_refused(tx, items[middle:], write)
    return first + second, refused_first + refused_second
