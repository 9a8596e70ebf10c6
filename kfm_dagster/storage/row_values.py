"""Rows to values: a dataclass built from a row whose columns have the names of its fields.

Does not belong here: which columns have times or JSON, by the schema (`statements.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import date, datetime
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_READ: Mapping[Any, Callable[[Any], Any]] = {
    # SQLite has no boolean; PostgreSQL gives a sum of integers as numeric, a UUID as an object and bytes as a view.
    bool: bool,
    bytes: bytes,
    int: int,
    str: str,
    date: date.fromisoformat,
    # For times in columns that the schema does not name: results of aggregates.
    datetime: lambda value: datetime.fromisoformat(value) if isinstance(value, str) else value,
    tuple: tuple,
    Sequence: tuple,
    frozenset: frozenset,
}


def value_of(kind: type[T], row: Mapping[Any, Any]) -> T:
    """Build a value of a dataclass from a row; columns without a field are ignored.

    Raises TypeError where a field without a default has no column.
    """
    reading = _reading(cast("Any", kind))
    return kind(
        **{
            name: value if value is None or (read := reading[name]) is None else read(value)
            for name, value in row.items()
            if name in reading
        }
    )


@cache
def _reading(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """Return the decoder of each field's column, None where the value needs none."""
    hints = get_type_hints(kind)
    return {field.name: _reader(hints[field.name]) for field in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    [hint, *others] = [part for part in get_args(hint) if part is not NoneType] if _is_optional(hint) else [hint]
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return None if others else _READ.get(get_origin(hint) or hint)


def _is_optional(hint: Any) -> bool:
    return NoneType in get_args(hint)
