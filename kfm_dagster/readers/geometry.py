"""GeoJSON of a ring of positions, or of a disc: wound right-hand, split at the antimeridian.

Belongs here: RFC 7946 form (3.1.6, 3.1.9 and 5), borders of grids with their thinning, poles. Does not belong here:
the source of a ring, a centre or the points of a grid (`geostationary.py`, `grib2_grids.py`, and other readers). A
box is (west, south, east, north) in degrees.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import antimeridian
import numpy as np
import numpy.typing as npt
from pyproj import Geod
from shapely import LineString, MultiPolygon, Polygon, box, get_coordinates
from shapely.affinity import translate
from shapely.geometry import mapping

from kfm_dagster.contracts.bounding_box import Box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

_LONGEST_SIDE = 45.0
"""Maximum degrees of longitude between positions on a parallel: on a sphere a line between them leaves the parallel."""
_DECIMALS = 9
"""Decimals of a degree (a tenth of a millimetre). So rounded, no side on the antimeridian crosses it by an error."""
DISC_POINTS = 36
"""Points on the rim of a disc, a multiple of four."""
_WGS84 = Geod(ellps="WGS84")


def polygon_from_ring(ring: list[tuple[float, float]]) -> Mapping[str, Any]:
    """Return a GeoJSON Polygon, or MultiPolygon when the ring crosses the antimeridian.

    RFC 7946, 3.1.6 and 3.1.9. `ring` has (longitude, latitude) in degrees, closed or not, wound either way; longitudes
    are continuous, so beyond the antimeridian they leave [-180, 180], by at most 360 degrees. Coordinates are nested
    tuples. Raises ReadError(INVALID_GEOMETRY) when the ring crosses itself or has no area.
    """
    polygon = Polygon([(round(longitude, _DECIMALS), round(latitude, _DECIMALS)) for longitude, latitude in ring])
    if not polygon.is_valid or polygon.area <= 0:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, f"the outline of {len(ring)} points is not a valid polygon")
    west, _, east, _ = polygon.bounds
    parts = [polygon]
    if west < -180 or east > 180:
        # The part within each turn of the globe, moved into [-180, 180]. A part that only touches a meridian has no
        # area.
        shares = [(polygon.intersection(box(turn - 180, -90, turn + 180, 90)), turn) for turn in (-360, 0, 360)]
        parts = [translate(part, -turn) for share, turn in shares for part in _polygons(share) if part.area > 0]
    wound = [part if part.exterior.is_ccw else part.reverse() for part in parts]
    geojson: Mapping[str, Any] = mapping(wound[0] if len(wound) == 1 else MultiPolygon(wound))
    return geojson


@lru_cache(maxsize=4096)
def disc(latitude: float, longitude: float, radius_m: float) -> Mapping[str, Any]:
    """Return a GeoJSON disc: DISC_POINTS on its rim, at `radius_m` metres along the ellipsoid.

    Four of the points are the northernmost, westernmost, southernmost and easternmost, so the points have the bounds
    of the disc. Degrees of WGS 84; the disc must not contain a pole. Cached, because a network has 200 radars with a
    few ranges, and a day has 40,000 volumes.
    """
    azimuths = _azimuths(latitude, radius_m)
    around = np.full(DISC_POINTS, 1.0)
    longitudes, latitudes, _ = _WGS84.fwd(around * longitude, around * latitude, azimuths, around * radius_m)
    rim = Polygon(zip(longitudes, latitudes, strict=True))
    # The rim is counter-clockwise already, so only a disc over the antimeridian needs `fix_polygon`, which takes 3 ms.
    crosses = np.ptp(longitudes) > 180.0
    geojson: Mapping[str, Any] = mapping(antimeridian.fix_polygon(rim) if crosses else rim)
    return geojson


def _azimuths(latitude: float, radius_m: float) -> npt.NDArray[np.float64]:
    """Return a rim's azimuths, counter-clockwise from the north, the same number per quarter.

    The line to the easternmost point meets that point's meridian at a right angle. So on a sphere the cosine of the
    line's azimuth at the centre is tan(radius) tan(latitude). This is exact enough for the ellipsoid, because near that
    point the rim follows the meridian.
    """
    eastern = math.degrees(math.acos(math.tan(radius_m / _WGS84.a) * math.tan(math.radians(latitude))))
    turns = [360.0, 360.0 - eastern, 180.0, eastern, 0.0]
    quarter = DISC_POINTS // 4
    return np.concatenate([np.linspace(begin, end, quarter, endpoint=False) for begin, end in pairwise(turns)])


@lru_cache(maxsize=256)
def rectangle(west: float, south: float, east: float, north: float) -> Mapping[str, Any]:
    """Return the GeoJSON between two meridians and two parallels, as `polygon_from_ring` does.

    A rectangle over the antimeridian has `east` above 180, `west` below -180, or `east` below `west`. Cached, because
    instruments see the same place for years. Raises ReadError(INVALID_GEOMETRY) when the values are impossible or
    enclose no area.
    """
    span = east - west + (360 if east < west else 0)
    if not (-360 <= west <= 180 and 0 < span <= 360 and -90 <= south < north <= 90):
        message = f"west {west}, south {south}, east {east}, north {north} enclose no part of the Earth"
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, message)
    if round(span, _DECIMALS) == 360:
        # A full circle that begins elsewhere would be cut at the antimeridian into two parts. They would share the side
        # at which the circle begins, and a MultiPolygon of parts with a common side is invalid.
        west = -180.0
    steps = math.ceil(span / _LONGEST_SIDE)
    along = [west + span * step / steps for step in range(steps + 1)]
    return polygon_from_ring([(x, south) for x in along] + [(x, north) for x in reversed(along)])


def _polygons(shape: Any) -> list[Polygon]:
    return [part for part in getattr(shape, "geoms", [shape]) if part.geom_type == "Polygon"]


SIDE_SEGMENTS = 23
"""Segments per side of a thinned outline; the HRRR CONUS outline then strays less than 0.01 degrees from the grid's
edge."""

_STRAY = 0.005
"""Maximum distance of a simplified outline from the grid's outline, in degrees."""

