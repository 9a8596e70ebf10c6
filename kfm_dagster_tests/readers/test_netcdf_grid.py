"""The reader of NetCDF-4 grids: axes, times, datacube, hostile bytes, projections."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import h5py
import numpy as np
import pyproj
import pystac
import pytest
import shapely
from pystac.extensions.datacube import DatacubeExtension, HorizontalSpatialDimension, TemporalDimension
from shapely.geometry import shape

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples import netcdf4
from kfm_dagster.demo.samples.oisst import make_oisst
from kfm_dagster.readers.stored_values import band_fields
from kfm_dagster_tests.readers.reading import Change, code_of, deleted, header_of, rewritten

DAY = date(2025, 12, 3)
read = partial(header_of, "netcdf-grid", key="grid.nc")

refusal = partial(code_of, read)


def grid(
    longitudes: Any = (0.5, 1.5, 2.5),
    latitudes: Any = (10.5, 11.5),
    *,
    dtype: str = "<f8",
    hours: Any = (0.0,),
    clock: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    libver: str = "earliest",
) -> bytes:
    """Return a CF grid of one field on 2000-01-01."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=libver) as file:
        netcdf4.annotate(file, attributes or {})
        units = clock or {"units": "hours since 2000-01-01"}
        netcdf4.axis(file, "time", np.asarray(hours, "<f8"), 0, units)
        netcdf4.axis(file, "lat", np.asarray(latitudes, dtype), 1, {"units": "degrees_north"})
        netcdf4.axis(file, "lon", np.asarray(longitudes, dtype), 2, {"units": "degrees_east"})
        field = file.create_dataset("field", shape=(len(hours), len(latitudes), len(longitudes)), dtype="<f4")
        netcdf4.attach(file, field, ("time", "lat", "lon"))
        netcdf4.annotate(field, {"standard_name": "air_temperature", "units": "K"})
    return buffer.getvalue()


# --- axes


