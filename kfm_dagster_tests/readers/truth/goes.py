"""GOES-R: compare ABI and GLM headers with netCDF4 and h5py, and the Item's properties."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import h5py
import netCDF4
import numpy as np
import numpy.typing as npt
from pyproj import Proj

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.goes_abi import EXTENT
from kfm_dagster.readers.goes_granule import ATTRIBUTES
from kfm_dagster_tests.readers.truth.comparison import (
    Compared,
    RealObject,
    compares,
    degrees,
    leaves,
    near,
    same,
    times,
)

NOT_READ = {
    "variables", "data_model", "global_attrs", "h5netcdf_time_coverage_start", "t", "time_bounds", "x_image_bounds",
    "y_image_bounds", "nominal_satellite_subpoint_lon", "nominal_satellite_subpoint_lat", "nominal_satellite_height",
}  # fmt: skip
"""Parts of the reference that describe the file as a whole, and variables without a property."""
PARTS_READ = {"attrs": {*ATTRIBUTES, "scene_id", "timeline_id"}, "geospatial_lat_lon_extent": EXTENT, "dims": "xy"}
SIDES = ("westbound_longitude", "southbound_latitude", "eastbound_longitude", "northbound_latitude")
POINTS = 1001
"""The number of points along each side of an image."""
BISECTIONS = 45
Points = npt.NDArray[np.float64]
"""Rows of x and y."""


def native_values(native: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare the header values of any ABI product."""
    # The reference has no images.
    native = {name: value for name, value in native.items() if name != "images"}
    reference = {name: value for name, value in expected.items() if name not in NOT_READ}
    # A tool that rewrote some files added `coordinates` to every variable.
    parts = PARTS_READ | {"goes_imager_projection": reference["goes_imager_projection"].keys() - {"coordinates"}}
    for name, read in parts.items():
        reference[name] = {part: value for part, value in reference[name].items() if part in read}
    yield from leaves("native", native, reference)


def images_of(content: bytes) -> dict[str, dict[str, Any]]:
    """Return each image's type, fill value, unit and packing by netCDF4, sorted by name."""
    with netCDF4.Dataset("object.nc", memory=content) as file:
        file.set_auto_maskandscale(False)
        shape = file.dimensions["y"].size, file.dimensions["x"].size
        return {
            name: {"dtype": image.dtype, **{attribute: image.getncattr(attribute) for attribute in image.ncattrs()}}
            for name, image in sorted(file.variables.items())
            if image.shape == shape and not name.startswith("DQF")
        }


