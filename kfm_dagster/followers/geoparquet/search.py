"""Search for the Items of collections by time, box and properties.

The descriptions of the days show which row groups to read; DuckDB selects the matching rows. The box of the query and
the box of an Item can cross the antimeridian. Does not belong here: presentation of results (`cli/items.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.followers.geoparquet.days import Day, files_of, folder, read_days, years
from kfm_dagster.followers.geoparquet.order import boxes, times
from kfm_dagster.followers.geoparquet.parts import Bbox, RowGroup
from kfm_dagster.followers.geoparquet.rows import TIME
from kfm_dagster.storage.publisher import Publisher, PublishError
from kfm_dagster.storage.set_questions import ask

TRIES = 3
"""Attempts to read a day, because its files can be replaced during an attempt."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"=": pc.equal, "<": pc.less, ">": pc.greater}
OPERATORS = tuple(_COMPARISONS)


PropertyCondition: TypeAlias = tuple[str, str, str]
"""Name of a property, one of OPERATORS, and a value as text, which is cast to the property's type.

A list property meets a condition if one of its elements does. An Item without the property does not match.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchCriteria:
    """Conditions of a search, all required.

    Times are inclusive; west > east crosses the antimeridian.
    """

    start: datetime | None = None
    end: datetime | None = None
    bbox: Bbox | None = None
    conditions: tuple[PropertyCondition, ...] = ()


def search(
    publisher: Publisher, collections: Iterable[str], criteria: SearchCriteria
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the matching Items of each day as tables, each with the folder of its Items.

    `rows.to_items` converts a table. Raises PublishError, and DependencyUnavailableError if files stay missing.
    """
    for collection in collections:
        for year in years(publisher, collection):
            # Search one more year: an accumulation from the old year that ends at New Year is in the new year's folder.
            if criteria.end is None or int(year) <= criteria.end.year + 1:
                directory = folder(collection, year)
                for name, day in sorted(_days(publisher, directory).items()):
                    for table in _of_day(publisher, directory, day, criteria):
                        yield f"{collection}/{year}/{name}", table


def properties_of(publisher: Publisher, collections: Iterable[str]) -> set[str]:
    """Return the property names of the newest day of each collection. Raises as `search` does."""
    names: set[str] = set()
    for collection in collections:
        for directory in reversed([folder(collection, year) for year in years(publisher, collection)]):
            if days := [day for _, day in sorted(_days(publisher, directory).items()) if day.parts]:
                newest = days[-1].parts[-1]
                with publisher.open(f"{directory}/{newest.name}", size=newest.size) as file:
                    names.update(pq.read_schema(file).names)
                break
    return names


def _days(publisher: Publisher, where: str) -> dict[str, Day]:
    """Return the days of a folder; list the folder again if listed files were removed meanwhile."""
    for _ in range(TRIES - 1):
        with suppress(DependencyUnavailableError):
            return read_days(publisher, where, files_of(publisher.names(where)))
    return read_days(publisher, where, files_of(publisher.names(where)))


def _of_day(publisher: Publisher, where: str, day: Day, criteria: SearchCriteria) -> list[pa.Table]:
    """Return the matches of a day; if its parts are removed meanwhile, read the day again."""
    for _ in range(TRIES - 1):
        try:
            return list(_of_parts(publisher, where, day, criteria))
        except PublishError:
            day = _days(publisher, where).get(day.day, Day(day=day.day))
    return list(_of_parts(publisher, where, day, criteria))


def _of_parts(publisher: Publisher, where: str, day: Day, criteria: SearchCriteria) -> Iterator[pa.Table]:
    for part in day.parts:
        if groups := [number for number, group in enumerate(part.groups) if _may_hold(group, criteria)]:
            with publisher.open(f"{where}/{part.name}", size=part.size) as file:
                rows = matching(pq.ParquetFile(file, pre_buffer=True).read_row_groups(groups), criteria)
            if rows.num_rows:
                yield rows


def _may_hold(group: RowGroup, criteria: SearchCriteria) -> bool:
    if criteria.start is not None and group.end < rfc3339(criteria.start):
        return False
    if criteria.end is not None and group.start > rfc3339(criteria.end):
        return False
    if criteria.bbox is None:
        return True
    return group.bbox is not None and _meet(group.bbox, criteria.bbox)


def _meet(box: Bbox, other: Bbox) -> bool:
    """Return whether two boxes intersect; only `other` is allowed to cross the antimeridian."""
    (west, south, east, north), (other_west, other_south, other_east, other_north) = box, other
    if south > other_north or north < other_south:
        return False
    meets = (west <= other_east, east >= other_west)
    return any(meets) if other_west > other_east else all(meets)


def matching(rows: pa.Table, criteria: SearchCriteria) -> pa.Table:
    """Return the rows that meet all conditions, in their order."""
    for condition in criteria.conditions:
        rows = rows.filter(_holds(rows, condition))
    west, south, east, north = boxes(rows)
    places = pa.table({
        "place": pa.array(range(rows.num_rows), pa.int64()),
        "west": west, "south": south, "east": east, "north": north, "starts": times(rows, "start_datetime"),
        "ends": times(rows, "end_datetime"),
    })  # fmt: skip
    box = zip(("west", "south", "east", "north"), criteria.bbox or (None,) * 4, strict=True)
    bounds = (("starts", criteria.start), ("ends", criteria.end))
    query = pa.table({
        **{name: pa.array([bound], pa.float64()) for name, bound in box},
        **{name: pa.array([time], TIME).cast(pa.int64()) for name, time in bounds},
    })  # fmt: skip
    rows = rows.take(pa.array([place for (place,) in ask("items.matching", places=places, asked=query)], pa.int64()))
    return rows if criteria.bbox is None else rows.filter(_touching(rows, criteria.bbox))


def _touching(rows: pa.Table, bbox: Bbox) -> pa.Array:
    """Return which footprints meet a box.

    The boxes of the footprints are not enough: the box of a scan is a quarter larger than its footprint.
    """
    west, south, east, north = bbox
    parts = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    footprints = shapely.from_wkb(rows["geometry"].to_numpy())
    # Test each part separately, because a union of the parts loses a box without height.
    touches = [shapely.intersects(footprints, shapely.box(first, south, last, north)) for first, last in parts]
    return pa.array(np.any(touches, axis=0))


def _holds(rows: pa.Table, condition: PropertyCondition) -> pa.Array:
    """Return which rows meet a condition; a value that cannot be cast matches no row."""
    name, operator, value = condition
    no_rows = pa.array([False] * rows.num_rows, pa.bool_())
    if name not in rows.column_names:
        return no_rows
    column = rows[name].combine_chunks()
    compare = _COMPARISONS[operator]
    is_list = pa.types.is_list(column.type)
    values = column.flatten() if is_list else column
    try:
        hits = pc.fill_null(compare(values, pa.scalar(value).cast(values.type)), False)  # noqa: FBT003
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return no_rows
    if not is_list:
        return hits
    owners = pc.list_parent_indices(column).filter(hits)
    return pc.is_in(pa.array(range(rows.num_rows), owners.type), value_set=owners)
