"""The order of rows: in blocks by time, in a block along a Hilbert curve over the centres of boxes, then by time.

Neighbours in time and space stand together, so that a row group has a small box. A block holds as many Items as give a
curve something to part, hours or days of them: hours alone would be two groups of 40,000 radar volumes a day, both as
wide as the network. Does not belong here: what a group's
box is for (`search.py`).
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
"""Of the curve: cells of 0.0055 by 0.0027 degrees."""
_CELLS = 1 << _LEVELS

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def ordered(table: pa.Table) -> pa.Table:
    """Return the rows in their order; equal sets of Items give equal tables."""
    west, south, east, north = boxes(table)
    crossing = west > east
    middle = ((west + east) / 2 + np.where(crossing, 360.0, 180.0)) % 360.0
    start, ids = times(table, "start_datetime"), table["id"]
    place = np.empty(table.num_rows, np.int64)
    place[_sorted({"start": start, "id": ids})] = np.arange(table.num_rows)
    keys = {
        "block": place // BLOCK_ROWS,
        # Apart from the others, whose groups would else reach around the world.
        "crossing": crossing,
        "cell": hilbert(_cell(middle / 360.0), _cell((south + north + 180.0) / 360.0)),
        "place": place,
    }
    return table.take(pa.array(_sorted(keys)))


def boxes(table: pa.Table) -> tuple[Floats, Floats, Floats, Floats]:
    """Return west, south, east and north of every row; NaN where it has no box."""
    column = table["bbox"].combine_chunks()
    west, south, east, north = (_numbers(pc.struct_field(column, name)) for name in ("xmin", "ymin", "xmax", "ymax"))
    return west, south, east, north


def times(table: pa.Table, name: str) -> Integers:
    """Return a time of each row's Item, else its `datetime`, in microseconds since 1970 (UTC); 0 where it has none."""
    columns = [table[one].cast(pa.int64()) for one in (name, "datetime") if one in table.column_names]
    if not columns:
        return np.zeros(table.num_rows, np.int64)
    return np.asarray(pc.fill_null(pc.coalesce(*columns), 0), np.int64)


def hilbert(x: Integers, y: Integers) -> Integers:
    """Return the place of cells along the Hilbert curve of _LEVELS levels (Hilbert, 1891; Warren, 2012, chapter 16)."""
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
    """Return the places of rows in the order of these keys."""
    by: Integers = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys]).to_numpy()
    return by


def _cell(share: Floats) -> Integers:
    """Return the cell of a coordinate from 0 to 1; one that is none counts as the last."""
    cells: Integers = np.clip(np.nan_to_num(share, nan=1.0) * _CELLS, 0, _CELLS - 1).astype(np.int64)
    return cells


def _numbers(column: Any) -> Floats:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