@pytest.mark.parametrize(
    ("longitudes", "latitudes", "box", "transform"),
    [
        (np.arange(0.125, 360, 0.25), np.arange(-89.875, 90, 0.25), (-180, -90, 180, 90), (0.25, 0, -0.25, 90)),
        (np.arange(-179.95, 180, 0.1), np.arange(89.95, -90, -0.1), (-180, -90, 180, 90), (0.1, -180, -0.1, 90)),
        (np.arange(0, 360, 1), np.arange(-90, 91, 1), (-180, -90, 180, 90), (1, -0.5, -1, 90.5)),
        (np.arange(0.05, 360, 0.1), np.arange(-90, 90.05, 0.1), (-180, -90, 180, 90), (0.1, 0, -0.1, 90.05)),
        (np.arange(0, 361, 1), [0, 1], (-180, -0.5, 180, 1.5), (1, -0.5, -1, 1.5)),
        (np.arange(175.5, 186, 1), [10, 12], (175, 9, -174, 13), (1, 175, -2, 13)),
        (np.arange(200.5, 231, 1), [10, 12], (-160, 9, -129, 13), (1, 200, -2, 13)),
        (np.arange(-30.5, -20, 1)[::-1], [10, 12], (-31, 9, -20, 13), None),
        ([10, 20, 40, 80], [10, 12], (5, 9, 100, 13), None),
        ([1 / 3, 2 / 3, 1], [-89.5, -88.5], (1 / 6, -90, 7 / 6, -88), (1 / 3, 1 / 6, -1, -88)),
    ],
    ids=[
        "from 0", "from -180, north first", "points at the poles", "sums of tenths", "closed", "over the antimeridian",
        "west of the antimeridian", "westwards", "uneven", "thirds",
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f4"])
def test_the_cells_of_a_grid_end_half_a_cell_beyond_the_axes(
    longitudes: Any, latitudes: Any, box: tuple[float, ...], transform: tuple[float, ...] | None, dtype: str
) -> None:
    metadata = read(grid(longitudes, latitudes, dtype=dtype))
    assert bounding_box(metadata.geometry) == pytest.approx(box, abs=1e-6)
    outline = shape(metadata.geometry)
    assert outline.is_valid
    assert all(part.exterior.is_ccw for part in getattr(outline, "geoms", [outline]))
    assert metadata.properties["proj:shape"] == [len(latitudes), len(longitudes)]
    if transform is None:
        assert "proj:transform" not in metadata.properties
        return
    width, west, height, north = transform
    expected = [width, 0, west, 0, height, north]
    assert metadata.properties["proj:transform"] == pytest.approx(expected, abs=1e-6)
    rows, columns = metadata.properties["proj:shape"]
    sides = [west, north + rows * height, west + columns * width, north]
    assert metadata.properties["proj:bbox"] == pytest.approx(sides, abs=1e-5)


def test_a_gaussian_grid_has_no_even_step() -> None:
    latitudes = np.degrees(np.arcsin(np.polynomial.legendre.leggauss(192)[0]))
    metadata = read(grid(np.arange(0, 360, 1.875), latitudes))
    assert metadata.properties["cube:dimensions"]["lat"]["step"] is None
    assert metadata.properties["cube:dimensions"]["lon"]["step"] == 1.875
    # The box ends half of the outer spacing beyond the last parallel, so a quarter of a degree remains to the pole.
    assert bounding_box(metadata.geometry) == pytest.approx((-180, -89.7478, 180, 89.7478), abs=1e-4)
    # An axis with uneven steps in its middle only.
    uneven = read(grid([1, 2, 3.5, 4, 5])).properties
    assert uneven["cube:dimensions"]["lon"]["step"] is None
    assert "proj:transform" not in uneven
    assert uneven["proj:bbox"] == [0.5, 10, 5.5, 12]
    # An axis of doubles keeps its digits.
    twelfths = read(grid(np.arange(1, 8) / 12)).properties
    assert twelfths["proj:bbox"] == pytest.approx([1 / 24, 10, 15 / 24, 12], abs=1e-9)
    assert twelfths["proj:transform"][0] == pytest.approx(1 / 12, abs=1e-9)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_invalid_axes_are_refused(dtype: str) -> None:
    axes: list[tuple[Any, Any, MetadataIssue]] = [
        ([5], [1, 2], MetadataIssue.MISSING_GEOLOCATION),
        ([5, 5, 5], [1, 2], MetadataIssue.INVALID_GEOMETRY),
        ([5, 4, 6], [1, 2], MetadataIssue.INVALID_GEOMETRY),
        ([5, 6, 7], [1, 2, 90.1], MetadataIssue.INVALID_GEOMETRY),
        ([5, 6, 7], [1, np.nan, 2, 3, 4], MetadataIssue.INVALID_GEOMETRY),
        ([5, 6, 7], [1, 2, 3, np.nan, 5], MetadataIssue.INVALID_GEOMETRY),
        ([5, 6, 7], [1, 2, 200, 4, 5], MetadataIssue.INVALID_GEOMETRY),
        ([5, np.inf], [1, 2], MetadataIssue.INVALID_GEOMETRY),
        (np.arange(0, 362, 1), [1, 2], MetadataIssue.INVALID_GEOMETRY),
        ([-1e6, 1e6], [1, 2], MetadataIssue.INVALID_GEOMETRY),
    ]
    for longitudes, latitudes, code in axes:
        assert refusal(grid(longitudes, latitudes, dtype=dtype)) is code, (longitudes, latitudes)


@pytest.mark.parametrize(
    ("packing", "box"),
    [
        ({"scale_factor": 0.5, "add_offset": 10.0}, (10, 10, 11.5, 12)),
        ({"scale_factor": 2}, (0, 10, 6, 12)),
        ({"scale_factor": 1e38}, None),
        ({"scale_factor": 1e308}, None),
    ],
)
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_packed_axes_are_unpacked(packing: dict[str, float], box: tuple[float, ...] | None, dtype: str) -> None:
    content = rewritten(grid(dtype=dtype), lambda file: netcdf4.annotate(file["lon"], packing))
    if box is None:
        assert refusal(content) is MetadataIssue.INVALID_GEOMETRY
    else:
        assert bounding_box(read(content).geometry) == pytest.approx(box)


# --- times


def test_times_are_read_from_the_axis() -> None:
    for clock, hours, start in (
        ({"units": "days since 1978-01-01 12:00:00"}, [16326.0], "2022-09-13T12:00:00+00:00"),
        ({"units": "minutes since 1970-01-01T00:00:00+00:00"}, [27162120], "2021-08-23T14:00:00+00:00"),
        ({"units": "seconds since 2000-1-1 0:0:0.5 -6:00"}, [1.25], "2000-01-01T06:00:01.750000+00:00"),
        ({"units": "hours since 1800-01-01", "calendar": "standard"}, [24], "1800-01-02T00:00:00+00:00"),
        ({"units": "hours since 0001-01-01", "calendar": "proleptic_gregorian"}, [24], "0001-01-02T00:00:00+00:00"),
        ({"units": "hours since 0001-01-01", "calendar": "standard"}, [24], None),
        ({"units": "days since 2000-01-01", "calendar": "noleap"}, [1], None),
        ({"units": "months since 2000-01-01"}, [1], None),
        ({"units": "days since 2000-13-01"}, [1], None),
        ({"units": "days since 2000-01-01"}, [1e12], None),
        ({"units": "days since 2000-01-01"}, [np.nan], None),
        ({"units": "days since the flood"}, [1], None),
    ):
        content = grid(hours=hours, clock=clock)
        if start is None:
            assert refusal(content) is MetadataIssue.INVALID_TIME_RANGE
            continue
        metadata = read(content)
        assert metadata.start.isoformat() == start
        assert metadata.start == metadata.end == metadata.datetime


def test_each_name_of_a_unit_of_time_is_read() -> None:
    for seconds, units in (
        (1e-6, "microsecond microseconds"),
        (1e-3, "millisecond milliseconds msec msecs ms"),
        (1, "second seconds sec secs s SECONDS"),
        (60, "minute minutes min mins"),
        (3600, "hour hours hr hrs h Hours"),
        (86_400, "day days d"),
    ):
        for unit in units.split():
            metadata = read(grid(hours=[3.0], clock={"units": f"{unit} since 2000-01-01"}))
            assert (metadata.start - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() == pytest.approx(3 * seconds), (
                unit
            )


def test_an_axis_is_recognised_by_each_of_its_units_and_by_its_standard_name() -> None:
    for side in ("north", "east"):
        name, letter, standard = {"north": ("lat", "N", "latitude"), "east": ("lon", "E", "longitude")}[side]
        units = [f"degree{plural}_{end}" for plural in ("", "s") for end in (side, letter)]
        for unit in (*units, f"degree{letter}", f"degrees{letter}"):
            content = rewritten(grid(), _annotated(name, units=unit))
            assert read(content).properties["proj:shape"] == [2, 3], unit
        named = rewritten(grid(), _annotated(name, units="degrees", standard_name=standard))
        assert read(named).properties["proj:shape"] == [2, 3]
        assert refusal(rewritten(grid(), _annotated(name, units="degrees"))) is MetadataIssue.MISSING_GEOLOCATION


def covering(start: str, end: str) -> dict[str, str]:
    return {"time_coverage_start": start, "time_coverage_end": end}


def test_stated_coverage_has_priority_over_the_time_axis_and_must_include_the_axis() -> None:
    day = covering("2000-01-01T00:00:00Z", "2000-01-01T23:59:59Z")
    metadata = read(grid(hours=[6, 12, 18], attributes=day))
    assert (metadata.end - metadata.start, metadata.datetime, metadata.findings) == (
        timedelta(seconds=86_399),
        metadata.start,
        (),
    )
    extent = metadata.properties["cube:dimensions"]["time"]["extent"]
    assert extent == ["2000-01-01T06:00:00.000000Z", "2000-01-01T18:00:00.000000Z"]
    off = read(grid(hours=[30], attributes=day))
    assert [code for code, _ in off.findings] == [MetadataIssue.TIME_MISMATCH]
    alone = read(grid(hours=[np.nan], attributes=covering("2000-01-01", "2000-01-02")))
    assert (alone.start, alone.end - alone.start) == (datetime(2000, 1, 1, tzinfo=UTC), timedelta(days=1))
    backwards = covering("2000-01-02T00:00:00Z", "2000-01-01T00:00:00Z")
    assert refusal(grid(attributes=backwards)) is MetadataIssue.INVALID_TIME_RANGE


def test_the_valid_time_is_the_axis_with_the_standard_name_time() -> None:
    def forecast(file: h5py.File) -> None:
        units = {"units": "hours since 1999-01-01", "standard_name": "forecast_reference_time"}
        netcdf4.axis(file, "analysis", np.zeros(1), 3, units)

    def others(file: h5py.File) -> None:
        netcdf4.axis(file, "epoch", np.zeros(1), 3, {"units": "hours since 1998-01-01"})
        netcdf4.annotate(file["time"], {"standard_name": "time"})

    of_forecast, of_others = (read(rewritten(grid(), change)) for change in (forecast, others))
    assert of_forecast.start == of_others.start == datetime(2000, 1, 1, tzinfo=UTC)
    extent = of_forecast.properties["cube:dimensions"]["analysis"]["extent"]
    assert extent == ["1999-01-01T00:00:00.000000Z"] * 2


# --- the datacube


def test_dimensions_and_variables_follow_the_datacube_extension() -> None:
    def more(file: h5py.File) -> None:
        netcdf4.dimension(file, "nv", 2, 3)
        netcdf4.axis(file, "level", np.array([1000.0, 850.0, 500.0]), 4, {"units": "hPa", "positive": "down"})
        netcdf4.axis(file, "channel", np.array([3, 1], "<i4"), 5, {"long_name": "channel number"})
        netcdf4.axis(file, "member", np.array([np.nan, 1]), 6, {"units": "1"})
        netcdf4.variable(file, "lat_bnds", np.zeros((2, 2)), dimensions=["lat", "nv"])
        file["lat"].attrs["bounds"] = np.bytes_(b"lat_bnds")

    properties = read(rewritten(grid(), more)).properties
    item = pystac.Item("x", None, None, datetime(2000, 1, 1, tzinfo=UTC), dict(properties))
    cube = DatacubeExtension.ext(item, add_if_missing=True)
    lat, time = cube.dimensions["lat"], cube.dimensions["time"]
    assert isinstance(lat, HorizontalSpatialDimension)
    assert (lat.axis, lat.extent, lat.step) == ("y", [10.5, 11.5], 1)
    assert isinstance(time, TemporalDimension)
    assert cube.dimensions["level"].to_dict() == {
        "type": "spatial", "axis": "z", "extent": [500.0, 1000.0], "unit": "hPa"
    }  # fmt: skip
    assert cube.dimensions["nv"].to_dict() == cube.dimensions["member"].to_dict() == {"type": "index", "extent": [0, 1]}
    described = {"type": "axis", "extent": [1.0, 3.0], "description": "channel number"}
    assert cube.dimensions["channel"].to_dict() == described
    assert {name: variable.to_dict() for name, variable in cube.variables.items()} == {
        "field": {"dimensions": ["time", "lat", "lon"], "type": "data", "description": "air_temperature", "unit": "K"},
        "lat_bnds": {"dimensions": ["lat", "nv"], "type": "auxiliary"},
    }


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110"])
def test_texts_of_variable_length_are_read_like_texts_of_fixed_length(libver: str) -> None:
    texts = {"title": "Äther °C", "platform": "", "source": "x" * 3000, "product_version": "1.0"}
    fixed = {name: text.encode() for name, text in texts.items()}

    def lengthened(file: h5py.File) -> None:
        for name, text in texts.items():
            file.attrs[name] = text
        for name in ("time", "lat", "lon"):
            file[name].attrs["units"] = file[name].attrs["units"].decode()
        file.attrs["levels"] = np.array([1, 2, 3], ">i2")
        file.attrs["names"] = ["a", "b"]
        file.attrs["table"] = np.zeros(1, [("a", "i4")])

    plain = read(grid(attributes=fixed, libver=libver))
    metadata = read(rewritten(grid(libver=libver), lengthened))
    assert metadata.native["attributes"] == {**plain.native["attributes"], "levels": [1, 2, 3]}
    assert metadata.native["attributes"]["title"] == "Äther °C"
    assert metadata.properties == plain.properties
    assert metadata.properties["acdd:title"] == "Äther °C"
    # A text that is too long for an Item, and an empty text, are left out.
    assert not {"acdd:source", "acdd:platform"} & metadata.properties.keys()


def test_a_variable_that_only_has_a_dimension_s_name_is_not_an_axis() -> None:
    def change(file: h5py.File) -> None:
        netcdf4.dimension(file, "depth", 2, 3)
        netcdf4.variable(file, "_nc4_non_coord_depth", np.zeros((2, 2)), dimensions=["lat", "depth"], units="m")

    metadata = read(rewritten(grid(), change))
    assert metadata.native["variables"]["depth"]["dimensions"] == ("lat", "depth")
    assert metadata.properties["cube:dimensions"]["depth"] == {"type": "index", "extent": [0, 1]}


# --- hostile bytes


def _annotated(variable: str, **attributes: Any) -> Change:
    return lambda file: netcdf4.annotate(file[variable], attributes)


def _many(count: int, make: Callable[[h5py.File, int], None]) -> Change:
    def change(file: h5py.File) -> None:
        for number in range(count):
            make(file, number)

    return change


def _axes(file: h5py.File, number: int) -> None:
    netcdf4.axis(file, f"axis {number}", np.zeros(2), number + 3, {})


def _longer(file: h5py.File, number: int) -> None:
    _axes(file, number)
    for name in range(40):
        file[f"axis {number}"].attrs[f"text {name}"] = np.bytes_(b"x" * 4000)


def _second_latitude(file: h5py.File) -> None:
    netcdf4.axis(file, "y", np.arange(2.0), 3, {"units": "degrees_north"})


@pytest.mark.clause("OPR-07")
def test_impossible_headers_are_refused_with_a_code() -> None:
    for change, code in (
        (deleted("lat"), MetadataIssue.MISSING_GEOLOCATION),
        (_second_latitude, MetadataIssue.MISSING_GEOLOCATION),
        (_annotated("lon", units="1"), MetadataIssue.MISSING_GEOLOCATION),
        (_annotated("lon", units=np.array([1, 2])), MetadataIssue.MISSING_GEOLOCATION),
        (_annotated("lon", scale_factor="wide"), MetadataIssue.MISSING_GEOLOCATION),
        (_annotated("lon", scale_factor=np.nan), MetadataIssue.INVALID_GEOMETRY),
        (_annotated("time", units="days"), MetadataIssue.INVALID_TIME_RANGE),
        (lambda file: file.create_dataset("x" * 257, data=1), MetadataIssue.RESOURCE_LIMIT),
        (_many(300, lambda file, number: file.create_dataset(f"v{number}", data=1)), MetadataIssue.RESOURCE_LIMIT),
        (_many(40, _axes), MetadataIssue.RESOURCE_LIMIT),
        (_many(20, _longer), MetadataIssue.RESOURCE_LIMIT),
        (_many(600, lambda file, number: file.attrs.create(f"a{number}", 1)), MetadataIssue.RESOURCE_LIMIT),
    ):
        assert refusal(rewritten(grid(libver="v108"), change)) is code
    # NetCDF-3, which no bucket has, and a key of another day.
    assert refusal(b"CDF\x01" + bytes(5000)) is MetadataIssue.UNREADABLE_FORMAT
    assert refusal(make_oisst(DAY)[1], groups={"date": "20251204"}) is MetadataIssue.TIME_MISMATCH


# --- projections and positions


POLAR = {"grid_mapping_name": "polar_stereographic", "latitude_of_projection_origin": 90.0, "standard_parallel": 70.0}
SOUTH = {**POLAR, "latitude_of_projection_origin": -90.0, "standard_parallel": -70.0}
MERIDIAN = "straight_vertical_longitude_from_pole"
LAMBERT = {
    "grid_mapping_name": "lambert_conformal_conic", "standard_parallel": [30.0, 60.0], "earth_radius": 6370000.0,
    "longitude_of_central_meridian": -97.0, "latitude_of_projection_origin": 40.0,
}  # fmt: skip


def projected(x: Any, y: Any, mapping: Mapping[str, Any], *, units: str = "m") -> bytes:
    """Return a projected field whose axes have the attribute `axis`, as in the sea ice record."""

    def change(file: h5py.File) -> None:
        for name in ("field", "lat", "lon"):
            del file[name]
        netcdf4.dimension(file, "rows", len(y), 3)
        netcdf4.dimension(file, "columns", len(x), 4)
        for name, values, dimension in (("y", y, "rows"), ("x", x, "columns")):
            attributes = {"standard_name": f"projection_{name}_coordinate", "units": units, "axis": name.upper()}
            netcdf4.variable(file, f"{name}grid", np.asarray(values, "<f8"), dimensions=[dimension], **attributes)
        netcdf4.variable(file, "crs", np.bytes_(b"x"), **mapping)
        shape = (1, len(y), len(x))
        netcdf4.variable(file, "ice", np.zeros(shape), dimensions=["time", "rows", "columns"], grid_mapping="crs")

    return rewritten(grid(libver="v108"), change)


@pytest.mark.clause("OPR-14")
@pytest.mark.parametrize(
    ("mapping", "proj4", "origin", "encloses"),
    [
        (POLAR | {MERIDIAN: -45.0}, "+proj=stere +lat_0=90 +lat_ts=70 +lon_0=-45", (-9, -8), 90),
        (SOUTH | {MERIDIAN: 0.0}, "+proj=stere +lat_0=-90 +lat_ts=-70 +lon_0=0", (-4, -11), -90),
        (POLAR | {MERIDIAN: 180.0}, "+proj=stere +lat_0=90 +lat_ts=70 +lon_0=180", (-10, -40), None),
        (LAMBERT, "+proj=lcc +lat_1=30 +lat_2=60 +lat_0=40 +lon_0=-97 +R=6370000", (-11, -9), None),
    ],
    ids=["north pole", "south pole", "over the antimeridian", "Lambert"],
)  # fmt: skip
def test_the_footprint_of_a_projected_grid_is_the_outline_of_its_cells(
    mapping: dict[str, Any], proj4: str, origin: tuple[int, int], encloses: int | None
) -> None:
    step, size = 200_000.0, 20
    x, y = (origin[0] + np.arange(size)) * step, ((origin[1] + np.arange(size)) * step)[::-1]
    metadata = read(projected(x, y, mapping))
    outline, forward = shape(metadata.geometry), pyproj.Proj(proj4)
    assert outline.is_valid
    # Points just inside and just outside of the outer cells' edges, computed by PROJ.
    edges = np.linspace(-0.5, size - 0.5, 400)
    for margin, expected in ((-0.02, True), (0.02, False)):
        low, high = (-0.5 - margin) * np.ones(400), (size - 0.5 + margin) * np.ones(400)
        columns, rows = np.concatenate([edges, edges, low, high]), np.concatenate([low, high, edges, edges])
        inside = np.clip(columns, -0.48, size - 0.52), np.clip(rows, -0.48, size - 0.52)
        columns, rows = inside if expected else (columns, rows)
        longitudes, latitudes = forward((origin[0] + columns) * step, (origin[1] + rows) * step, inverse=True)
        on_meridian = np.abs(np.abs(longitudes) - 180) < 1e-6
        assert (shapely.contains_xy(outline, longitudes, latitudes) == expected)[~on_meridian].all()
    if encloses is not None:
        assert bounding_box(metadata.geometry)[::2] == (-180, 180)
        assert encloses in bounding_box(metadata.geometry)[1::2]
    properties = metadata.properties
    west, north = (origin[0] - 0.5) * step, (origin[1] + size - 0.5) * step
    assert properties["proj:bbox"] == [west, north - size * step, west + size * step, north]
    assert properties["proj:transform"] == [step, 0, west, 0, -step, north]
    assert properties["proj:shape"] == [size, size]
    place = pyproj.Proj(pyproj.CRS(properties["proj:wkt2"]))(-100.0, 50.0)
    assert place == pytest.approx(forward(-100.0, 50.0), abs=1e-3)
    assert [band["name"] for band in properties["bands"]] == ["ice"]
    assert properties["cube:dimensions"]["rows"]["reference_system"] == properties["proj:wkt2"]
    assert properties["cube:dimensions"]["rows"]["extent"] == [y[-1], y[0]]


@pytest.mark.clause("OPR-07", "OPR-14")
def test_a_grid_mapping_s_wkt_has_priority_and_unknown_mappings_are_refused() -> None:
    axes = np.arange(4) * 1000.0
    text = pyproj.CRS.from_epsg(3411).to_wkt("WKT1_GDAL")
    wrong = POLAR | {"straight_vertical_longitude_from_pole": 135.0}
    for name in ("crs_wkt", "spatial_ref"):
        properties = read(projected(axes, axes, wrong | {name: text})).properties
        assert properties["proj:code"] == properties["cube:dimensions"]["columns"]["reference_system"] == "EPSG:3411"
        assert pyproj.CRS(properties["proj:wkt2"]) == pyproj.CRS(3411)
    feet = pyproj.CRS.from_epsg(2263).to_wkt()
    for mapping, units in (
        ({}, "m"), (POLAR, "km"), ({"grid_mapping_name": "latitude_longitude"}, "m"), ({"spatial_ref": feet}, "m"),
        ({"spatial_ref": "EPSG:3411"}, "m"), ({"grid_mapping_name": "unheard"}, "m"),
        ({"spatial_ref": text.replace("Polar_Stereographic", "Polar_Spherographic")}, "m"),
    ):  # fmt: skip
        assert refusal(projected(axes, axes, mapping, units=units)) is MetadataIssue.MISSING_GEOLOCATION, mapping
    assert refusal(projected(axes * 1e7, axes, LAMBERT)) is MetadataIssue.INVALID_GEOMETRY


def scattered(longitudes: Any, latitudes: Any, **attributes: Any) -> bytes:
    """Return points or a curvilinear grid: positions by station, or by row and column."""

    def change(file: h5py.File) -> None:
        for name in ("field", "lat", "lon"):
            del file[name]
        names = ["eta", "xi"][: np.ndim(longitudes)]
        for number, (name, length) in enumerate(zip(names, np.shape(longitudes), strict=True), start=3):
            netcdf4.dimension(file, name, length, number)
        for name, values, units in (("lon", longitudes, "degrees_east"), ("lat", latitudes, "degrees_north")):
            netcdf4.variable(file, f"{name}_rho", np.asarray(values), dimensions=names, units=units, **attributes)

    limits = dict(zip(("lat_min", "lat_max", "lon_min", "lon_max"), (10.0, 20.0, 170.0, -170.0), strict=True))
    stated = {f"geospatial_{name}": value for name, value in limits.items()}
    return rewritten(grid(libver="v108", attributes=stated), change)


@pytest.mark.clause("OPR-14")
def test_the_box_of_positions_is_the_smallest_possible_or_that_in_the_attributes() -> None:
    turn, rows = np.meshgrid(np.arange(0.0, 360, 0.5), np.linspace(-70, 80, 30))
    nan = math.nan
    for longitudes, latitudes, attributes, box in (
        ([[179.0, -179.5], [178.5, 181.0]], [[1.0, 2.0], [3.0, 4.0]], {}, (178.5, 1, -179, 4)),
        ([350.0, 10.0, nan, 5.0], [1.0, 2.0, 60.0, nan], {}, (-10, 1, 10, 2)),
        ([1e30, 10.0, 12.0, 3.0], [0.0, 2.0, 3.0, -99.0], {"_FillValue": -99.0}, (10, 2, 12, 3)),
        (np.array([10, 20], "<i2"), np.array([30, 50], "<i2"), {"scale_factor": 0.1, "add_offset": 1.0}, (2, 4, 3, 6)),
        (turn, rows, {}, (-180, -70, 180, 80)),
        ([5.0], [6.0], {}, (5, 6, 5, 6)),
        ([5.0, 7.0], [6.0, 6.0], {}, (5, 6, 7, 6)),
        # No position is valid, or there are more than the maximum: the attributes' box.
        ([nan], [nan], {}, (170, 10, -170, 20)),
        (np.zeros(200_000), np.zeros(200_000), {}, (170, 10, -170, 20)),
    ):
        metadata = read(scattered(longitudes, latitudes, **attributes))
        assert bounding_box(metadata.geometry) == pytest.approx(box), box
        assert metadata.properties["place:source"] == ("attributes" if box == (170, 10, -170, 20) else "coordinates")
        assert "proj:shape" not in metadata.properties
    nowhere = rewritten(scattered([nan], [nan]), lambda file: file.attrs.__delitem__("geospatial_lat_min"))
    assert read(nowhere).geometry == {}


def test_points_whose_positions_have_the_attribute_axis_are_not_a_grid() -> None:
    def named(file: h5py.File) -> None:
        for name, axis in (("lon_rho", "X"), ("lat_rho", "Y")):
            netcdf4.annotate(file[name], {"axis": axis})

    metadata = read(rewritten(scattered([3.0, 1.0, 2.0], [4.0, 6.0, 5.0]), named))
    assert bounding_box(metadata.geometry) == (1, 4, 3, 6)
    assert metadata.properties["cube:dimensions"]["eta"] == {"type": "index", "extent": [0, 2]}


@pytest.mark.parametrize("chunks", [(2, 3), (3, 2), (5, 7)])
def test_positions_stored_in_chunks_are_all_read(chunks: tuple[int, int]) -> None:
    longitudes, latitudes = np.meshgrid(np.linspace(1, 2, 7), np.linspace(5, 9, 5))

    def chunked(file: h5py.File) -> None:
        for name in ("lon_rho", "lat_rho"):
            values, attributes = file[name][...], dict(file[name].attrs)
            del file[name]
            copy = file.create_dataset(name, data=values, chunks=chunks, compression="gzip", shuffle=True)
            netcdf4.attach(file, copy, ["eta", "xi"])
            netcdf4.annotate(copy, {"units": attributes["units"]})

    for corner in ((0, 0), (4, 6), (2, 3), (4, 0)):
        moved = longitudes.copy()
        moved[corner] = -3.0
        metadata = read(rewritten(scattered(moved, latitudes), chunked))
        assert bounding_box(metadata.geometry) == (-3, 5, 2, 9), corner


def test_a_file_whose_key_has_a_run_is_described_as_a_forecast() -> None:
    def forecast(file: h5py.File) -> None:
        units = {"units": "hours since 1999-12-31", "standard_name": "forecast_reference_time"}
        netcdf4.axis(file, "run", np.array([12.0]), 3, units)

    content, groups = rewritten(grid(hours=[6.5]), forecast), {"run": "19991231", "prefix": "nwm", "domain": "conus"}
    for named in ({"cycle": "12", "lead": "018"}, {"cycle": "15"}):
        properties = read(content, groups=groups | named).properties
        assert properties["forecast:reference_datetime"] == "1999-12-31T12:00:00Z"
        assert (properties["forecast:horizon"], properties["nwm:domain"]) == ("PT1110M", "conus")
    assert refusal(content, groups=groups | {"cycle": "15", "lead": "015"}) is MetadataIssue.TIME_MISMATCH
    # A file without a run has that of the key. A run after the file's time gives no horizon.
    properties = read(grid(hours=[6.5]), groups=groups).properties
    assert properties["forecast:reference_datetime"] == "1999-12-31T00:00:00Z"
    assert "forecast:horizon" not in read(grid(hours=[6.5]), groups={"run": "20000102"}).properties
    # If the key has no run, the file's run is not described.
    assert not [name for name in read(content).properties if name.startswith("forecast:")]


@pytest.mark.clause("OPR-21")
def test_a_band_has_the_type_nodata_and_packing_of_its_values() -> None:
    for data_type, attributes, expected in (
        # GOES-R: 16-bit integers that are unsigned, as netCDF4 and GDAL show them.
        ("int16", {"_Unsigned": "true", "_FillValue": -1.0}, {"data_type": "uint16", "nodata": 65535}),
        ("int16", {"_Unsigned": "true", "_FillValue": 1023.0}, {"data_type": "uint16", "nodata": 1023}),
        ("int16", {"_Unsigned": "false", "_FillValue": -1.0}, {"data_type": "int16", "nodata": -1}),
        ("int8", {"_Unsigned": "true", "_FillValue": -1.0}, {"data_type": "uint8", "nodata": 255}),
        # `_Unsigned` on a type that is unsigned already.
        ("uint8", {"_Unsigned": "true", "_FillValue": 255.0}, {"data_type": "uint8", "nodata": 255}),
        ("float32", {"_Unsigned": "true", "_FillValue": -9.0}, {"data_type": "float32", "nodata": -9.0}),
        ("float64", {"_FillValue": math.nan}, {"data_type": "float64", "nodata": "nan"}),
        ("float64", {"_FillValue": math.inf}, {"data_type": "float64", "nodata": "inf"}),
        ("float64", {"_FillValue": -math.inf}, {"data_type": "float64", "nodata": "-inf"}),
        # CF 2.5.1: the fill value has priority over a missing value.
        ("int16", {"missing_value": -999}, {"data_type": "int16", "nodata": -999}),
        ("int16", {"missing_value": -999, "_FillValue": 0}, {"data_type": "int16", "nodata": 0}),
        ("int16", {"missing_value": [1, 2]}, {"data_type": "int16"}),
        # CF 8.1: a scale or offset that is not a number is ignored.
        (
            "int16",
            {"scale_factor": 0.5, "add_offset": -2.0},
            {"data_type": "int16", "raster:scale": 0.5, "raster:offset": -2.0},
        ),
        ("int16", {"scale_factor": math.nan, "add_offset": math.inf}, {"data_type": "int16"}),
        ("int16", {"scale_factor": "0.5"}, {"data_type": "int16"}),
        ("float32", {"units": " W m-2 sr-1 um-1 "}, {"data_type": "float32", "unit": "W m-2 sr-1 um-1"}),
        ("float32", {"units": "1"}, {"data_type": "float32", "unit": "1"}),
        ("float32", {"units": "u" * 500}, {"data_type": "float32", "unit": "u" * 500}),
        ("float32", {"units": "u" * 501}, {"data_type": "float32"}),
        ("float32", {"units": "K\n"}, {"data_type": "float32", "unit": "K"}),
        ("float32", {"units": "K\x00K"}, {"data_type": "float32"}),
        ("float32", {"units": 1}, {"data_type": "float32"}),
        (None, {"_FillValue": 0, "units": "K"}, {"unit": "K"}),
    ):
        fields = band_fields(data_type, attributes)
        assert fields == expected
        assert [type(value) for value in fields.values()] == [type(expected[name]) for name in fields]
