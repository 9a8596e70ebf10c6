"""GRIB2 grids: from section 3 to a footprint and the projection fields of STAC.

Belongs here: grid definition templates 3.0, 3.1, 3.10, 3.20, 3.30, 3.40 and NCEP's 3.32769, and the earth shapes of
code table 3.2. Does not belong here: reading section 3 (`grib2_sections.py`), outlines as GeoJSON (`geometry.py`).
Octet numbers are those of WMO-No. 306, volume I.2, counted from 1, and of NCEP's page of template 3.32769.

Latitudes on the model's own earth (mostly a sphere) are taken as WGS 84 latitudes without a datum shift, as ecCodes and
wgrib2 do, because the models themselves treat them so.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyproj
from pyproj.crs import DerivedGeographicCRS
from pyproj.exceptions import CRSError, ProjError

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.geometry import (
    border,
    first_column,
    outline,
    rectangle,
    wrap,
)
from kfm_dagster.readers.grib2_sections import signed

MAX_SIDE = 50_000
"""Maximum grid points on a side. The finest real grids have 7,000 (MRMS); a larger number means a corrupt header."""

_MISSING_32 = 0xFFFFFFFF
_MICRODEGREES = 1_000_000
_SIDE_POINTS = 4096
"""Minimum points on a side of a rotated grid's outline."""
_EARTH_RADIUS_RANGE = (6.2e6, 6.6e6)
"""Radii in metres; every earth of code table 3.2 lies within."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A grid. `geometry` is as in `HeaderMetadata`; `shape` is (rows, columns).

    `transform` maps the corner of a cell (column, row) to the CRS. The rows of a Gaussian grid are not evenly spaced:
    `transform` has the mean spacing, as GDAL gives it, and is off by at most a fiftieth of a step. `parallels` is the
    number of these rows between pole and equator, which determines the latitudes; None for other grids. Row 0 is in the
    north, as GDAL presents every GRIB2 grid whatever its scanning mode. A grid round the earth begins at 180
    degrees west, even if its file begins at Greenwich. `native` has ecCodes' key names. `fault` describes a
    contradiction between increments and corners (the corners then define a grid in degrees, the increments a projected
    grid), or wrong rows of a Gaussian grid. All files of a grid share its `geometry`, which has tuples as coordinates.
    """

    template: int
    shape: tuple[int, int]
    wkt2: str
    transform: tuple[float, ...]
    proj_bbox: tuple[float, float, float, float]
    geometry: Mapping[str, Any]
    native: Mapping[str, Any]
    fault: str | None = None
    parallels: int | None = None


@lru_cache(maxsize=64)
def describe_grid(section: bytes) -> Grid:
    """Return the grid of a raw section 3, cached, because thousands of files have the same grid.

    Raises ReadError: MISSING_GEOLOCATION for an unknown template or earth, UNREADABLE_FORMAT for numbers that cannot be
    a grid, RESOURCE_LIMIT for a grid that is too large, INVALID_GEOMETRY for a grid without an outline.
    """
    try:
        template = int(struct.unpack_from(">H", section, 12)[0])
        if template not in _TEMPLATES:
            raise ReadError(
                MetadataIssue.MISSING_GEOLOCATION,
                f"grid definition template 3.{template} is not one of {', '.join(f'3.{n}' for n in _TEMPLATES)}",
            )
        build, scan_octet = _TEMPLATES[template]
        return build(_Definition.parse(section, template, scan_octet), section)
    except struct.error:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, "section 3 is shorter than its template") from None
    except (CRSError, ProjError, ValueError) as error:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, f"the grid has no outline: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Definition:
    """Common fields: earth (PROJ parameters), columns Ni, rows Nj, scanning mode (table 3.4)."""

    template: int
    earth: Mapping[str, Any]
    ni: int
    nj: int
    scan: int

    @classmethod
    def parse(cls, section: bytes, template: int, scan_octet: int) -> _Definition:
        points = struct.unpack_from(">I", section, 6)[0]
        ni, nj = struct.unpack_from(">II", section, 30)
        if _MISSING_32 in (ni, nj):
            raise ReadError(
                MetadataIssue.MISSING_GEOLOCATION, f"grid 3.{template} is reduced: its rows differ in length"
            )
        if not points == ni * nj > 0:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a grid of {ni} by {nj} does not have {points} points")
        if max(ni, nj) > MAX_SIDE:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a grid of {ni} by {nj} points is larger than {MAX_SIDE}")
        (scan,) = struct.unpack_from(">B", section, scan_octet - 1)
        if scan & 0x0F:
            raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"scanning mode {scan} has staggered rows or columns")
        return cls(template=template, earth=_earth(section), ni=ni, nj=nj, scan=scan)

    @property
    def eastward(self) -> bool:
        """Whether the points of a row run in the +i direction."""
        return not self.scan & 0x80

    @property
    def northward(self) -> bool:
        """Whether the rows run in the +j direction."""
        return bool(self.scan & 0x40)


