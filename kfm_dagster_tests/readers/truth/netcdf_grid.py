"""NetCDF-4 grids on longitudes and latitudes: what netCDF4 reads of their headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

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
)


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened | None:
    """Open a file without a contract. NetCDF files of stations and time slices are no grids."""
    return (path, {}, content) if content.startswith(b"\x89HDF") else None


@compares("oisst", reader="netcdf-grid", open_file=open_file)
def netcdf_grid(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
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
    yield seconds("datetime", found.datetime, datetime.fromisoformat(expected["time"]).replace(tzinfo=UTC))
    attrs = expected["attrs"]
    yield seconds("start", found.start, datetime.fromisoformat(attrs["time_coverage_start"]))
    yield seconds("end", found.end, datetime.fromisoformat(attrs["time_coverage_end"]))
    sides = [float(attrs[f"geospatial_{side}"]) for side in ("lon_min", "lat_min", "lon_max", "lat_max")]
    yield degrees("proj:bbox", properties["proj:bbox"], sides)
    # The file's 0 to 360 is the whole globe.
    yield degrees("bbox", bounding_box(found.geometry), [-180.0, sides[1], 180.0, sides[3]])
    yield same("proj:shape", properties["proj:shape"], [expected["dimensions"]["lat"], expected["dimensions"]["lon"]])
    for name, dimensions in expected["variables"].items():
        if name not in expected["dimensions"]:
            yield same(f"cube:variables.{name}", properties["cube:variables"][name]["dimensions"], dimensions)
    # GDAL, too, has a band for each, for time and depth are one.
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
    yield same("findings", found.findings, ())


@compares(
    "cdr-seaice", "nwm", reader="netcdf-grid", open_file=open_file, refused={"": MetadataIssue.MISSING_GEOLOCATION}
)
def no_grid(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    """A polar projection, and stations of rivers: other NetCDF-4, which is refused before it is compared."""
    yield from ()
