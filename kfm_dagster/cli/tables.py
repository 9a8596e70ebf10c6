"""Tables of the commands; foreign text in them is never read as markup.

A table is as wide as the terminal, or, in a pipe, as wide as COLUMNS says. To fit, a list shows UUIDs by a prefix that
every command accepts, and cuts other ids and texts except in the first column. If this is not enough, it leaves out
columns from the right, empty columns first. A table of `whole` values folds prose between words instead, so that
commands and errors can be copied from it; it can be wider than the terminal. In a pipe without COLUMNS, a row is a
single line of whole values, for grep.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

import click
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kfm_dagster.contracts.identity import SHORTEST_PREFIX, rfc3339
from kfm_dagster.views.view import json_row, value_of

_ANY_WIDTH = 10_000
"""Width of a pipe, in characters; a table is only as wide as its content."""
LEAST_ID = 24
"""Characters of a shortened URI or id: more of its end than of its beginning, because the end distinguishes objects."""
LEAST_PROSE = 16
"""Least width of legible prose, in characters."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+(Z|\+00:00)")
_ELLIPSIS = "…"


def _without_json(context: click.Context, _: click.Parameter, ids: bool) -> bool:  # noqa: FBT001 - click's signature
    if ids and context.params.get("as_json"):
        raise click.UsageError("--ids and --json exclude each other")
    return ids


# Eager: click reads --json before --ids, in whichever order they are typed.
rows_as_json = click.option("--json", "as_json", is_flag=True, is_eager=True, help="One JSON object per line.")
object_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
ids_option = click.option("--ids", is_flag=True, callback=_without_json, help="Only the ids, one per line, for xargs.")


def list_command(
    *columns: str, ids_of: str | None = None
) -> Callable[[Callable[..., Iterable[Any] | None]], Callable[..., None]]:
    """Return a decorator: a function that returns rows becomes a command with --json and --ids.

    `ids_of` is the column of the ids, by default the first. A function that returns None has printed its answer.
    """

    def decorated(command: Callable[..., Iterable[Any] | None]) -> Callable[..., None]:
        @rows_as_json
        @ids_option
        @wraps(command)
        def listed(*, as_json: bool, ids: bool, **arguments: Any) -> None:
            if (rows := command(**arguments)) is not None:
                show_rows(rows, columns, as_json=as_json, ids_of=(ids_of or columns[0]) if ids else None)

        return listed

    return decorated


