"""Place of a CF file's values: footprint and projection by axes, coordinates or attributes.

Belongs here: grids on longitudes and latitudes, or on a projection (CF 5.6), positions of curvilinear grids, meshes and
points (CF 5.2, 5.4), and the extent by ACDD's attributes. Does not belong here: axes (`cf_axes.py`), the form of a
footprint (`geometry.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyproj
from pyproj.exceptions import ProjError

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.cf_axes import GridAxis, axis_kind, grid_axis
from kfm_dagster.readers.geometry import Array, border, outline, polygon_from_ring, rectangle, wrap
from kfm_dagster.readers.hdf5 import AttributeValue
from kfm_dagster.readers.netcdf_header import NetcdfHeader

SOURCE = "place:source"
"""Property with the source of a footprint that is only a box: `coordinates` or `attributes`."""
_MOST_COORDINATES = 16
"""Maximum variables of coordinates that are read; ROMS has four pairs."""
_SIDE_POINTS = 512
"""Points on a side of a projected grid, before the outline is simplified. On the largest grid (sea ice) they are 21 km
apart."""
_CLOSED = 359.0
"""Degrees of longitude: positions that span as many or more count as going round the earth."""
_EARTH = "EPSG:4326"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Footprint (empty if unknown) and projection; `plane` names dimensions of rows, columns."""

    geometry: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, float | None] = field(default_factory=dict)
    plane: tuple[str, str] | None = None
    reference_system: str | None = None
    """Reference system of projected axes; None without axes, and for WGS 84 longitudes and latitudes."""


def place(header: NetcdfHeader) -> Place:
    """Return the place of a file's values.

    Raises ReadError: MISSING_GEOLOCATION for incomplete axes and unknown projections, INVALID_GEOMETRY for impossible
    axes and outlines.
    """
    if {"x", "y"} & {axis_kind(axis) for axis in header.axes.values()}:
        x, y = grid_axis(header, "x"), grid_axis(header, "y")
        if x.in_metres != y.in_metres:
            raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"axes {x.name} and {y.name} are of two kinds")
        return _projected(header, x, y) if x.in_metres else _on_earth(x, y)
    if (longitudes_latitudes := _positions(header)) is not None:
        return Place(geometry=_around(*longitudes_latitudes), properties={SOURCE: "coordinates"})
    if (box := _stated(header.attributes)) is not None:
        return Place(geometry=box, properties={SOURCE: "attributes"})
    return Place()


def _on_earth(x: GridAxis, y: GridAxis) -> Place:
    """Return the place of cells; a circle of longitudes is full if under half a cell is missing.

    The transform keeps the file's longitudes, which may end at 360.
    """
    cell = (x.high - x.low) / x.length
    west, span = x.low, x.high - x.low
    if span > 360 + 1.5 * cell:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, f"longitudes from {x.low} to {x.high} are more than a turn")
    if span > 360 - cell / 2:
        west, span = -180.0, 360.0
    west = wrap(west)
    south, north = max(y.low, -90.0), min(y.high, 90.0)
    ring = [(west, south), (west + span, south), (west + span, north), (west, north)]
    return _grid(x, y, polygon_from_ring(ring), {"proj:code": _EARTH, "proj:wkt2": _crs(_EARTH)[1]})


def _projected(header: NetcdfHeader, x: GridAxis, y: GridAxis) -> Place:
    """Return the place of cells on a projection."""
    to_earth, wkt2, code = _crs(_mapping(header, (y.name, x.name)))
    sides = [np.linspace(axis.low, axis.high, _SIDE_POINTS) for axis in (x, y)]
    longitudes, latitudes = to_earth(*border(*sides), inverse=True)
    if not (np.isfinite(longitudes).all() and np.isfinite(latitudes).all()):
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, "part of the grid lies outside its projection")
    geometry, _ = outline(longitudes, latitudes, ni=_SIDE_POINTS, nj=_SIDE_POINTS, curved=True)
    names = {"proj:code": code} if code else {}
    return _grid(x, y, geometry, {**names, "proj:wkt2": wkt2}, code or wkt2)


def _grid(
    x: GridAxis, y: GridAxis, geometry: Mapping[str, Any], names: Mapping[str, Any], system: str | None = None
) -> Place:
    """Return the place with the fields of the projection extension 2.0.0.

    In the transform, row 0 is in the north: GDAL presents each NetCDF grid like this, whichever way its rows run. The
    transform is left out when cells differ in size, or when the columns run to the west.
    """
    properties = {**names, "proj:shape": [y.length, x.length], "proj:bbox": [x.low, y.low, x.high, y.high]}
    if x.step is not None and y.step is not None and x.step > 0:
        properties["proj:transform"] = [x.step, 0.0, x.low, 0.0, -abs(y.step), y.high]
    steps = {x.name: x.step, y.name: y.step}
    return Place(geometry=geometry, properties=properties, steps=steps, plane=(y.name, x.name), reference_system=system)


def _mapping(header: NetcdfHeader, plane: tuple[str, str]) -> tuple[tuple[str, Any], ...]:
    """Return the attributes of the one grid mapping of all fields of a plane (CF 5.6)."""
    fields = [variable for variable in header.variables.values() if variable.dimensions[-2:] == plane]
    names = {variable.text("grid_mapping").partition(":")[0].strip() for variable in fields} - {""}
    mapping = header.variables.get(*names) if len(names) == 1 else None
    if mapping is None:
        text = f"fields on projected axes name {len(names)} grid mappings: {sorted(names)}"
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, text)
    return tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in mapping.attributes.items())


