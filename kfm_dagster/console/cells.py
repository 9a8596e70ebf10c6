"""Headings and cells of every page's tables, by a column's name and its values. Does not belong here: which columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup

from kfm_dagster.contracts.id_prefix import SHORTEST_PREFIX
from kfm_dagster.contracts.identity import rfc3339

Links = Mapping[str, Callable[[Any], str | None]]
"""Where the values of a column lead, by the column's name; None leads nowhere."""
_PAGES = {
    "dataset": "/datasets/{}",
    "wal_id": "/units/{}",
    "run_id": "/runs/{}",
    "replay_run_id": "/replays/{}",
}
_STATES = {"status", "to_status", "state", "level", "urgency"}
_CODE = {"next_step", "replay_run_id", "run_id", "wal_id"}


def heading(rows: Iterable[Any], name: str) -> Markup:
    """Return a column's heading: its name in words, with the zone of times."""
    kinds = {type(_value(row, name)) for row in rows}
    text = name.replace("_", " ").removesuffix(" at" if datetime in kinds else "")
    return Markup('<th scope="col"{}>{}{}</th>').format(
        Markup(' class="number"') if int in kinds else "", text, " (UTC)" if datetime in kinds else ""
    )


def cell(row: Any, name: str, links: Links) -> Markup:
    """Return the cell of a row in a column; ids are shown by their beginning."""
    value = _value(row, name)
    kind = ' class="number"' if type(value) is int else ' class="time"' if isinstance(value, datetime) else ""
    content = "" if value is None else _content(name, value)
    address = links[name](row) if name in links else _PAGES[name].format(value) if value and name in _PAGES else None
    if address is not None:
        content = Markup('<a href="{}">{}</a>').format(address, content)
    return Markup("<td{}>{}</td>").format(Markup(kind), content)  # noqa: S704, one of the two above


def time(value: datetime | None) -> Markup:
    """Return a time to the second, in UTC."""
    if value is None:
        return Markup('<span class="soft">none</span>')
    text = rfc3339(value, timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(text, text.replace("T", " ").removesuffix("Z"))


def _value(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def _content(name: str, value: Any) -> Markup | str:
    if isinstance(value, datetime):
        return time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _STATES:
        return Markup('<span class="badge {}">{}</span>').format(value, value.replace("_", " "))
    if name in _CODE:
        return Markup("<code>{}</code>").format(value[:SHORTEST_PREFIX] if name in _PAGES else value)
    if name == "object_uri":
        return Markup('<code title="{}">{}</code>').format(value, value.rpartition("/")[2])
    return f"{value:,}" if isinstance(value, int) else str(value)