def stored(band: Mapping[str, Any], image: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare a band's type, fill value, unit and packing; an absent attribute is None."""
    packed, fill = np.dtype(image["dtype"]), image.get("_FillValue")
    shown = np.dtype(f"u{packed.name}") if image.get("_Unsigned") == "true" else packed
    yield same("bands.data_type", band["data_type"], shown.name)
    yield same("bands.nodata", band.get("nodata"), None if fill is None else fill.astype(packed).view(shown).item())
    yield same("bands.unit", band.get("unit"), image.get("units"))
    for name, attribute in (("raster:scale", "scale_factor"), ("raster:offset", "add_offset")):
        value = image.get(attribute)
        yield same(f"bands.{name}", band.get(name), None if value is None else value.item())


@compares("goes-abi-l1b", "goes-abi-l2", reader="goes-abi")
def goes_abi(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, properties = real.expected, metadata.properties
    attrs, extent = expected["attrs"], expected["geospatial_lat_lon_extent"]
    yield from native_values(metadata.native, expected)
    start, end = (datetime.fromisoformat(attrs[f"time_coverage_{name}"]) for name in ("start", "end"))
    yield from times(metadata, start, end, start)
    stated = [round(extent[f"geospatial_{side}"], 6) for side in SIDES]
    yield degrees("bbox", bounding_box(metadata.geometry), _box_of_edges(expected))
    for name, value in (
        ("goes:extent", stated),
        ("platform", f"goes-{attrs['platform_ID'][1:]}"),
        ("goes:orbital-slot", attrs["orbital_slot"]),
        ("goes:uuid", attrs["id"]),
        ("processing:level", attrs["processing_level"].split()[-1]),
        ("gsd", float(attrs["spatial_resolution"].removesuffix("km at nadir")) * 1000),
        ("proj:shape", [expected["dims"]["y"], expected["dims"]["x"]]),
        ("goes:percent-uncorrectable-l0-errors", expected["percent_uncorrectable_L0_errors"]),
    ):
        yield same(name, properties[name], value)
    images = images_of(real.content)
    channels = [f"C{number:02}" for number in expected.get("band_id", [])]
    bands = properties["bands"]
    # Products of level 2 without channels have bands named for their images.
    yield same("bands.name", [band["name"] for band in bands], channels or list(images))
    for band, wavelength in zip(bands, expected.get("band_wavelength", [])):  # noqa: B905 - images without a channel have none
        yield near("bands.eo:center_wavelength", band["eo:center_wavelength"], wavelength, within=1e-4)
    for band, image in zip(bands, images.values(), strict=True):
        yield from stored(band, image)
    # The transform gives the file's axes as pixel centres.
    step_x, _, west, _, step_y, north = properties["proj:transform"]
    height = expected["goes_imager_projection"]["perspective_point_height"]
    yield near("proj:transform, x", (west + step_x / 2) / height, expected["x_first_last"][0], within=5e-8)
    yield near("proj:transform, y", (north + step_y / 2) / height, expected["y_first_last"][0], within=5e-8)
    yield same("findings", metadata.findings, ())


def _box_of_edges(expected: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the box, by PROJ, of the part of the Earth within the outer pixels' edges."""
    grid = expected["goes_imager_projection"]
    origin, height = grid["longitude_of_projection_origin"], grid["perspective_point_height"]
    scan = Proj(
        proj="geos", h=height, sweep=grid["sweep_angle_axis"], a=grid["semi_major_axis"], b=grid["semi_minor_axis"]
    )
    (west, east), (north, south) = (_edges(expected, axis) for axis in "xy")
    across, down = np.linspace(west, east, POINTS), np.linspace(north, south, POINTS)
    sides = [(across, north), (across, south), (west, down), (east, down)]
    points = np.concatenate([np.column_stack(np.broadcast_arrays(x, y)) for x, y in sides])
    seen = _is_seen(scan, points)
    bearings = np.linspace(0, 2 * np.pi, 4 * POINTS)
    space = height * np.column_stack([np.cos(bearings), np.sin(bearings)])
    limb = _last_seen(scan, np.zeros_like(space), space)
    limb = limb[((limb >= (west, south)) & (limb <= (east, north))).all(axis=1)]
    # The points at which a side leaves the Earth.
    leaving = np.flatnonzero(seen[:-1] != seen[1:])
    nearer = np.where(seen[leaving, None], points[leaving], points[leaving + 1])
    farther = np.where(seen[leaving, None], points[leaving + 1], points[leaving])
    ends = _last_seen(scan, nearer, farther)
    longitude, latitude = scan(*np.concatenate([points[seen], ends, limb]).T, inverse=True)
    box = (longitude.min() + origin, latitude.min(), longitude.max() + origin, latitude.max())
    return tuple(map(float, box))


def _edges(expected: Mapping[str, Any], axis: str) -> tuple[float, float]:
    """Return the outer edges of the first and the last pixel, in metres of the projection."""
    first, last = expected[f"{axis}_first_last"]
    half = (last - first) / (expected["dims"][axis] - 1) / 2
    height = expected["goes_imager_projection"]["perspective_point_height"]
    return (first - half) * height, (last + half) * height


def _is_seen(scan: Proj, points: Points) -> npt.NDArray[np.bool_]:
    longitude, _ = scan(*points.T, inverse=True)
    return np.isfinite(longitude)


def _last_seen(scan: Proj, seen: Points, unseen: Points) -> Points:
    """Return the last points on the Earth on lines from seen to unseen points, by bisection."""
    for _ in range(BISECTIONS):
        middle = (seen + unseen) / 2
        on = _is_seen(scan, middle)[:, None]
        seen, unseen = np.where(on, middle, seen), np.where(on, unseen, middle)
    return seen


NOT_HEADERS = {"variables", "data_model", "global_attrs", "h5netcdf_time_coverage_start"}
"""Parts of the reference that describe the file as a whole."""
BY_H5PY = (
    "product_time_bounds", "percent_navigated_L1b_events", "lightning_wavelength", "lightning_wavelength_bounds",
    "group_time_threshold", "flash_time_threshold",
)  # fmt: skip
"""Values that are not in the reference."""
BY_ATTRIBUTE = {
    "goes:orbital-slot": "orbital_slot",
    "goes:uuid": "id",
    "goes:created": "date_created",
    "goes:production-site": "production_site",
}


OF_LISTS = ("event_", "group_", "flash_")


def described(variable: h5py.Dataset) -> dict[str, str]:
    """Return unit and long name, without the common prefix."""
    texts = {name: variable.attrs[name].decode() for name in ("units", "long_name")}
    return {name: text.removeprefix("GLM L2+ Lightning Detection: ") for name, text in texts.items()}


@compares("goes-glm", reader="goes-glm")
def goes_glm(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, properties, native = real.expected, metadata.properties, dict(metadata.native)
    attributes = expected["attrs"]
    # The independent reader omits dimensions of length 0.
    native["dims"] = {name: length for name, length in native["dims"].items() if length}
    reference = {name: value for name, value in expected.items() if name not in NOT_HEADERS}
    reference["attrs"] = {name: attributes[name] for name in ATTRIBUTES if name in attributes}
    with h5py.File(io.BytesIO(real.content)) as file:
        reference |= {name: file[name][()].tolist() for name in BY_H5PY}
        reference["columns"] = {
            name: described(file[name]) for name in file if name.startswith(OF_LISTS) and file[name].ndim
        }
    yield from leaves("native", native, reference)
    start, end = (datetime.fromisoformat(attributes[f"time_coverage_{name}"]) for name in ("start", "end"))
    yield from times(metadata, start, end, start)
    (north, south), (west, east) = expected["lat_field_of_view_bounds"], expected["lon_field_of_view_bounds"]
    west, east = ((edge + 180) % 360 - 180 for edge in (west, east))
    yield degrees("bbox", bounding_box(metadata.geometry), (west, south, east, north))
    yield same("geometry.type", metadata.geometry["type"], "MultiPolygon" if west > east else "Polygon")
    for name, attribute in BY_ATTRIBUTE.items():
        yield same(name, properties[name], attributes[attribute])
    for name in ("event", "group", "flash"):
        yield same(f"glm:{name}-count", properties[f"glm:{name}-count"], expected[f"{name}_count"])
    for name, value in (
        ("platform", f"goes-{attributes['platform_ID'][1:]}"),
        ("instruments", ["glm"]),
        ("gsd", float(attributes["spatial_resolution"].removesuffix("km at nadir")) * 1000),
        ("processing:level", attributes["processing_level"].split()[-1]),
        ("goes:percent-uncorrectable-l0-errors", expected["percent_uncorrectable_L0_errors"]),
    ):
        yield same(name, properties[name], value)
    for name, value in (
        ("glm:group-time-threshold", reference["group_time_threshold"]),
        ("glm:flash-time-threshold", reference["flash_time_threshold"]),
        ("eo:center_wavelength", reference["lightning_wavelength"] / 1000),
        (
            "eo:full_width_half_max",
            (reference["lightning_wavelength_bounds"][1] - reference["lightning_wavelength_bounds"][0]) / 1000,
        ),
        ("goes:subsatellite-longitude", reference["nominal_satellite_subpoint_lon"]),
        ("goes:subsatellite-latitude", reference["nominal_satellite_subpoint_lat"]),
    ):
        yield near(name, properties[name], value, within=1e-5)
    yield same("findings", metadata.findings, ())