@lru_cache(maxsize=64)
def _crs(mapping: str | tuple[tuple[str, Any], ...]) -> tuple[pyproj.Proj, str, str | None]:
    """Return a projection, and its reference system as WKT2 and (if the system has one) as code.

    `mapping` is a code or a grid mapping. A grid mapping's text (`crs_wkt`, GDAL's `spatial_ref`) has priority over its
    parameters, because those of sea-ice files are wrong: `straight_vertical_longitude_from_pole` is 180 degrees off.
    Raises ReadError(MISSING_GEOLOCATION) if a grid mapping is not a projection in metres.
    """
    try:
        if isinstance(mapping, str):
            crs = pyproj.CRS.from_user_input(mapping)
        else:
            attributes = {name: list(v) if isinstance(v, tuple) else v for name, v in mapping}
            texts = [attributes.pop(name, None) for name in ("crs_wkt", "spatial_ref")]
            wkt = next((text for text in texts if isinstance(text, str) and text), None)
            crs = pyproj.CRS.from_wkt(wkt) if wkt else pyproj.CRS.from_cf(attributes)
            if not crs.is_projected or any(axis.unit_conversion_factor != 1 for axis in crs.axis_info):
                raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"{crs.name} is not a projection in metres")
        own = crs.to_json_dict().get("id", {})
        return pyproj.Proj(crs), str(crs.to_wkt("WKT2_2019")), f"{own['authority']}:{own['code']}" if own else None
    except (ProjError, KeyError, TypeError, AttributeError) as error:
        text = f"no known grid mapping: {type(error).__name__}"
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, text) from error


def _positions(header: NetcdfHeader) -> tuple[Array, Array] | None:
    """Return the valid positions of the longest coordinate variables; None without positions."""
    pairs = sorted(_pairs(header), key=lambda pair: -math.prod(header.dimensions[name] for name in pair[2]))
    known: list[tuple[Array, Array]] = []
    for x, y, _ in pairs[: _MOST_COORDINATES // 2]:
        longitudes, latitudes = (_unpacked(header, name) for name in (x, y))
        if longitudes is None or latitudes is None or longitudes.shape != latitudes.shape:
            continue
        valid = (np.abs(longitudes) <= 720) & (np.abs(latitudes) <= 90)
        known.append((longitudes[valid], latitudes[valid]))
    together = [np.concatenate(values) for values in zip(*known, strict=True)]
    return (together[0], together[1]) if together and together[0].size else None


def _pairs(header: NetcdfHeader) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield names of a longitude and a latitude on the same dimensions, and these dimensions."""
    kinds = {name: axis_kind(variable) for name, variable in header.variables.items() if variable.dimensions}
    for x, y in ((x, y) for x, kind in kinds.items() if kind == "x" for y in kinds if kinds[y] == "y"):
        dimensions = header.variables[x].dimensions
        # Paired by dimensions, not by names, which differ by model: lon_rho and lat_rho (ROMS), lonc and latc (FVCOM).
        if dimensions == header.variables[y].dimensions:
            yield x, y, dimensions


def _unpacked(header: NetcdfHeader, name: str) -> Array | None:
    """Return unpacked values (CF 8.1), NaN if missing (CF 2.5.1); None for too large a variable."""
    variable, values = header.variables[name], header.values(name)
    if values is None:
        return None
    missing = {variable.number(attribute) for attribute in ("_FillValue", "missing_value")}
    for value in missing:
        values[values == value] = math.nan
    with np.errstate(over="ignore", invalid="ignore"):
        return values * variable.number("scale_factor", 1) + variable.number("add_offset", 0)


def _around(longitudes: Array, latitudes: Array) -> Mapping[str, Any]:
    """Return the smallest box round positions; for a box without area, its corners or a point."""
    turned = np.sort(longitudes % 360.0)
    gaps = np.diff(turned, append=turned[0] + 360.0)
    widest = int(gaps.argmax())
    west, span = wrap(float(turned[(widest + 1) % turned.size])), 360.0 - float(gaps[widest])
    return _box(west, span, float(latitudes.min()), float(latitudes.max()))


def _box(west: float, span: float, south: float, north: float) -> Mapping[str, Any]:
    if span >= _CLOSED:
        return rectangle(-180.0, south, 180.0, north)
    if span and south < north:
        return rectangle(west, south, west + span, north)
    ends = ((west, south), (wrap(west + span), north))
    return (
        {"type": "MultiPoint", "coordinates": ends}
        if span or south < north
        else {"type": "Point", "coordinates": ends[0]}
    )


def _stated(attributes: Mapping[str, AttributeValue]) -> Mapping[str, Any] | None:
    """Return the box that ACDD 1.3's attributes state; None unless all four are valid numbers."""
    names = ("geospatial_lon_min", "geospatial_lon_max", "geospatial_lat_min", "geospatial_lat_max")
    sides = [value for name in names if isinstance(value := attributes.get(name), int | float) and abs(value) <= 360]
    if len(sides) < len(names):
        return None
    west, east, south, north = sides
    return _box(wrap(west), east - west if west <= east else (east - west) % 360.0, south, north)
