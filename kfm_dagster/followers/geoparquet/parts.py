"""Parts: the Parquet files of a day, what stands in which, and which of them are merged when some come.

A part is written once, in order, in row groups of bounded size whose boxes and times stand beside it, so that a search
knows what to read before it opens one. Sizes of parts fall by half at least from one to the next, so a day of 100,000
Items has some ten at most, and an Item is written again once for each doubling. Does not belong here: which parts are
a day's (`days.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.followers.geoparquet.order import boxes, times
from kfm_dagster.followers.geoparquet.rows import BBOX, TIME

MEDIA_TYPE = "application/vnd.apache.parquet"
"""IANA's media type of Parquet (2024)."""
GROUP_ROWS = 1_024
"""Rows of a row group: about 300 kB of Items, the least that a request to a store is worth."""
PART_ROWS = 65_536
"""Rows of a part at most: 20 MB, which an update of one Item in it writes again in a second."""
WHOLE_ROWS = 4_096
"""Rows up to which a day is always one file: they are written in 50 ms."""
GEOPARQUET_VERSION, STAC_GEOPARQUET_VERSION = "1.1.0", "1.0.0"

_SIMPLE = (pa.types.is_string, pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_timestamp)

Bbox = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """What a row group reaches over; times are RFC 3339.

    The box is (west, south, east, north), from -180 to 180 where an Item crosses the antimeridian, None where none has
    a box.
    """

    rows: int
    bbox: Bbox | None
    start: str
    end: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DayPart:
    """A file of a day; `size` in bytes."""

    name: str
    size: int
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """Number of its Items."""
        return sum(group.rows for group in self.groups)


def parts_of(table: pa.Table, prefix: str) -> Iterator[tuple[DayPart, bytes]]:
    """Cut ordered rows into parts, named by the prefix and what they hold, with the bytes of each."""
    for first in range(0, table.num_rows, PART_ROWS):
        rows = table.slice(first, PART_ROWS)
        content = parquet(rows)
        name = f"{prefix}-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
        groups = tuple(_group(rows.slice(at, GROUP_ROWS)) for at in range(0, rows.num_rows, GROUP_ROWS))
        yield DayPart(name=name, size=len(content), groups=groups), content


def parquet(table: pa.Table) -> bytes:
    """Return the GeoParquet file of ordered rows."""
    sink = pa.BufferOutputStream()
    shapes = shapely.from_wkb(table["geometry"].unique().drop_null().to_numpy(zero_copy_only=False))
    types = {f"{shape.geom_type}{' Z' if shape.has_z else ''}" for shape in shapes}
    with parquet_writer(sink, table.schema, types) as writer:
        writer.write_table(table.replace_schema_metadata(), row_group_size=GROUP_ROWS)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def parquet_writer(sink: pa.NativeFile, schema: pa.Schema, geometry_types: Iterable[str]) -> pq.ParquetWriter:
    """Open a GeoParquet file; without a CRS, coordinates are longitude and latitude (OGC:CRS84)."""
    geometry = {
        "encoding": "WKB",
        "geometry_types": sorted(geometry_types),
        "covering": {"bbox": {name: ["bbox", name] for name in BBOX}},
    }
    geo = {"version": GEOPARQUET_VERSION, "primary_column": "geometry", "columns": {"geometry": geometry}}
    metadata = {"geo": orjson.dumps(geo), "stac-geoparquet": orjson.dumps({"version": STAC_GEOPARQUET_VERSION})}
    return pq.ParquetWriter(
        sink,
        schema.with_metadata(metadata),
        compression="zstd",
        # Statistics of what is asked for; those of assets would make the footer as long as the rows.
        write_statistics=[f"bbox.{name}" for name in BBOX]
        + [one.name for one in schema if any(is_kind(one.type) for is_kind in _SIMPLE)],
    )


def to_merge(parts: Sequence[DayPart], rows: int) -> list[DayPart]:
    """Return those of the parts that are written again together with so many other rows.

    All up to WHOLE_ROWS; else each that has fewer rows than everything smaller together.
    """
    if rows == 0 and len(parts) < 2:
        return []
    if rows + sum(part.rows for part in parts) <= WHOLE_ROWS:
        return list(parts)
    chosen: list[DayPart] = []
    for part in sorted(parts, key=lambda part: part.rows):
        if part.rows > rows or part.rows + rows > PART_ROWS:
            break
        chosen.append(part)
        rows += part.rows
    return chosen


def _group(rows: pa.Table) -> RowGroup:
    west, south, east, north = boxes(rows)
    box: Bbox | None = None
    if not np.isnan(west).all():
        whole = bool(np.any(west > east))
        box = (
            -180.0 if whole else float(np.nanmin(west)),
            float(np.nanmin(south)),
            180.0 if whole else float(np.nanmax(east)),
            float(np.nanmax(north)),
        )
    first, last = times(rows, "start_datetime").min(), times(rows, "end_datetime").max()
    start, end = (rfc3339(pa.scalar(int(time), TIME).as_py()) for time in (first, last))
    return RowGroup(rows=rows.num_rows, bbox=box, start=start, end=end)
