"""GRIB2 outlines: from a ring of grid points in degrees to the geometry and box that STAC wants.

Belongs here: unwrapped rings, thinning, the antimeridian, poles (RFC 7946, 3.1.6, 3.1.9 and 5). Does not belong here:
where the points of a grid lie (`grib2_grids.py`). A box is (west, south, east, north) in degrees.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import antimeridian
import numpy as np
import numpy.typing as npt
import shapely.geometry

from kfm_dagster.contracts.bounding_box import Box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

SIDE_SEGMENTS = 23
"""Segments per side of a thinned outline; the HRRR CONUS outline then strays less than 0.01 degrees from the grid's."""

_ROUNDED = 1e-3
"""Share of a step by which the corners of a file, in microdegrees, may be off after a thousand steps."""

Array = npt.NDArray[np.float64]


def border(x: Array, y: Array) -> tuple[Array, Array]:
    """Every point of the grid's border, once, counterclockwise from the lower left."""
    return (
        np.concatenate([x[:-1], np.full(len(y) - 1, x[-1]), x[:0:-1], np.full(len(y) - 1, x[0])]),
        np.concatenate([np.full(len(x) - 1, y[0]), y[:-1], np.full(len(x) - 1, y[-1]), y[:0:-1]]),
    )


def thinned(ni: int, nj: int, longitudes: Array, latitudes: Array) -> npt.NDArray[np.int64]:
    """Choose border points to keep: corners, SIDE_SEGMENTS a side, and the extremes, which hold the bbox."""
    sides = [0, ni - 1, ni + nj - 2, 2 * ni + nj - 3, 2 * (ni + nj - 2)]
    along = [np.linspace(start, stop, SIDE_SEGMENTS, endpoint=False) for start, stop in pairwise(sides)]
    extremes = [values.argmin() for values in (longitudes, latitudes)] + [
        values.argmax() for values in (longitudes, latitudes)
    ]
    return np.unique(np.concatenate([*along, extremes]).astype(np.int64))


def unwrapped(longitudes: Array, latitudes: Array, pole: float | None) -> Box:
    """Box whose west is in [-180, 180); its east is beyond 180 when it crosses the antimeridian."""
    south, north = float(latitudes.min()), float(latitudes.max())
    if pole is not None:
        return -180.0, min(south, pole), 180.0, max(north, pole)
    west, east = float(longitudes.min()), float(longitudes.max())
    wrapped = wrap(west)
    return wrapped, south, east + wrapped - west, north


def wrap(longitude: float) -> float:
    """Longitude in [-180, 180); one that is there already keeps its digits."""
    return longitude if -180.0 <= longitude < 180.0 else (longitude + 180.0) % 360.0 - 180.0


def first_column(west: float, dx: float) -> float:
    """Longitude in [-180, 180) of the column that GDAL has first of those that go round from `west` by `dx` degrees."""
    # What lies at or beyond 180 degrees east is moved by a turn (GRIB_ADJUST_LONGITUDE_RANGE of GDAL's GRIB driver).
    before = math.ceil((180.0 - west) / dx - _ROUNDED)
    return west + before * dx - 360.0


def footprint(longitudes: Array, latitudes: Array, pole: float | None = None) -> dict[str, Any]:
    """GeoJSON of a ring of grid points, split at the antimeridian and wound as RFC 7946 wants (3.1.6, 3.1.9)."""
    ring = shapely.geometry.Polygon(list(zip(longitudes.tolist(), latitudes.tolist(), strict=True)))
    shape = antimeridian.fix_polygon(
        ring,
        fix_winding=True,
        force_north_pole=pole == 90.0,
        force_south_pole=pole == -90.0,
        great_circle=False,
    )
    if shape.is_empty or not shape.is_valid:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, "the outline of the grid crosses itself")
    return dict(shapely.geometry.mapping(shape))
