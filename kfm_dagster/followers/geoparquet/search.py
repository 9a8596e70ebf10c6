"""Searching: the Items of collections by time, box and properties, from no more of their files than can hold them.

The descriptions of the days say which row groups are worth reading; DuckDB says which of their rows are meant. Boxes
may cross the antimeridian, the asked one as any Item's. Does not belong here: how an answer is shown (`cli/items.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kfm_dagster.catalog.publisher import Publisher, PublishError
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.followers.geoparquet.days import Day, files_of, folder, read_days, years
from kfm_dagster.followers.geoparquet.order import boxes, times
from kfm_dagster.followers.geoparquet.parts import Bbox, RowGroup
from kfm_dagster.followers.geoparquet.rows import TIME
from kfm_dagster.storage.set_questions import ask

TRIES = 3
"""Times that a day is looked for whose files were replaced meanwhile."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"=": pc.equal, "<": pc.less, ">": pc.greater}
OPERATORS = tuple(_COMPARISONS)


PropertyCondition: TypeAlias = tuple[str, str, str]
"""Name of a property, one of OPERATORS, and a value as text of whatever type the property has.

A property that is a list meets `=` where the value is in it. One that an Item does not have meets nothing.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which Items are meant: those that meet all of it. Times are inclusive; west > east crosses the antimeridian."""

    start: datetime | None = None
    end: datetime | None = None
    bbox: Bbox | None = None
    conditions: tuple[PropertyCondition, ...] = ()


def search(publisher: Publisher, collections: Iterable[str], wanted: Wanted) -> Iterator[pa.Table]:
    """Give tables of the Items that are meant, collection by collection and day by day (`rows.to_items`).

    Raises PublishError, and DependencyUnavailableError where files are missing for good.
    """
    for collection in collections:
        for year in years(publisher, collection):
            # What is summed until New Year is kept under the new one.
            if wanted.end is None or int(year) <= wanted.end.year + 1:
                where = folder(collection, year)
                for _, day in sorted(_days(publisher, where).items()):
                    yield from _of_day(publisher, where, day, wanted)


def properties_of(publisher: Publisher, collections: Iterable[str]) -> set[str]:
    """Return what Items of the newest day of each collection can be asked for by name.

    Raises as `search` does.
    """
    found: set[str] = set()
    for collection in collections:
        for where in reversed([folder(collection, year) for year in years(publisher, collection)]):
            if days := [day for _, day in sorted(_days(publisher, where).items()) if day.parts]:
                newest = days[-1].parts[-1]
                with publisher.open(f"{where}/{newest.name}", size=newest.size) as file:
                    found.update(pq.read_schema(file).names)
                break
    return found


def _days(publisher: Publisher, where: str) -> dict[str, Day]:
    """Return the days of a folder, listed again where somebody has cleared away what was listed."""
    for _ in range(TRIES - 1):
        with suppress(DependencyUnavailableError):
            return read_days(publisher, where, files_of(publisher.names(where)))
    return read_days(publisher, where, files_of(publisher.names(where)))


def _of_day(publisher: Publisher, where: str, day: Day, wanted: Wanted) -> list[pa.Table]:
    """Return what is meant of one state of a day: the next one where parts are cleared away meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return list(_of_parts(publisher, where, day, wanted))
        except PublishError:
            day = _days(publisher, where).get(day.day, Day(day=day.day))
    return list(_of_parts(publisher, where, day, wanted))


def _of_parts(publisher: Publisher, where: str, day: Day, wanted: Wanted) -> Iterator[pa.Table]:
    for part in day.parts:
        if groups := [number for number, group in enumerate(part.groups) if _may_hold(group, wanted)]:
            with publisher.open(f"{where}/{part.name}", size=part.size) as file:
                rows = _matching(pq.ParquetFile(file, pre_buffer=True).read_row_groups(groups), wanted)
            if rows.num_rows:
                yield rows


def _may_hold(group: RowGroup, wanted: Wanted) -> bool:
    if wanted.start is not None and group.end < rfc3339(wanted.start):
        return False
    if wanted.end is not None and group.start > rfc3339(wanted.end):
        return False
    if wanted.bbox is None:
        return True
    return group.bbox is not None and _meet(group.bbox, wanted.bbox)


def _meet(one: Bbox, other: Bbox) -> bool:
    """Tell whether a box that crosses no antimeridian has something in common with one that may."""
    (west, south, east, north), (other_west, other_south, other_east, other_north) = one, other
    if south > other_north or north < other_south:
        return False
    meets = (west <= other_east, east >= other_west)
    return any(meets) if other_west > other_east else all(meets)


def _matching(rows: pa.Table, wanted: Wanted) -> pa.Table:
    for condition in wanted.conditions:
        rows = rows.filter(_holds(rows, condition))
    west, south, east, north = boxes(rows)
    places = pa.table({
        "place": pa.array(range(rows.num_rows), pa.int64()),
        "west": west, "south": south, "east": east, "north": north, "starts": times(rows, "start_datetime"),
        "ends": times(rows, "end_datetime"),
    })  # fmt: skip
    box = zip(("west", "south", "east", "north"), wanted.bbox or (None,) * 4, strict=True)
    bounds = (("starts", wanted.start), ("ends", wanted.end))
    asked = pa.table({
        **{name: pa.array([bound], pa.float64()) for name, bound in box},
        **{name: pa.array([time], TIME).cast(pa.int64()) for name, time in bounds},
    })  # fmt: skip
    return rows.take(pa.array([place for (place,) in ask("items.matching", places=places, asked=asked)], pa.int64()))


def _holds(rows: pa.Table, condition: PropertyCondition) -> pa.Array:
    """Return which rows meet a condition; none where the property is of a type that the value is not of."""
    name, operator, value = condition
    never = pa.array([False] * rows.num_rows, pa.bool_())
    if name not in rows.column_names:
        return never
    column = rows[name].combine_chunks()
    compare = _COMPARISONS[operator]
    listed = pa.types.is_list(column.type)
    values = column.flatten() if listed else column
    try:
        found = pc.fill_null(compare(values, pa.scalar(value).cast(values.type)), False)  # noqa: FBT003
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return never
    if not listed:
        return found
    owners = pc.list_parent_indices(column).filter(found)
    return pc.is_in(pa.array(range(rows.num_rows), owners.type), value_set=owners)
