"""Dimension Objects of a grid whose cells lie evenly (datacube extension 2.2.0), from what its projection says.

Belongs here: rows and columns. Does not belong here: dimensions that a NetCDF header describes (`netcdf_grid.py`),
what else a file varies over (`grib2_cube.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLUMNS, ROWS = "x", "y"
"""Names of the dimensions, as GDAL and rioxarray have them whatever the grid is of."""
_DECIMALS = 9


def horizontal(*, transform: Sequence[float], shape: Sequence[int], wkt2: str) -> dict[str, dict[str, Any]]:
    """Return columns and rows: from the first cell's centre to the last's, in the reference system of `wkt2`.

    `transform` and `shape` are those of the projection extension: (width of a cell, 0, west, 0, minus its height,
    north), and rows before columns.
    """
    width, _, west, _, height, north = transform
    rows, columns = shape
    return {
        COLUMNS: dimension(COLUMNS, first=west + width / 2, step=width, count=columns, wkt2=wkt2),
        ROWS: dimension(ROWS, first=north + height / 2, step=height, count=rows, wkt2=wkt2),
    }


def dimension(axis: str, *, first: float, step: float, count: int, wkt2: str) -> dict[str, Any]:
    """Return a dimension of evenly spaced centres; what is between them is a length, whichever way they run."""
    last = first + step * (count - 1)
    return {
        "type": "spatial",
        "axis": axis,
        "extent": sorted((round(first, _DECIMALS), round(last, _DECIMALS))),
        "step": abs(step),
        "reference_system": wkt2,
    }
