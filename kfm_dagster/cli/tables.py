"""Tables of the commands: ids are never folded, and foreign texts are never read as markup.

In a terminal, and in a pipe where COLUMNS is set, a table has that width: URIs are shortened in the middle, prose folds
between words, then UUIDs are shown by a prefix that every command accepts. A table that still needs more is wider than
the terminal. In any other pipe a row is a single line, so that grep finds whole rows.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kfm_dagster.contracts.identity import SHORTEST_PREFIX, rfc3339
from kfm_dagster.views.view import json_row

_ANY_WIDTH = 10_000
"""Columns of a pipe; a table is only as wide as its content."""
LEAST_URI = 32
"""Columns of a shortened URI: the bucket's beginning, and the end of the key, which distinguishes objects."""
LEAST_PROSE = 16
"""Least width of legible folded prose, in columns."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ELLIPSIS = "…"


def show_rows(rows: Iterable[Any], columns: Sequence[str], *, as_json: bool = False) -> None:
    """Print rows: `columns` as a table, `none` for no rows, or all fields as JSON lines.

    A row is a mapping, a dataclass or a model.
    """
    if as_json:
        for row in rows:
            click.echo(json.dumps(json_row(row)))
        return
    cells = [[_cell(row[name] if isinstance(row, Mapping) else getattr(row, name)) for name in columns] for row in rows]
    if not cells:
        click.echo("none")
        return
    width = _width()
    fitted = _fitted(columns, cells, width)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in fitted:
        table.add_column(column.name, overflow="fold", width=column.width)
    for line in zip(*(column.cells for column in fitted), strict=True):
        table.add_row(*map(Text, line))
    # Never narrower than cells that may not fold: a terminal wraps a wider line without adding characters.
    Console(width=max(width, sum(column.width + 2 for column in fitted) + 1)).print(table)


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print named values, each on a line; nested values follow as indented lines."""
    nested = {name: value for name, value in fields.items() if value and isinstance(value, Mapping | list | tuple)}
    rows = [{"field": name, "value": value} for name, value in fields.items() if name not in nested]
    if rows or not nested:
        show_rows(rows, ("field", "value"))
    for name, value in nested.items():
        # Through JSON, so that YAML gets plain values only.
        plain = json.loads(json.dumps(value, default=str))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=_ANY_WIDTH)
        click.echo(f"{name}:\n{textwrap.indent(text, '  ')}", nl=False)


def show_section(title: str, rows: Sequence[Any], columns: Sequence[str]) -> None:
    """Print rows under a title, or `none`."""
    click.echo(title if rows else f"{title}: none")
    if rows:
        show_rows(rows, columns)


def show_folded(head: str, text: str) -> None:
    """Print a text after `head`, its further lines below its first."""
    click.echo(
        textwrap.fill(
            text,
            max(_width(), len(head) + LEAST_PROSE),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


class _Column:
    """A column fitted to a width: `cells` are the displayed texts, `width` their columns."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name = name
        self.cells = list(cells)
        self.width = self._natural()

    @property
    def uris(self) -> bool:
        """Whether every value is a single URI."""
        return any(self.cells) and all("://" in cell and len(cell.split()) == 1 for cell in self.cells if cell)

    @property
    def uuids(self) -> bool:
        """Whether every value is a UUID."""
        return any(self.cells) and all(_UUID.fullmatch(cell) for cell in self.cells if cell)

    def shorten_uris(self, excess: int) -> int:
        """Cut at most `excess` columns from the middle of each URI; return the columns saved."""
        before, width = self.width, max(len(self.name), LEAST_URI, self.width - excess)
        self.cells = [_without_middle(cell, width) for cell in self.cells]
        self.width = self._natural()
        return before - self.width

    def fold_prose(self, excess: int) -> int:
        """Narrow the column by at most `excess`, down to its longest word; return the columns saved."""
        longest = max((len(word) for cell in self.cells for word in cell.split()), default=0)
        before, self.width = (
            self.width,
            max(len(self.name), min(self.width, max(longest, LEAST_PROSE, self.width - excess))),
        )
        return before - self.width

    def shorten_uuids(self) -> int:
        """Shorten UUIDs to distinct prefixes that commands accept; return the columns saved."""
        whole = set(self.cells)
        length = SHORTEST_PREFIX
        while len({cell[:length] for cell in whole}) < len(whole):
            length += 1
        before, self.cells = self.width, [cell[:length] for cell in self.cells]
        self.width = self._natural()
        return before - self.width

    def _natural(self) -> int:
        return max(len(self.name), *(Text(cell).cell_len for cell in self.cells), 1)


def _fitted(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[_Column]:
    columns = [_Column(name, [line[index] for line in cells]) for index, name in enumerate(names)]
    excess = sum(column.width + 2 for column in columns) + 1 - width
    for column in columns:
        if excess > 0 and column.uris:
            excess -= column.shorten_uris(excess)
    for column in sorted(columns, key=lambda candidate: -candidate.width):
        if excess > 0 and not column.uris:
            excess -= column.fold_prose(excess)
    for column in columns:
        if excess > 0 and column.uuids:
            excess -= column.shorten_uuids()
    return columns


def _without_middle(text: str, width: int) -> str:
    """Cut the middle out of a text wider than `width`, keeping more of its end than its start."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return text[:head] + _ELLIPSIS + text[len(text) - (width - 1 - head) :]


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return rfc3339(value, timespec="seconds")
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _width() -> int:
    console = Console()
    if console.is_terminal:
        return console.width
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else _ANY_WIDTH
