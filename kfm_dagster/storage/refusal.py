"""What a database refuses of a batch, found by halving: one value never costs the others their place.

A refusal is about what was given: a value that no column takes, a constraint, a trigger. That the database does not
answer, is full or busy is none; a batch meets it as a whole, and comes again. Does not belong here: what becomes of
that which is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import orjson
from sqlalchemy.exc import DBAPIError

from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Transaction, is_conflict

MAX_REASON = 400
"""Characters of a refusal's text: enough for the name of a constraint and what it was about."""

_SQLITE = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_POSTGRESQL = frozenset({"22", "23", "54"})
"""Classes of SQLSTATE (PostgreSQL documentation, appendix A): data exception, integrity constraint violation, which a
trigger of ours raises, too, and program limit exceeded (a row too large for its index)."""
_UNWRITABLE = (ValueError, OverflowError, orjson.JSONEncodeError)
"""A value that has no form in a statement at all, which Python or the driver says before the database could."""

Item = TypeVar("Item")
Written = TypeVar("Written")


class Refused(NamedTuple, Generic[Item]):
    """An item that the database refuses by itself, and its words."""

    item: Item
    reason: str


def refusal_of(error: Exception) -> str | None:
    """Return what the database has against the values it was given; None for any other failure."""
    if not isinstance(error, DBAPIError):
        return error_text(error, MAX_REASON) if isinstance(error, _UNWRITABLE) else None
    original = error.orig
    if error.connection_invalidated or is_conflict(error):
        return None
    if (code := getattr(original, "pgcode", None)) is not None:
        refused = code[:2] in _POSTGRESQL
    elif (number := getattr(original, "sqlite_errorcode", None)) is not None:
        # A trigger of the ledger says its rule in a JSON path that is none (`refuse` in storage/macros.py).
        refused = number & 0xFF in _SQLITE or (number == sqlite3.SQLITE_ERROR and "JSON" in str(original))
    else:
        refused = isinstance(original, _UNWRITABLE)
    # PostgreSQL's further lines hold the whole row.
    return str(original).partition("\n")[0][:MAX_REASON] if refused else None


def write_all_but_refused(
    tx: Transaction, items: Sequence[Item], write: Callable[[Sequence[Item]], Written]
) -> tuple[list[Written], list[Refused[Item]]]:
    """Write a batch, in halves where it is refused, until what the database refuses stands alone.

    Returns what `write` returned for the parts, and what was left out. A part that was refused leaves nothing behind.
    Raises whatever is no refusal. One item among n costs 2 log n writes.
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
            return [], [Refused(items[0], reason)]
    middle = len(items) // 2
    first, refused_first = write_all_but_refused(tx, items[:middle], write)
    second, refused_second = write_all_but_refused(tx, items[middle:], write)
    return first + second, refused_first + refused_second
