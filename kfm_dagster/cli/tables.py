"""Tables of the commands: nothing is cut, and nothing that somebody else wrote is taken for markup.

In a terminal long values fold within its width; in a pipe a row is one line, so that grep finds what it looks for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000
"""Columns of a pipe; a table is only as wide as what stands in it."""
MOST_WHOLE = 32
"""Columns that one whole value may take of a terminal's 80."""


def show_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool = False, whole: Collection[str] = ()
) -> None:
    """Print rows: chosen columns as a table, or every field as one JSON object per line.

    In a terminal `whole` columns are as wide as what stands in them, and other columns give way.
    """
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    console = _console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        widest = max((line[index].cell_len for line in cells), default=0)
        kept = min(max(widest, len(name)), MOST_WHOLE) if name in whole and console.is_terminal else None
        table.add_column(name, overflow="fold", width=kept)
    for line in cells:
        table.add_row(*line)
    console.print(table)


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print named values, one below the other."""
    show_rows(({"field": name, "value": value} for name, value in fields.items()), ("field", "value"))


def show_section(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, whole: Collection[str] = ()
) -> None:
    """Print rows under a title, or that there are none."""
    click.echo(title if rows else f"{title}: none")
    if rows:
        show_rows(rows, columns, whole=whole)


def _cell(value: Any) -> Text:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return Text(text, overflow="fold")


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_ANY_WIDTH)
