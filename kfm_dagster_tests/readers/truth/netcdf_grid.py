"""CF NetCDF files: compare headers and positions with netCDF4, and projections with PROJ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import netCDF4
import numpy as np
import pyproj

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.truth.comparison import (
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    leaves,
    near,
    same,
    seconds,
    times,
)


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened | None:
    """Open a file without a contract."""
    return path, {}, content


@compares("oisst", reader="netcdf-grid", open_file=open_file)
def netcdf_grid(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, metadata.native, metadata.properties
    # The reference has every global attribute as text.
    yield from leaves("attrs", {name: str(value) for name, value in native["attributes"].items()}, expected["attrs"])
    yield from leaves("dimensions", native["dimensions"], expected["dimensions"])
    dimensions = {name: list(variable["dimensions"]) for name, variable in native["variables"].items()}
    yield from leaves("variables", dimensions, expected["variables"])
    yield from leaves("sst", native["variables"]["sst"]["attributes"], expected["sst"])
    for name in ("lat", "lon"):
        samples = native["variables"][name]["samples"]
        yield same(name, [samples[min(samples)], samples[max(samples)]], expected[name])
        extent = properties["cube:dimensions"][name]["extent"]
        yield near(f"cube:dimensions.{name}.extent", extent, sorted(expected[name]), within=1e-9)
    attrs = expected["attrs"]
    start, end = (datetime.fromisoformat(attrs[f"time_coverage_{name}"]) for name in ("start", "end"))
    yield from times(metadata, start, end, datetime.fromisoformat(expected["time"]).replace(tzinfo=UTC), within=1)
    sides = [float(attrs[f"geospatial_{side}"]) for side in ("lon_min", "lat_min", "lon_max", "lat_max")]
    yield degrees("proj:bbox", properties["proj:bbox"], sides)
    # The file's longitudes from 0 to 360 are the whole globe.
    yield degrees("bbox", bounding_box(metadata.geometry), [-180.0, sides[1], 180.0, sides[3]])
    yield same("proj:shape", properties["proj:shape"], [expected["dimensions"]["lat"], expected["dimensions"]["lon"]])
    for name, dimensions in expected["variables"].items():
        if name not in expected["dimensions"]:
            yield same(f"cube:variables.{name}", properties["cube:variables"][name]["dimensions"], dimensions)
    # GDAL also has one band for each variable, because time and depth have one value.
    bands = {band["name"]: band for band in properties["bands"]}
    yield same("bands", sorted(bands), sorted(expected["variables"].keys() - expected["dimensions"].keys()))
    packing = {"nodata": "_FillValue", "unit": "units", "raster:scale": "scale_factor", "raster:offset": "add_offset"}
    for field, attribute in packing.items():
        yield same(f"bands.sst.{field}", bands["sst"][field], expected["sst"][attribute])
    yield same("cube:variables.sst.unit", properties["cube:variables"]["sst"]["unit"], expected["sst"]["units"])
    described = properties["cube:variables"]["sst"]["description"]
    yield same("cube:variables.sst.description", described, expected["sst"]["long_name"])
    yield same("acdd:title", properties["acdd:title"], attrs["title"])
    yield same("processing:level", properties["processing:level"], "L4")
    yield same("findings", metadata.findings, ())


TIME_SLICES = dict.fromkeys(("_timeslices/", "rfc_timeseries/"), MetadataIssue.INVALID_TIME_RANGE)
"""Observations of gauges, whose times are texts, which the reader refuses."""
PIXEL = {"cdr-seaice": 25_000.0, "nwm-retro-forcing": 1000.0}
"""Metres from cell to cell."""


@compares(
    "cdr-seaice", "nclimgrid-daily", "nclimgrid-monthly", "nwm", "nwm-retro-chrtout", "nwm-retro-forcing", "ofs",
    reader="netcdf-grid", open_file=open_file, refused=TIME_SLICES,
)  # fmt: skip
def cf_file(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    """Compare grids, curvilinear grids and points with netCDF4, and projections with PROJ."""
    native, properties = metadata.native, metadata.properties
    with netCDF4.Dataset("file.nc", memory=real.content) as file:
        dimensions = {name: dimension.size for name, dimension in file.dimensions.items()}
        variables = {name: list(variable.dimensions) for name, variable in file.variables.items()}
        clock = next(name for name in ("time", "ocean_time") if name in variables)
        moments = netCDF4.num2date(file[clock][:], file[clock].units, only_use_cftime_datetimes=False)
        box = _box_of(file, real.family)
    expected = real.expected
    stated = expected.get("dims", {})
    yield from leaves("dimensions", {name: native["dimensions"][name] for name in stated}, stated)
    yield from leaves("dimensions", native["dimensions"], dimensions)
    for name, names in expected.get("variable_dims", {}).items():
        yield same(f"variables.{name}", list(native["variables"][name]["dimensions"]), names)
    dimensions_of = {name: list(variable["dimensions"]) for name, variable in native["variables"].items()}
    yield from leaves("variables", dimensions_of, variables)
    attributes = expected["global_attrs"]
    texts = {name: text for name, text in attributes.items() if isinstance(text, str) and len(text) < 200}
    yield from leaves("attributes", {name: str(native["attributes"].get(name)) for name in texts}, texts)
    yield degrees("bbox", bounding_box(metadata.geometry), box)
    utc = [moment.replace(tzinfo=UTC) for moment in (moments[0], moments[-1])]
    coverage = [attributes.get(f"time_coverage_{end}") for end in ("start", "end")]
    covered = [datetime.fromisoformat(text) for text in coverage] if all(coverage) else utc
    for name, moment, answer in zip(("start", "end"), (metadata.start, metadata.end), covered, strict=True):
        yield seconds(name, moment, answer)
    yield seconds("time", native["time"][0], utc[0])
    yield seconds("time", native["time"][1], utc[1])
    if real.family in PIXEL:
        transform = properties["proj:transform"]
        yield near("proj:transform", [transform[0], -transform[4]], [PIXEL[real.family]] * 2, within=1e-6)
    yield same("findings", metadata.findings, ())


def _box_of(file: netCDF4.Dataset, family: str) -> list[float]:
    """Return the bounds of the cells, by PROJ for projections, or of the positions."""
    if family in PIXEL:
        half = PIXEL[family] / 2
        x, y = (file[name][:].astype(float) for name in (("xgrid", "ygrid") if "xgrid" in file.variables else "xy"))
        crs = file[file[next(name for name in file.variables if "grid_mapping" in file[name].ncattrs())].grid_mapping]
        proj4 = crs.proj4text if "proj4text" in crs.ncattrs() else (
            f"+proj=lcc +lat_1={crs.standard_parallel[0]} +lat_2={crs.standard_parallel[1]} +R={crs.earth_radius} "
            f"+lat_0={crs.latitude_of_projection_origin} +lon_0={crs.longitude_of_central_meridian}"
        )  # fmt: skip
        corners = [np.linspace(axis.min() - half, axis.max() + half, 301) for axis in (x, y)]
        longitudes, latitudes = pyproj.Proj(proj4)(*np.meshgrid(*corners), inverse=True)
        if np.ptp(longitudes) > 359:
            # The pole is within a cell, and so not among the corners.
            south, north = float(latitudes.min()), float(latitudes.max())
            return [-180.0, -90.0, 180.0, north] if north < 0 else [-180.0, south, 180.0, 90.0]
    else:
        pairs = (("lon_rho", "lat_rho"), ("longitude", "latitude"), ("lon", "lat"))
        pair = next(pair for pair in pairs if pair[0] in file.variables)
        longitudes, latitudes = (file[name][:].astype(float) for name in pair)
    sides = [longitudes.min(), latitudes.min(), longitudes.max(), latitudes.max()]
    if family in {"nclimgrid-daily", "nclimgrid-monthly"}:
        halves = [np.ptp(axis) / (axis.size - 1) / 2 for axis in (longitudes, latitudes)] * 2
        sides = [side + sign * half for side, sign, half in zip(sides, (-1, -1, 1, 1), halves, strict=True)]
    return [float(side) for side in sides]
