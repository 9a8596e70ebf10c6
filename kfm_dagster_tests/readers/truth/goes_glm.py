"""GOES-R GLM: every header value that netCDF4 reads, the few others by h5py, and what a catalog makes of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime

import h5py

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.goes_granule import ATTRIBUTES
from kfm_dagster_tests.readers.truth.comparison import (
    Compared,
    RealObject,
    compares,
    degrees,
    leaves,
    near,
    same,
    seconds,
)

NOT_HEADERS = {"variables", "data_model", "global_attrs", "h5netcdf_time_coverage_start"}
"""Parts of the reference that describe the file as a whole."""
BY_H5PY = (
    "product_time_bounds", "percent_navigated_L1b_events", "lightning_wavelength", "lightning_wavelength_bounds",
    "group_time_threshold", "flash_time_threshold",
)  # fmt: skip
"""Values that the reference lacks."""
BY_ATTRIBUTE = {
    "goes:orbital-slot": "orbital_slot",
    "goes:uuid": "id",
    "goes:created": "date_created",
    "goes:production-site": "production_site",
}


OF_LISTS = ("event_", "group_", "flash_")


def described(variable: h5py.Dataset) -> dict[str, str]:
    """Unit and long name, without the words that all of them begin with."""
    texts = {name: variable.attrs[name].decode() for name in ("units", "long_name")}
    return {name: text.removeprefix("GLM L2+ Lightning Detection: ") for name, text in texts.items()}


@compares("goes-glm", reader="goes-glm")
def goes_glm(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, properties, native = real.expected, found.properties, dict(found.native)
    attributes = expected["attrs"]
    # The independent reader lists no dimension without a length.
    native["dims"] = {name: length for name, length in native["dims"].items() if length}
    wanted = {name: value for name, value in expected.items() if name not in NOT_HEADERS}
    wanted["attrs"] = {name: attributes[name] for name in ATTRIBUTES if name in attributes}
    with h5py.File(io.BytesIO(real.content)) as file:
        wanted |= {name: file[name][()].tolist() for name in BY_H5PY}
        wanted["columns"] = {
            name: described(file[name]) for name in file if name.startswith(OF_LISTS) and file[name].ndim
        }
    yield from leaves("native", native, wanted)
    times = {name: datetime.fromisoformat(attributes[f"time_coverage_{name}"]) for name in ("start", "end")}
    yield seconds("start", found.start, times["start"], within=0)
    yield seconds("end", found.end, times["end"], within=0)
    yield seconds("datetime", found.datetime, times["start"], within=0)
    (north, south), (west, east) = expected["lat_field_of_view_bounds"], expected["lon_field_of_view_bounds"]
    west, east = ((edge + 180) % 360 - 180 for edge in (west, east))
    yield degrees("bbox", bounding_box(found.geometry), (west, south, east, north))
    yield same("geometry.type", found.geometry["type"], "MultiPolygon" if west > east else "Polygon")
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
        ("glm:group-time-threshold", wanted["group_time_threshold"]),
        ("glm:flash-time-threshold", wanted["flash_time_threshold"]),
        ("eo:center_wavelength", wanted["lightning_wavelength"] / 1000),
        (
            "eo:full_width_half_max",
            (wanted["lightning_wavelength_bounds"][1] - wanted["lightning_wavelength_bounds"][0]) / 1000,
        ),
        ("goes:subsatellite-longitude", wanted["nominal_satellite_subpoint_lon"]),
        ("goes:subsatellite-latitude", wanted["nominal_satellite_subpoint_lat"]),
    ):
        yield near(name, properties[name], value, within=1e-5)
    yield same("findings", found.findings, ())
