"""Parts: the Parquet files of a day, their row groups, and the choice of parts to merge.

A part is written once, its rows in order, in row groups of bounded size. The boxes and times of row groups are also in
the day's description, so a search selects row groups before it opens a file. Adding rows rewrites a part if the new
rows and the smaller parts together have at least as many rows as the part. So an Item is rewritten about once each time
that its day doubles. Does not belong here: the list of a day's parts (`days.py`).
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
"""Rows of a row group: about 300 kB of Items, just enough to be worth a request to a store."""
PART_ROWS = 65_536
"""Maximum rows of a part, except of a compacted day: 20 MB. Rewriting so much for an updated Item takes a second."""
WHOLE_ROWS = 512
"""A day with at most this number of rows is always a single file: writing so many Items of HRRR (40 kB each) takes
50 ms."""
GEOPARQUET_VERSION, STAC_GEOPARQUET_VERSION = "1.1.0", "1.0.0"

_SIMPLE = (pa.types.is_string, pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_timestamp)

Bbox = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """Extent of a row group; times are RFC 3339.

    The box is (west, south, east, north): from -180 to 180 if an Item crosses the antimeridian, None without boxes.
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
        """Number of the file's Items."""
        return sum(group.rows for group in self.groups)


def parts_of(table: pa.Table, prefix: str) -> Iterator[tuple[DayPart, bytes]]:
    """Split ordered rows into parts, named by prefix and digest; yield each part with its bytes."""
    for first in range(0, table.num_rows, PART_ROWS):
        rows = table.slice(first, PART_ROWS)
        content = parquet(rows)
        name = f"{prefix}-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
        groups = tuple(_group(rows.slice(start, GROUP_ROWS)) for start in range(0, rows.num_rows, GROUP_ROWS))
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
    """Open a GeoParquet file without a CRS: coordinates are longitude and latitude (OGC:CRS84)."""
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
        # Only queried columns get statistics, because statistics of assets would make the footer as long as the rows.
        write_statistics=[f"bbox.{name}" for name in BBOX]
        + [field.name for field in schema if any(is_kind(field.type) for is_kind in _SIMPLE)],
    )


def to_merge(parts: Sequence[DayPart], rows: int) -> list[DayPart]:
    """Return the parts to rewrite when adding `rows` rows.

    If the day then has at most WHOLE_ROWS, these are all its parts. Otherwise, a part is rewritten if it is not larger
    than `rows` and all smaller parts together, and all rows to write are at most PART_ROWS.
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
        crosses = bool(np.any(west > east))
        box = (
            -180.0 if crosses else float(np.nanmin(west)),
            float(np.nanmin(south)),
            180.0 if crosses else float(np.nanmax(east)),
            float(np.nanmax(north)),
        )
    first, last = times(rows, "start_datetime").min(), times(rows, "end_datetime").max()
    start, end = (rfc3339(pa.scalar(int(time), TIME).as_py()) for time in (first, last))
    return RowGroup(rows=rows.num_rows, bbox=box, start=start, end=end)
