"""Reference of the database: tables and views with columns and constraints, by the schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs_site.text import code, prose, table

SCHEMA = Path(__file__).resolve().parents[1] / "sql" / "schema"
_BEGIN = re.compile(r"^CREATE (TABLE|VIEW) (\w+)")
_COLUMN = re.compile(r"^    (\w+) @?([\w.]+(?:\([^)]*\))?)(.*?),?$")
_CONSTRAINT = re.compile(r"^    CONSTRAINT (\w+)")
_TYPES = {"id": "text", "bigserial": "integer", "serial": "integer", "bigint": "integer"}
"""Names of types on the page, by column macro, if the names differ."""


@dataclass(kw_only=True)
class Table:
    """A table or view; columns are (name, type, may be null, meaning), constraints (name, text)."""

    name: str
    kind: str
    comment: str
    columns: list[tuple[str, str, str, str]] = field(default_factory=list)
    constraints: list[tuple[str, str]] = field(default_factory=list)


def page() -> str:
    """Return the page."""
    lines = [
        "# Tables and views",
        "",
        "The ledger's database, the same on SQLite and PostgreSQL; `time` is in UTC, `json` is decoded when rows are",
        "read. A refusal names the constraint. [Storage backends](../wal/storage-backends.md) describes the rights to",
        "write.",
        "",
    ]
    for entry in tables():
        lines += [f"## {entry.name}", "", *([prose(entry.comment), ""] if entry.comment else [])]
        lines += table(["column", "type", "may be null", "meaning"], entry.columns)
        lines += table(["constraint", "what it prevents"], entry.constraints)
        if entry.kind == "VIEW":
            lines += ["A view. [SQL views](../sql-views.md) lists the views for dashboards.", ""]
    return "\n".join(lines)


def tables() -> list[Table]:
    """Return every table and view of the migrations, in order."""
    by_name: dict[str, Table] = {}
    for migration in sorted(SCHEMA.glob("*.sql")):
        for entry in _tables(migration.read_text(encoding="utf-8").splitlines()):
            by_name[entry.name] = entry
    return list(by_name.values())


def _tables(lines: Iterable[str]) -> Iterator[Table]:
    comment: list[str] = []
    current: Table | None = None
    for line in lines:
        if line.lstrip().startswith("--"):
            comment.append(line.lstrip()[2:].strip())
            continue
        if begun := _BEGIN.match(line):
            current = Table(name=begun[2], kind=begun[1], comment=" ".join(comment))
        elif line.startswith(")") or line.rstrip().endswith(";"):
            if current is not None:
                yield current
            current = None
        elif current is not None and current.kind == "TABLE":
            _member(current, line, " ".join(comment))
        comment = []


def _member(of: Table, line: str, comment: str) -> None:
    if constraint := _CONSTRAINT.match(line):
        of.constraints.append((code(constraint[1]), prose(comment)))
    elif (column := _COLUMN.match(line)) and column[1].islower():
        kind = column[2].partition("(")[0]
        nullable = "" if "NOT NULL" in column[3] or kind.endswith("serial") else "yes"
        of.columns.append((code(column[1]), _TYPES.get(kind, kind), nullable, prose(comment)))
