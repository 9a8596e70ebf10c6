"""Failing units on a page: a table with the reason first, and links to the console.

Belongs here: the form of both, and the console's addresses. Does not belong here: the rest of a page
(`display.py`), or selecting failing units (`ledger/reports.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ledger.reports import FailingUnit

MAX_TABLE_ROWS = 50
"""Rows of a table in the UI; the artifact has all."""
SHOWN_IN_PLACE = 1_000
"""Characters from which on the UI hides Markdown behind a click."""


def failing_in_run(failing: Sequence[Envelope], *, console: str, run_id: str) -> dict[str, Any]:
    """Return a run's failing units as metadata: a table, and links if `console` is set."""
    rows = [
        {
            # A member of an enum that Dagster does not know, in the process that set it.
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
    """Return a day's failing units as metadata: a table, and links if `console` is set."""
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
    """Return links to units, each (text, wal_id), up to SHOWN_IN_PLACE: table cells take none."""
    lines: list[str] = []
    for text, wal_id in named if console else ():
        # No bracket may end the link's text.
        line = f"- [{text.replace('[', '(').replace(']', ')')}]({console.rstrip('/')}/units/{wal_id})"
        if len("\n".join([*lines, line])) >= SHOWN_IN_PLACE:
            break
        lines.append(line)
    return {"in_console": dg.MetadataValue.md("\n".join(lines))} if lines else {}


def _shown(rows: Sequence[Mapping[str, Any]], console: str, *, every: str) -> dict[str, Any]:
    """Return table and links; `every` is the console's page of all these units."""
    named = ((f"{row['code']}: {row['object_uri'].rpartition('/')[2]}", str(row["wal_id"])) for row in rows)
    shown: dict[str, Any] = {"failing_units": _table(rows), **console_links(named, console)}
    if console and rows:
        shown["all_in_console"] = dg.MetadataValue.url(f"{console.rstrip('/')}/{every}")
    return shown


def _table(rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return a table with the reason first: a page cuts off the other columns."""
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
