"""Named SQL statements and numbered migrations, read from `sql/`.

`sql/queries/<room>.sql` holds blocks that begin with `-- name: identifier`; parameters are SQLAlchemy's `:name`. One
text is for both databases (`macros.py`); where two forms remain, each says under its name which database it is for, and
why. `sql/queries/duckdb` has what DuckDB answers, and `sql/schema` the migrations. Nothing here talks to a database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from sqlalchemy import TextClause, text

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage import macros

DIALECTS = ("sqlite", "postgresql")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One numbered step of the schema, as statements of one database."""

    number: int
    name: str
    statements: tuple[str, ...]


def sql_root() -> Traversable:
    """Return the folder `sql/`: inside the wheel when installed, beside the package in a checkout."""
    bundled = resources.files("kfm_dagster") / "_bundled" / "sql"
    return bundled if bundled.is_dir() else Path(__file__).resolve().parents[2] / "sql"


@cache
def statement(dialect: str, name: str) -> TextClause:
    """Return the statement `room.identifier` for a dialect. Raises ConfigurationError when there is none."""
    room, identifier = name.split(".", 1)
    forms = _blocks("queries/duckdb" if dialect == "duckdb" else "queries", room).get(identifier, {})
    if (form := forms.get(dialect) or forms.get(None)) is None:
        raise ConfigurationError("there is no such SQL statement", observed=f"{name} for {dialect}")
    return text(macros.render(form, dialect))


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a dialect in order; numbers are 1, 2, 3 ... without a hole."""
    found = [
        Migration(
            number=int(match[1]),
            name=match[2],
            statements=tuple(macros.statements(entry.read_text(encoding="utf-8"), dialect)),
        )
        for entry in (sql_root() / "schema").iterdir()
        if (match := _MIGRATION.match(entry.name))
    ]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ConfigurationError("migrations are not numbered without a hole", observed="sql/schema")
    return tuple(found)


def read_all_sql() -> None:
    """Read every statement and migration of every dialect, so that this process and its forks keep them as they are.

    Raises ConfigurationError when migrations are not numbered without a hole.
    """
    for folder in ("queries", "queries/duckdb"):
        for file in (sql_root() / folder).iterdir():
            if file.name.endswith(".sql"):
                _blocks(folder, file.name.removesuffix(".sql"))
    for known in DIALECTS:
        migrations(known)


@cache
def _blocks(folder: str, room: str) -> dict[str, dict[str | None, str]]:
    """Return the forms of each statement of a room, by the database that it is for alone."""
    file = sql_root() / folder / f"{room}.sql"
    if not file.is_file():
        return {}
    parts = _NAME.split(file.read_text(encoding="utf-8"))
    found: dict[str, dict[str | None, str]] = {}
    for identifier, block in zip(parts[1::2], parts[2::2], strict=True):
        found.setdefault(identifier, {})[macros.only_for(block)] = block.strip().rstrip(";")
    return found