def show_rows(
    rows: Iterable[Any],
    columns: Sequence[str],
    *,
    as_json: bool = False,
    whole: bool = False,
    ids_of: str | None = None,
) -> None:
    """Print rows as a table of `columns`, as JSON lines of all fields, or only their `ids_of`.

    A row is a mapping, a dataclass or a model. The last of `columns` may be left out, unless values stay `whole`.
    """
    if as_json:
        for row in rows:
            click.echo(json.dumps(json_row(row)))
        return
    if ids_of:
        for name in dict.fromkeys(value_of(row, ids_of) for row in rows):
            click.echo(name)
        return
    cells = [[_cell(value_of(row, name)) for name in columns] for row in rows]
    if not cells:
        click.echo("none")
        return
    width = _width()
    natural = [_Column(name, [line[index] for line in cells]) for index, name in enumerate(columns)]
    fitted = _folded(natural, width) if whole else _cut(natural, width)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in fitted:
        table.add_column(column.name, overflow="fold", width=column.width)
    for line in zip(*(column.cells for column in fitted), strict=True):
        table.add_row(*map(Text, line))
    # Wide enough for cells that must not fold. A terminal wraps a wider line without adding characters.
    Console(width=max(width, width + _excess(fitted, width))).print(table)
    if left_out := [column.name for column in natural if column not in fitted]:
        click.echo(f"columns left out at a width of {width} characters: {', '.join(left_out)}", err=True)


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print named values, each on a line; nested values follow as indented lines."""
    nested = {name: value for name, value in fields.items() if value and isinstance(value, Mapping | list | tuple)}
    rows = [{"field": name, "value": value} for name, value in fields.items() if name not in nested]
    if rows or not nested:
        show_rows(rows, ("field", "value"), whole=True)
    for name, value in nested.items():
        # Through JSON, so that YAML gets plain values only.
        plain = json.loads(json.dumps(value, default=str))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=_ANY_WIDTH)
        click.echo(f"{name}:\n{textwrap.indent(text, '  ')}", nl=False)


def show_section(title: str, rows: Sequence[Any], columns: Sequence[str], *, whole: bool = True) -> None:
    """Print rows under a title, or `none`."""
    click.echo(title if rows else f"{title}: none")
    if rows:
        show_rows(rows, columns, whole=whole)


def show_folded(head: str, text: str) -> None:
    """Print a text after `head`; further lines are indented to the start of the text."""
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
    """A column fitted to a width: `cells` are the displayed texts, `width` is in characters."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name = name
        self.cells = list(cells)
        self.width = self._natural()

    @property
    def is_prose(self) -> bool:
        """Whether a value has several words."""
        return any(len(cell.split()) > 1 for cell in self.cells)

    @property
    def least(self) -> int:
        """Width of the shortest legible cells."""
        return min(self.width, max(len(self.name), LEAST_PROSE if self.is_prose else LEAST_ID))

    def cut(self, excess: int) -> None:
        """Narrow the column by at most `excess`: prose loses its end, an id or URI its middle."""
        width = max(self.least, self.width - max(0, excess))
        # An id keeps more of its end than of its beginning.
        head = (width - 1) // (1 if self.is_prose else 3)
        self.cells = [_shortened(" ".join(cell.split()), width, head=head) for cell in self.cells]
        self.width = self._natural()

    def fold(self, excess: int) -> None:
        """Narrow the column by at most `excess`, down to its longest word."""
        longest = max((len(word) for cell in self.cells for word in cell.split()), default=0)
        self.width = max(len(self.name), min(self.width, max(longest, LEAST_PROSE, self.width - excess)))

    def shorten_uuids(self) -> None:
        """Shorten UUIDs to distinct prefixes that commands accept, if all cells are UUIDs or empty."""
        whole = set(self.cells)
        if not any(whole) or not all(_UUID.fullmatch(cell) for cell in whole if cell):
            return
        length = SHORTEST_PREFIX
        while len({cell[:length] for cell in whole}) < len(whole):
            length += 1
        self.cells = [cell[:length] for cell in self.cells]
        self.width = self._natural()

    def _natural(self) -> int:
        return max(len(self.name), *(Text(cell).cell_len for cell in self.cells), 1)


def _excess(columns: Sequence[_Column], width: int) -> int:
    return sum(column.width + 2 for column in columns) + 1 - width


def _cut(columns: Sequence[_Column], width: int) -> list[_Column]:
    for column in columns:
        if _excess(columns, width) > 0:
            column.shorten_uuids()
    kept = list(columns)
    # Columns that have only zeros and empty values are left out first.
    spare = sorted(columns[:0:-1], key=lambda column: any(cell.strip("0") for cell in column.cells))
    while spare and columns[0].width + sum(column.least + 2 for column in kept[1:]) + 3 > width:
        kept.remove(spare.pop(0))
    for column in sorted(kept[1:], key=lambda column: -column.width):
        column.cut(_excess(kept, width))
    return kept


def _folded(columns: list[_Column], width: int) -> list[_Column]:
    for column in sorted(columns, key=lambda column: -column.width):
        if (excess := _excess(columns, width)) > 0:
            column.fold(excess)
    for column in columns:
        if _excess(columns, width) > 0:
            column.shorten_uuids()
    return columns


def _shortened(text: str, width: int, *, head: int) -> str:
    """Cut a text to `width`: its first `head` characters, an ellipsis, and its end."""
    return text if len(text) <= width else text[:head] + _ELLIPSIS + text[len(text) - (width - 1 - head) :]


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return rfc3339(value, timespec="seconds")
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return _MOMENT.sub(r"\1Z", text)


def _width() -> int:
    console = Console()
    if console.is_terminal:
        return console.width
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else _ANY_WIDTH