_ROUNDED = 1e-3
"""Tolerance as a share of a step. Corners are rounded to microdegrees, which moves a column by a smaller share."""

Array = npt.NDArray[np.float64]


def border(x: Array, y: Array) -> tuple[Array, Array]:
    """Return every point of the grid's border, once, counterclockwise from the lower left."""
    return (
        np.concatenate([x[:-1], np.full(len(y) - 1, x[-1]), x[:0:-1], np.full(len(y) - 1, x[0])]),
        np.concatenate([np.full(len(x) - 1, y[0]), y[:-1], np.full(len(x) - 1, y[-1]), y[:0:-1]]),
    )


def thinned(ni: int, nj: int, longitudes: Array, latitudes: Array) -> npt.NDArray[np.int64]:
    """Return numbers of border points to keep: corners, SIDE_SEGMENTS a side, extremes (bbox)."""
    sides = [0, ni - 1, ni + nj - 2, 2 * ni + nj - 3, 2 * (ni + nj - 2)]
    along = [np.linspace(start, stop, SIDE_SEGMENTS, endpoint=False) for start, stop in pairwise(sides)]
    extremes = [values.argmin() for values in (longitudes, latitudes)] + [
        values.argmax() for values in (longitudes, latitudes)
    ]
    return np.unique(np.concatenate([*along, extremes]).astype(np.int64))


def followed(longitudes: Array, latitudes: Array) -> npt.NDArray[np.int64]:
    """Return numbers of border points that the Douglas-Peucker algorithm keeps within _STRAY."""
    # The third coordinate of a point is its number.
    line = LineString(np.column_stack([longitudes, latitudes, np.arange(len(longitudes))]))
    kept: Array = get_coordinates(line.simplify(_STRAY, preserve_topology=False), include_z=True)
    return kept[:, 2].astype(np.int64)


def unwrapped(longitudes: Array, latitudes: Array, pole: float | None) -> Box:
    """Return a border's box: west in [-180, 180), east above 180 if it crosses the antimeridian."""
    south, north = float(latitudes.min()), float(latitudes.max())
    if pole is not None:
        return -180.0, min(south, pole), 180.0, max(north, pole)
    west, east = float(longitudes.min()), float(longitudes.max())
    wrapped = wrap(west)
    return wrapped, south, east + wrapped - west, north


def wrap(longitude: float) -> float:
    """Return a longitude in [-180, 180); a longitude in this range keeps all its digits."""
    return longitude if -180.0 <= longitude < 180.0 else (longitude + 180.0) % 360.0 - 180.0


def first_column(west: float, dx: float) -> float:
    """Return the longitude in [-180, 180) of the first column that GDAL shows of a global grid."""
    # Columns at or beyond 180 degrees east are moved by a turn (GRIB_ADJUST_LONGITUDE_RANGE of GDAL's GRIB driver).
    before = math.ceil((180.0 - west) / dx - _ROUNDED)
    return west + before * dx - 360.0


def outline(
    longitudes: Array,
    latitudes: Array,
    *,
    ni: int,
    nj: int,
    poles: Collection[float] = (-90.0, 90.0),
    curved: bool = False,
) -> tuple[Mapping[str, Any], Box]:
    """Return the outline of a grid by the points of its border, and its box.

    The border runs counterclockwise, with `ni` and `nj` points a side. `poles` are the poles that the projection can
    show. `curved` also keeps the points from which straight segments would stray. Raises ReadError(INVALID_GEOMETRY).
    """
    longitudes = np.unwrap(longitudes, period=360.0)
    turn = longitudes[-1] - longitudes[0] + (longitudes[0] - longitudes[-1] + 180.0) % 360.0 - 180.0
    pole = math.copysign(90.0, turn) if abs(turn) > 180.0 else None
    if pole is not None and pole not in poles:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, "the grid goes round a pole that its projection cannot show")
    keep = thinned(ni, nj, longitudes, latitudes)
    if curved:
        keep = np.union1d(keep, followed(longitudes, latitudes))
    return footprint(longitudes[keep], latitudes[keep], pole), unwrapped(longitudes, latitudes, pole)


def footprint(longitudes: Array, latitudes: Array, pole: float | None = None) -> dict[str, Any]:
    """Return the GeoJSON of a ring of grid points, split and wound by RFC 7946 (3.1.6, 3.1.9)."""
    ring = Polygon(list(zip(longitudes.tolist(), latitudes.tolist(), strict=True)))
    shape = antimeridian.fix_polygon(
        ring,
        fix_winding=True,
        force_north_pole=pole == 90.0,
        force_south_pole=pole == -90.0,
        great_circle=False,
    )
    if shape.is_empty or not shape.is_valid:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, "the outline of the grid crosses itself")
    return dict(mapping(shape))