def _earth(section: bytes) -> dict[str, Any]:
    """Return the earth of code table 3.2 as PROJ parameters."""
    # Octet 15 shape; 16-20 radius, 21-25 major and 26-30 minor axis, each as scale factor and value.
    shape, *scaled = struct.unpack_from(">BBIBIBI", section, 14)
    fixed: dict[int, dict[str, Any]] = {
        0: {"R": 6367470.0},
        2: {"a": 6378160.0, "b": 6356775.0},
        4: {"ellps": "GRS80"},
        5: {"datum": "WGS84"},
        6: {"R": 6371229.0},
        8: {"R": 6371200.0},
        9: {"ellps": "airy"},
    }
    if shape in fixed:
        return fixed[shape]
    radius, major, minor = (
        value / 10.0 ** signed(factor, 8) for factor, value in zip(*[iter(scaled)] * 2, strict=True)
    )
    unit = 1000.0 if shape == 3 else 1.0
    axes = {1: {"R": radius}, 3: {"a": major * unit, "b": minor * unit}, 7: {"a": major, "b": minor}}.get(shape)
    low, high = _EARTH_RADIUS_RANGE
    if axes is None or not all(low < axis < high for axis in axes.values()):
        raise ReadError(
            MetadataIssue.MISSING_GEOLOCATION, f"shape of the earth {shape} is unknown, or its axes are impossible"
        )
    return axes


def _angle(value: int, basic: int = 1, divisions: int = _MICRODEGREES) -> float:
    return signed(value, 32) * basic / divisions


def _point(latitude: float, longitude: float) -> tuple[float, float]:
    if not (abs(latitude) <= 90 and abs(longitude) <= 360):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"{latitude}, {longitude} is not a latitude and longitude")
    return latitude, longitude


