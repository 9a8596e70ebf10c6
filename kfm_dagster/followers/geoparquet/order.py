"""Order of rows: blocks by time, and within a block a Hilbert curve over boxes' centres.

Neighbours in time and space are adjacent, so that a row group has a small box. A block has the Items of hours or days,
because a curve separates regions only if there are many Items: with 40,000 radar volumes a day, a block of an hour
would have only two groups, both as wide as the radar network. Does not belong here: use of a group's box (`search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BLOCK_ROWS = 16 * 1_024
"""Rows of a block: sixteen row groups."""
_LEVELS = 16
"""Levels of the curve, so that its cells are 0.0055 by 0.0027 degrees."""
_CELLS = 1 << _LEVELS

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def ordered(table: pa.Table) -> pa.Table:
    """Sort the rows; equal sets of Items give equal tables."""
    west, south, east, north = boxes(table)
    crossing = west > east
    middle = ((west + east) / 2 + np.where(crossing, 360.0, 180.0)) % 360.0
    start, ids = times(table, "start_datetime"), table["id"]
    place = np.empty(table.num_rows, np.int64)
    place[_sorted({"start": start, "id": ids})] = np.arange(table.num_rows)
    keys = {
        "block": place // BLOCK_ROWS,
        # Boxes across the antimeridian come last in a block, because each stretches its group's box around the world.
        "crossing": crossing,
        "cell": hilbert(_cell(middle / 360.0), _cell((south + north + 180.0) / 360.0)),
        "place": place,
    }
    return table.take(pa.array(_sorted(keys)))


def boxes(table: pa.Table) -> tuple[Floats, Floats, Floats, Floats]:
    """Return west, south, east and north of every row; NaN for rows without a box."""
    column = table["bbox"].combine_chunks()
    west, south, east, north = (_numbers(pc.struct_field(column, name)) for name in ("xmin", "ymin", "xmax", "ymax"))
    return west, south, east, north


def times(table: pa.Table, name: str) -> Integers:
    """Return the rows' times in microseconds since 1970 (UTC): `name`, else `datetime`, else 0."""
    columns = [table[column].cast(pa.int64()) for column in (name, "datetime") if column in table.column_names]
    if not columns:
        return np.zeros(table.num_rows, np.int64)
    return np.asarray(pc.fill_null(pc.coalesce(*columns), 0), np.int64)


def hilbert(x: Integers, y: Integers) -> Integers:
    """Return the positions of cells along the Hilbert curve of _LEVELS levels.

    Hilbert, 1891; Warren, 2012, chapter 16.
    """
    x, y, place = x.copy(), y.copy(), np.zeros_like(x)
    side = _CELLS >> 1
    while side:
        right, up = (x & side) > 0, (y & side) > 0
        place += side * side * np.where(right, np.where(up, 2, 3), np.where(up, 1, 0))
        turned = right & ~up
        x[turned], y[turned] = _CELLS - 1 - x[turned], _CELLS - 1 - y[turned]
        x, y = np.where(up, x, y), np.where(up, y, x)
        side >>= 1
    return place


def _sorted(keys: Mapping[str, Any]) -> Integers:
    """Return the indices of rows, sorted by these keys."""
    indices: Integers = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys]).to_numpy()
    return indices


def _cell(share: Floats) -> Integers:
    """Return the cell of a coordinate from 0 to 1; the last cell for NaN."""
    cells: Integers = np.clip(np.nan_to_num(share, nan=1.0) * _CELLS, 0, _CELLS - 1).astype(np.int64)
    return cells


def _numbers(column: Any) -> Floats:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
