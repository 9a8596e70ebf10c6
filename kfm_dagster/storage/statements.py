"""Named SQL statements and numbered migrations, read from `sql/`.

`sql/queries/<room>.sql` contains blocks that begin with `-- name: identifier`; parameters are SQLAlchemy's `:name`. One
text serves both databases (`macros.py`); if a statement has two forms, each form names its database and the reason.
`sql/queries/duckdb` has the statements for DuckDB, `sql/queries/pgstac` the statements for the database of a STAC API,
and `sql/schema` the migrations. Nothing here accesses a database.

Result columns are decoded by name: the names of `@time` and `@json` columns of the tables and views that the statement
names, and every name that ends in `_at`. So a query must not rename such columns. `value_of` builds a dataclass from a
row whose columns have the names of the fields.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from enum import Enum
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import JSON, DateTime, Dialect, Executable, TextClause, TypeDecorator, text
from sqlalchemy.types import TypeEngine

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage import macros

DIALECTS = ("sqlite", "postgresql")
FOLDERS = {"duckdb": "queries/duckdb", "pgstac": "queries/pgstac"}
"""Folders of the statements for other databases."""
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_(\w+)\.sql$")
_TABLE = re.compile(r"^(?:CREATE|ALTER) TABLE (\w+)", re.MULTILINE)
_VIEW = re.compile(r"^CREATE VIEW (\w+) AS$(.*?);$", re.MULTILINE | re.DOTALL)
_DECODED = re.compile(r"(\w+) @(time|json)\b")
_WRITE = re.compile(r"^(?:INSERT|UPDATE|DELETE)\b(?!.*\bRETURNING\b)", re.MULTILINE | re.DOTALL)
"""A statement that returns no rows."""


class UtcTime(TypeDecorator[datetime]):
    """A time; PostgreSQL returns it in the zone of the session, SQLite stores text in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the time in UTC."""
        return None if value is None else value.astimezone(UTC)


_TYPES: dict[str, TypeEngine[Any]] = {
    "time": DateTime(timezone=True).with_variant(UtcTime(), "postgresql"),
    "json": JSON(),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """A numbered step of the schema, as statements of a database."""

    number: int
    name: str
    statements: tuple[str, ...]


def sql_root() -> Traversable:
    """Return the folder `sql/`: inside an installed wheel, or beside the package in a checkout."""
    bundled = resources.files("kfm_dagster") / "_bundled" / "sql"
    return bundled if bundled.is_dir() else Path(__file__).resolve().parents[2] / "sql"


@cache
def statement(dialect: str, name: str) -> TextClause:
    """Return the statement `room.identifier` for a dialect, else raise ConfigurationError."""
    room, identifier = name.split(".", 1)
    forms = _blocks(FOLDERS.get(dialect, "queries"), room).get(identifier, {})
    if (form := forms.get(dialect) or forms.get(None)) is None:
        raise ConfigurationError("unknown SQL statement", observed=f"{name} for {dialect}")
    return text(macros.render(form, dialect))


@cache
def typed_statement(dialect: str, name: str) -> Executable:
    """Return the statement for a database, with times in UTC and decoded JSON in its rows."""
    return typed(statement(dialect, name))


def typed(clause: TextClause) -> Executable:
    """Return a statement whose rows have times in UTC and decoded JSON."""
    return clause if _WRITE.search(clause.text) else clause.columns(**decoded_columns(clause.text))


def decoded_columns(statement_text: str) -> dict[str, TypeEngine[Any]]:
    """Return a statement's decoded columns with types; some names may not be in its result."""
    words = sorted(set(re.findall(r"\w+", statement_text)))
    times = {word: _TYPES["time"] for word in words if word == "at" or word.endswith("_at")}
    tables = _decoded()
    return times | {name: kind for word in words for name, kind in tables.get(word, {}).items()}


@cache
def _decoded() -> dict[str, dict[str, TypeEngine[Any]]]:
    columns: dict[str, dict[str, TypeEngine[Any]]] = defaultdict(dict)
    for entry in (sql_root() / "schema").iterdir():
        schema = entry.read_text(encoding="utf-8")
        _, *parts = _TABLE.split(schema)
        for table, body in zip(parts[::2], parts[1::2], strict=True):
            columns[table] |= {column: _TYPES[kind] for column, kind in _DECODED.findall(body)}
        # A view has the columns of the tables that it names.
        for view, body in _VIEW.findall(schema):
            for table in columns.keys() & set(re.findall(r"\w+", body)):
                columns[view] |= columns[table]
    return columns


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a dialect in order; numbers are 1, 2, 3 ... without a hole."""
    steps = [
        Migration(
            number=int(match[1]),
            name=match[2],
            statements=tuple(macros.statements(entry.read_text(encoding="utf-8"), dialect)),
        )
        for entry in (sql_root() / "schema").iterdir()
        if (match := _MIGRATION.match(entry.name))
    ]
    steps.sort(key=lambda migration: migration.number)
    if [migration.number for migration in steps] != list(range(1, len(steps) + 1)):
        raise ConfigurationError("the migrations' numbers have a hole", observed="sql/schema")
    return tuple(steps)


def read_all_sql() -> None:
    """Read all statements and migrations, so that this process and its forks keep this version.

    Raises ConfigurationError when the migrations' numbers have a hole.
    """
    for folder in ("queries", *FOLDERS.values()):
        for file in (sql_root() / folder).iterdir():
            if file.name.endswith(".sql"):
                _blocks(folder, file.name.removesuffix(".sql"))
    for dialect in DIALECTS:
        migrations(dialect)
    _decoded()


@cache
def _blocks(folder: str, room: str) -> dict[str, dict[str | None, str]]:
    """Return each statement's forms in a room's file; a form's key is its database, None: both."""
    file = sql_root() / folder / f"{room}.sql"
    if not file.is_file():
        return {}
    parts = _NAME.split(file.read_text(encoding="utf-8"))
    forms: dict[str, dict[str | None, str]] = {}
    for identifier, block in zip(parts[1::2], parts[2::2], strict=True):
        forms.setdefault(identifier, {})[macros.only_for(block)] = block.strip().rstrip(";")
    return forms


T = TypeVar("T")
_READ: Mapping[Any, Callable[[Any], Any]] = {
    # SQLite has no boolean; PostgreSQL returns a sum of integers as numeric, a UUID as an object and bytes as a view.
    bool: bool,
    bytes: bytes,
    int: int,
    str: str,
    date: date.fromisoformat,
    # For times in columns that the schema does not name, such as results of aggregates.
    datetime: lambda value: datetime.fromisoformat(value) if isinstance(value, str) else value,
    tuple: tuple,
    Sequence: tuple,
    frozenset: frozenset,
}


def value_of(kind: type[T], row: Mapping[Any, Any]) -> T:
    """Build a value of a dataclass from a row; columns without a field are ignored.

    Raises TypeError if a field without a default has no column.
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
    """Return the decoder of each field's column, or None if values need no decoding."""
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