def _lat_lon(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of template 3.0 or 3.40.

    Octets: 39-46 unit of angles, 47-54 first point, 55 flags, 56-63 last point, 64-71 increments of columns and rows
    (3.40: of columns only).
    """
    basic, divisions, la1, lo1, flags, la2, lo2, di, dj = struct.unpack_from(">IIIIBIIII", section, 38)
    if basic in (0, _MISSING_32) or divisions in (0, _MISSING_32):
        basic, divisions = 1, _MICRODEGREES
    first, last = (
        _point(_angle(latitude, basic, divisions), _angle(longitude, basic, divisions))
        for latitude, longitude in ((la1, lo1), (la2, lo2))
    )
    stated = {
        axis: _angle(value, basic, divisions)
        for axis, value, flag in (("i", di, 0x20), ("j", dj, 0 if definition.template == 40 else 0x10))
        if flags & flag and value not in (0, _MISSING_32)
    }
    return _of_corners(definition, first, last, stated)


def _of_corners(
    definition: _Definition, first: tuple[float, float], last: tuple[float, float], stated: Mapping[str, float]
) -> Grid:
    """Return a grid of degrees by its first and last (latitude, longitude).

    The corners are exact, and define the grid. Increments are rounded (0.166667) or missing; those in `stated` must
    span the corners.
    """
    south, north = sorted((first[0], last[0]))
    if (last[0] > first[0]) != definition.northward and definition.nj > 1:
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY, f"rows from {first[0]} to {last[0]} contradict the scanning mode"
        )
    west, east = (first[1], last[1]) if definition.eastward else (last[1], first[1])
    span = (east - west) % 360.0 if abs(east - west) < 360.0 else 360.0
    if definition.ni < 2 or definition.nj < 2 or not span > 0 or not north > south:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, "a single row or column of points has no outline")
    dx, dy = span / (definition.ni - 1), (north - south) / (definition.nj - 1)
    west = wrap(west)
    # A grid round the earth has no gap on the ground, although its last column is a step before the first.
    round_earth = span + dx >= 360.0 - dx / 2
    first_longitude = first_column(west, dx) if round_earth and span < 360.0 else west
    corners = (first_longitude - dx / 2, south - dy / 2, first_longitude + span + dx / 2, north + dy / 2)
    return Grid(
        template=definition.template,
        shape=(definition.nj, definition.ni),
        wkt2=_wkt2({"proj": "longlat"} | dict(definition.earth)),
        transform=(dx, 0.0, corners[0], 0.0, -dy, corners[3]),
        proj_bbox=corners,
        geometry=rectangle(-180.0, south, 180.0, north) if round_earth else rectangle(west, south, west + span, north),
        native=_native(definition, first, last, (west, south, west + span, north))
        | {f"{axis}DirectionIncrementInDegrees": increment for axis, increment in stated.items()},
        fault=_extent_fault(
            (stated.get(axis, step) * (points - 1), step * (points - 1), step / 2)
            for axis, step, points in (("i", dx, definition.ni), ("j", dy, definition.nj))
        ),
    )


_BESSEL_ZERO = 2.404825557695773
"""First zero of the Bessel function J0. It gives the latitude of a Gaussian grid's outermost row, which is a root of a
Legendre polynomial, to 1e-5 degrees."""
_MILLIDEGREE = 1e-3
"""Unit to which NCEP rounds the latitudes of Gaussian grids."""


def _gaussian(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of template 3.40: as 3.0, with parallels per hemisphere in octets 68-71."""
    (parallels,) = struct.unpack_from(">I", section, 67)
    grid = _lat_lon(definition, section)
    fault = grid.fault
    outermost = 90.0 - math.degrees(_BESSEL_ZERO / (definition.nj + 0.5))
    sides = grid.native["latitudeMin"], grid.native["latitudeMax"]
    if definition.nj != 2 * parallels:
        fault = f"{definition.nj} rows, expected {2 * parallels}: {parallels} parallels on each side of the equator"
    elif any(abs(abs(side) - outermost) > _MILLIDEGREE for side in sides):
        fault = f"rows from {sides[0]} to {sides[1]} do not end at the outermost parallels of {outermost:.4f} degrees"
    return replace(grid, parallels=parallels, native={**grid.native, "N": parallels}, fault=fault)


def _rotated(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of template 3.1: as 3.0, then octets 73-80 southern pole, 81-84 rotation."""
    latitude, longitude, rotation = struct.unpack_from(">IIf", section, 72)
    if rotation != 0:
        # PROJ and ecCodes differ on the meaning of a rotation, and no real grid of NOAA or Canada has one.
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"a rotated grid turned by {rotation} is not read")
    return _on_earth(_lat_lon(definition, section), definition, _point(_angle(latitude), _angle(longitude)))


def _rotated_about_centre(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of NCEP's template 3.32769.

    Octets: 47-54 first and 73-80 last point, on the earth; 56-63 centre, the origin of the rotated degrees. RAP's
    increments (64-71, nanodegrees) are not used: they are 0.00002 degrees smaller than its corners and the model's
    spacing of 13,545 m require.
    """
    la1, lo1, la0, lo0, la2, lo2 = struct.unpack_from(">IIxII9xII", section, 46)
    first, centre, last = (_point(_angle(lat), _angle(lon)) for lat, lon in ((la1, lo1), (la0, lo0), (la2, lo2)))
    if centre[0] < 0:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"a rotated grid about latitude {centre[0]} is not read")
    pole = centre[0] - 90.0, centre[1]
    to_earth = pyproj.Transformer.from_crs(*_rotation(definition, pole), always_xy=True)
    (x1, y1), (x2, y2) = (to_earth.transform(*point[::-1], direction="INVERSE") for point in (first, last))
    corners = _native(definition, first, last, (0, 0, 0, 0))
    return _on_earth(replace(_of_corners(definition, (y1, x1), (y2, x2), {}), native=corners), definition, pole)


def _rotation(definition: _Definition, pole: tuple[float, float]) -> tuple[pyproj.CRS, pyproj.CRS]:
    """Return the CRS of degrees rotated to a southern pole, and the CRS of the earth."""
    earth = pyproj.CRS.from_dict({"proj": "longlat", **definition.earth, "no_defs": True, "type": "crs"})
    names = "Latitude of the southern pole", "Longitude of the southern pole", "Axis rotation"
    method = "Pole rotation (GRIB convention)"
    values = pole[0], wrap(pole[1]), 0.0
    conversion = {
        "type": "Conversion",
        "name": method,
        "method": {"name": method},
        "parameters": [
            {"name": f"{name} (GRIB convention)", "value": value, "unit": "degree"}
            for name, value in zip(names, values, strict=True)
        ],
    }
    return DerivedGeographicCRS(earth, conversion, name="unknown"), earth


def _on_earth(grid: Grid, definition: _Definition, pole: tuple[float, float]) -> Grid:
    """Return a grid of rotated degrees with its outline on the earth."""
    if grid.transform[0] * definition.ni >= 180.0:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "a rotated grid of half the earth or more is not read")
    rotated, earth = _rotation(definition, pole)
    dx, _, west, _, dy, north = grid.transform
    # Between two points of the grid the outline is curved: near a pole by more than a hundredth of a degree.
    ni, nj = (max(points, _SIDE_POINTS) for points in (definition.ni, definition.nj))
    x = west + dx * (np.linspace(0, definition.ni - 1, ni) + 0.5)
    y = north + dy * (np.linspace(definition.nj - 1, 0, nj) + 0.5)
    to_earth = pyproj.Transformer.from_crs(rotated, earth, always_xy=True)
    geometry, (west, south, east, north) = outline(*to_earth.transform(*border(x, y)), ni=ni, nj=nj, curved=True)
    sides = {"latitudeMin": south, "latitudeMax": north, "longitudeWest": west, "longitudeEast": east}
    southern = {"latitudeOfSouthernPoleInDegrees": pole[0], "longitudeOfSouthernPoleInDegrees": pole[1]}
    wkt2 = rotated.to_wkt("WKT2_2019")
    return replace(grid, wkt2=wkt2, geometry=geometry, native={**grid.native, **sides, **southern})


