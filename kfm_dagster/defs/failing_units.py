"""Failing units on a page: a table with the reason first, and where the console shows each of them.

Belongs here: the form of both, and the console's addresses. Does not belong here: what else a page shows
(`display.py`), or which units fail (`ledger/reports.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ledger.reports import FailingUnit

MAX_TABLE_ROWS = 50
"""Rows of a table in the UI; the artifact holds them all."""
SHOWN_IN_PLACE = 1_000
"""Characters from which on the UI shows Markdown behind a click, and no more where people look."""


def failing_in_run(failing: Sequence[Envelope], *, console: str, run_id: str) -> dict[str, Any]:
    """Return a run's failing units as metadata: a table, and links where it is known where the console is."""
    rows = [
        {
            # In the process that gave it, it is a member of an enum that Dagster does not know.
            "code": str(unit.failure.code),
            "message": unit.failure.message,
            "object_uri": unit.object_uri,
            "attempt": unit.attempt,
            "wal_id": unit.wal_id,
        }
        for unit in failing[:MAX_TABLE_ROWS]
        if unit.failure is not None
    ]
    return _shown(rows, console, every=f"runs/{run_id}")


def failing_of_day(failing: Sequence[FailingUnit], *, console: str, dataset: str) -> dict[str, Any]:
    """Return a day's failing units as metadata: a table, and links where it is known where the console is."""
    rows = [
        {
            "code": unit.code,
            "message": unit.message,
            "object_uri": unit.object_uri,
            "attempt": unit.attempts,
            "wal_id": unit.wal_id,
        }
        for unit in failing
    ]
    return _shown(rows, console, every=f"failures?dataset={dataset}")


def console_links(named: Iterable[tuple[str, str]], console: str) -> dict[str, dg.MarkdownMetadataValue]:
    """Return links to units, each (text, wal_id), as metadata: a table's cell takes none. As many as stand in place."""
    lines: list[str] = []
    for text, wal_id in named if console else ():
        # Nothing in it may end the link's text.
        line = f"- [{text.replace('[', '(').replace(']', ')')}]({console.rstrip('/')}/units/{wal_id})"
        if len("\n".join([*lines, line])) >= SHOWN_IN_PLACE:
            break
        lines.append(line)
    return {"in_console": dg.MetadataValue.md("\n".join(lines))} if lines else {}


def _shown(rows: Sequence[Mapping[str, Any]], console: str, *, every: str) -> dict[str, Any]:
    """Return table and links; `every` is the console's page of all of them."""
    named = ((f"{row['code']}: {row['object_uri'].rpartition('/')[2]}", str(row["wal_id"])) for row in rows)
    shown: dict[str, Any] = {"failing_units": _table(rows), **console_links(named, console)}
    if console and rows:
        shown["all_in_console"] = dg.MetadataValue.url(f"{console.rstrip('/')}/{every}")
    return shown


def _table(rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return a table with the reason first, for a page cuts the rest."""
    return dg.MetadataValue.table(
        [dg.TableRecord(row) for row in rows],
        schema=dg.TableSchema(
            columns=[
                dg.TableColumn("code", "string"),
                dg.TableColumn("message", "string"),
                dg.TableColumn("object_uri", "string"),
                dg.TableColumn("attempt", "int"),
                dg.TableColumn("wal_id", "string"),
            ]
        ),
    )