def _extent_fault(extents: Iterable[tuple[float, float, float]]) -> str | None:
    """Return a fault if extents by increments and by corners, in degrees, differ too much."""
    for by_increments, by_corners, within in extents:
        if abs(by_increments - by_corners) > within:
            return f"the increments of the grid reach {by_increments:.6f} degrees, the corners {by_corners:.6f}"
    return None


def _mercator(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of template 3.10."""
    # Octets 39-46 first point, 48-51 LaD, 52-59 last point, 61-64 orientation, 65-72 Di, Dj in mm.
    la1, lo1, lad, la2, lo2, orientation, di, dj = struct.unpack_from(">IIxIIIxIII", section, 38)
    if orientation not in (0, _MISSING_32):
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"a Mercator grid turned by {orientation} is not read")
    # The template has no central meridian, so 0 is used; x may continue beyond the antimeridian.
    projection = {"proj": "merc", "lat_ts": _angle(lad), "lon_0": 0.0}
    first = _point(_angle(la1), _angle(lo1))
    # Real files round the last point to millidegrees, so it is only used for comparison.
    native = {"latitudeOfLastGridPointInDegrees": _angle(la2), "longitudeOfLastGridPointInDegrees": _angle(lo2)}
    grid = _projected(definition, projection=projection, first=first, spacing=(di / 1e3, dj / 1e3), native=native)
    # In real files the stated last point differs by at most 0.5 % of the extent; 2 % is tolerated.
    west, south, east, north = (
        grid.native[side] for side in ("longitudeWest", "latitudeMin", "longitudeEast", "latitudeMax")
    )
    turn = native["longitudeOfLastGridPointInDegrees"] - first[1]
    corners = (
        (turn if definition.eastward else -turn) % 360.0,
        abs(native["latitudeOfLastGridPointInDegrees"] - first[0]),
    )
    sides = zip((east - west, north - south), corners, strict=True)
    return replace(grid, fault=_extent_fault((side, corner, 0.02 * side) for side, corner in sides))


def _polar_stereographic(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of template 3.20."""
    # Octets 39-46 first point, 48-51 LaD, 52-55 LoV, 56-63 Dx and Dy in mm, 64 projection centre.
    la1, lo1, lad, lov, dx, dy, centre = struct.unpack_from(">IIxIIIIB", section, 38)
    pole = -90.0 if centre & 0x80 else 90.0
    true_scale = math.copysign(_angle(lad), pole)
    projection = {"proj": "stere", "lat_0": pole, "lat_ts": true_scale, "lon_0": wrap(_angle(lov))}
    native = {"LaDInDegrees": _angle(lad), "orientationOfTheGridInDegrees": _angle(lov)}
    first = _point(_angle(la1), _angle(lo1))
    spacing = (dx / 1e3, dy / 1e3)
    return _projected(definition, projection=projection, first=first, spacing=spacing, native=native, poles=(pole,))


def _lambert(definition: _Definition, section: bytes) -> Grid:
    """Return a grid of template 3.30: as 3.20, then octets 66-69 Latin1, 70-73 Latin2."""
    la1, lo1, lad, lov, dx, dy, centre, latin1, latin2 = struct.unpack_from(">IIxIIIIBxII", section, 38)
    if centre & 0x40:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "a bipolar Lambert grid is not read")
    latins = {"Latin1InDegrees": _angle(latin1), "Latin2InDegrees": _angle(latin2)}
    projection = {
        "proj": "lcc",
        "lat_1": latins["Latin1InDegrees"],
        "lat_2": latins["Latin2InDegrees"],
        "lat_0": _angle(lad),
        "lon_0": wrap(_angle(lov)),
    }
    native = latins | {"LaDInDegrees": _angle(lad), "LoVInDegrees": _angle(lov)}
    first, spacing = _point(_angle(la1), _angle(lo1)), (dx / 1e3, dy / 1e3)
    return _projected(definition, projection=projection, first=first, spacing=spacing, native=native)


def _projected(
    definition: _Definition,
    *,
    projection: Mapping[str, Any],
    first: tuple[float, float],
    spacing: tuple[float, float],
    native: Mapping[str, Any],
    poles: Collection[float] = (),
) -> Grid:
    """Return a grid of `spacing` metres on a projection, by its first (latitude, longitude)."""
    parameters = dict(projection) | dict(definition.earth)
    forward = pyproj.Proj(parameters)
    dx, dy = spacing
    x0, y0 = forward(first[1], first[0], errcheck=True)
    width, height = dx * (definition.ni - 1), dy * (definition.nj - 1)
    west, south = (x0 if definition.eastward else x0 - width), (y0 if definition.northward else y0 - height)
    if not (width > 0 and height > 0 and math.isfinite(x0) and math.isfinite(y0)):
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, f"a grid of {width} by {height} m has no outline")
    x, y = border(west + np.linspace(0, width, definition.ni), south + np.linspace(0, height, definition.nj))
    longitudes, latitudes = (np.asarray(axis, dtype=np.float64) for axis in forward(x, y, inverse=True))
    if not (np.isfinite(longitudes).all() and np.isfinite(latitudes).all()):
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, "part of the grid lies outside its projection")
    geometry, extent = outline(longitudes, latitudes, ni=definition.ni, nj=definition.nj, poles=poles)
    last = (
        x0 + math.copysign(width, definition.eastward - 0.5),
        y0 + math.copysign(height, definition.northward - 0.5),
    )
    last_longitude, last_latitude = forward(*last, inverse=True)
    corners = (west - dx / 2, south - dy / 2, west + width + dx / 2, south + height + dy / 2)
    return Grid(
        template=definition.template,
        shape=(definition.nj, definition.ni),
        wkt2=_wkt2(parameters | {"units": "m"}),
        transform=(dx, 0.0, corners[0], 0.0, -dy, corners[3]),
        proj_bbox=corners,
        geometry=geometry,
        native=_native(definition, first, (last_latitude, last_longitude), extent)
        | {"DxInMetres": dx, "DyInMetres": dy}
        | dict(native),
    )


def _wkt2(parameters: Mapping[str, Any]) -> str:
    return str(pyproj.CRS.from_dict({**parameters, "no_defs": True, "type": "crs"}).to_wkt("WKT2_2019"))


def _native(
    definition: _Definition,
    first: tuple[float, float],
    last: tuple[float, float],
    extent: tuple[float, float, float, float],
) -> dict[str, Any]:
    west, south, east, north = extent
    return {
        "gridDefinitionTemplateNumber": definition.template,
        "Ni": definition.ni,
        "Nj": definition.nj,
        "scanningMode": definition.scan,
        "latitudeOfFirstGridPointInDegrees": first[0],
        "longitudeOfFirstGridPointInDegrees": first[1],
        "latitudeOfLastGridPointInDegrees": last[0],
        "longitudeOfLastGridPointInDegrees": last[1],
        "latitudeMin": south,
        "latitudeMax": north,
        "longitudeWest": west,
        "longitudeEast": east,
    }


_TEMPLATES: Mapping[int, tuple[Callable[[_Definition, bytes], Grid], int]] = {
    0: (_lat_lon, 72),
    1: (_rotated, 72),
    10: (_mercator, 60),
    20: (_polar_stereographic, 65),
    30: (_lambert, 65),
    40: (_gaussian, 72),
    32769: (_rotated_about_centre, 72),
}
"""Each template's builder, and the octet of its scanning mode."""
