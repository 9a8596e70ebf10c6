"""Sample GOES GLM objects: small NetCDF-4 files with true keys and no or few flashes.

Does not belong here: making an object from a template (`goes_template.py`).

Names, units and packing: GOES-R Product Definition and Users' Guide (PUG), volume 5, Lightning Detection: Events,
Groups and Flashes, and real objects of 2023.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from kfm_dagster.demo.samples.goes_template import (
    Granule,
    Template,
    global_attributes,
    make_template,
    satellite_of,
)
from kfm_dagster.demo.samples.netcdf4 import Attributes, annotate, dimension, f4, variable

FILES_A_DAY = 4320
MOST_FLASHES = 3
"""Maximum number of flashes in a file of `goes_glm_samples`."""

_PRODUCT = "GLM-L2-LCFA"
_SECONDS = 20
_GROUPS, _EVENTS = 2, 3
"""Groups per flash, and events per group."""
_HALF_FIELD_OF_VIEW = 66.56
"""Degrees to each side of the sub-satellite point, as the files state it."""
_STEP = 0.00203128
"""Scale factor of packed coordinates, in degrees."""
_OFFSETS = {"scale_factor": 0.00038147561, "add_offset": -5.0, "_Unsigned": "true", "standard_name": "time"}
_ENERGY = {"add_offset": 2.8515e-16, "_Unsigned": "true", "units": "J", "standard_name": "lightning_radiant_energy"}
_AREA = {"scale_factor": 152601.86, "add_offset": 0.0, "_Unsigned": "true", "units": "m2"}
_CHUNK = 16


def make_goes_glm(
    *, start: datetime, satellite: int, flashes: int = 1, created: datetime | None = None
) -> tuple[str, bytes]:
    """Make an object: its key and its content, a pure function of the arguments.

    `start` is aware. The file covers the 20 seconds from `start` and has `flashes` flashes, each of two groups with
    three events. A later `created` makes a re-issue of the file. Raises ValueError for a satellite that has no GLM.
    """
    end = start + timedelta(seconds=_SECONDS)
    granule = Granule(
        product=_PRODUCT,
        folder=_PRODUCT,
        satellite=satellite,
        start=start,
        end=end,
        created=created or end + timedelta(seconds=1.3),
    )
    numbers = {"product_time": granule.seconds[:1], "product_time_bounds": granule.seconds}
    return granule.key, _template(satellite, flashes).filled(granule.texts, numbers)


def goes_glm_samples(day: date, count: int, *, satellite: int = 19) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, in the order of times.

    The `count` objects are spread evenly over a day's FILES_A_DAY, whose last ends at midnight. The number of flashes
    rises from 0 to MOST_FLASHES, then begins again at 0. Raises ValueError if the day has fewer objects.
    """
    if not 0 <= count <= FILES_A_DAY:
        raise ValueError(f"a day has {FILES_A_DAY} objects, {count} requested")
    midnight = datetime.combine(day, time(), UTC)
    for number in range(count):
        start = midnight + timedelta(seconds=number * FILES_A_DAY // count * _SECONDS)
        key, content = make_goes_glm(start=start, satellite=satellite, flashes=number % (MOST_FLASHES + 1))
        yield f"noaa-goes{satellite}", key, content


@lru_cache(maxsize=64)
def _template(satellite: int, flashes: int) -> Template:
    def write(file: h5py.File, texts: Attributes) -> None:
        annotate(file, {**_global_attributes(satellite), **texts})
        _dimensions(file)
        _lightning(file, flashes, satellite_of(satellite).longitude)
        _quantities(file, flashes, satellite_of(satellite).longitude)

    return make_template(_PRODUCT, satellite, write, numbers=("product_time", "product_time_bounds"))


def _global_attributes(satellite: int) -> Attributes:
    return global_attributes(
        satellite,
        spatial_resolution="8km at nadir",
        instrument_type="GOES-R Series Geostationary Lightning Mapper (GLM)",
        title="GLM L2 Lightning Detections: Events, Groups, and Flashes",
        summary="Sample with the headers of a real product and a few flashes.",
        keywords="ATMOSPHERE > ATMOSPHERIC ELECTRICITY > LIGHTNING",
        iso_series_metadata_id="f5816f53-fd6d-11e3-a3ac-0800200c9a66",
        processing_level="National Aeronautics and Space Administration (NASA) L2",
        cdm_data_type="Point",
        featureType="point",
    )


def _dimensions(file: h5py.File) -> None:
    lengths = {
        "number_of_flashes": None, "number_of_groups": None, "number_of_events": None, "number_of_time_bounds": 2,
        "number_of_field_of_view_bounds": 2, "number_of_wavelength_bounds": 2,
    }  # fmt: skip
    for number, (name, length) in enumerate(lengths.items()):
        dimension(file, name, length, number)


def _lightning(file: h5py.File, flashes: int, longitude: float) -> None:
    """Write every event, group and flash; parent ids are the ids of groups and flashes."""
    parts = {"event": _GROUPS * _EVENTS, "group": _GROUPS, "flash": 1}
    plural = {"event": "number_of_events", "group": "number_of_groups", "flash": "number_of_flashes"}

    def write(what: str, name: str, values: npt.NDArray[Any], **attributes: Any) -> None:
        attributes = {name: f4(value) if isinstance(value, float) else value for name, value in attributes.items()}
        variable(file, f"{what}_{name}", values, dimensions=[plural[what]], chunk=_CHUNK, **attributes)

    for kind, per_flash in parts.items():
        count = flashes * per_flash
        numbers = np.arange(count)
        latitudes, longitudes = 10.0 + numbers // per_flash, longitude + 5.0 * (numbers // per_flash)
        write(kind, "id", numbers.astype("<i2" if kind == "flash" else "<i4"), units="1", _Unsigned="true")
        if kind == "event":
            south, west = -_HALF_FIELD_OF_VIEW, longitude - _HALF_FIELD_OF_VIEW
            write(kind, "lat", _packed(latitudes, south), units="degrees_north", **_unpacking(south))
            write(kind, "lon", _packed(longitudes, west), units="degrees_east", **_unpacking(west))
        else:
            write(kind, "lat", latitudes.astype("<f4"), units="degrees_north", standard_name="latitude")
            write(kind, "lon", longitudes.astype("<f4"), units="degrees_east", standard_name="longitude")
            write(kind, "area", np.full(count, 457, "<i2"), **_AREA)
            write(kind, "quality_flag", np.zeros(count, "<i2"), units="1", standard_name="status_flag")
        write(kind, "energy", np.full(count, 75, "<i2"), scale_factor=1.9024e-17, **_ENERGY)
        names = ("time_offset",) if kind != "flash" else ("time_offset_of_first_event", "time_offset_of_last_event")
        for name in names:
            write(kind, name, np.full(count, 13508, "<i2"), **_OFFSETS)
    write("event", "parent_group_id", (np.arange(flashes * parts["event"]) // _EVENTS).astype("<i4"), units="1")
    write("group", "parent_flash_id", (np.arange(flashes * parts["group"]) // _GROUPS).astype("<i2"), units="1")


def _packed(degrees: npt.NDArray[Any], offset: float) -> npt.NDArray[Any]:
    """Return degrees as unsigned 16-bit integers, which netCDF-4 writes as signed integers."""
    return np.round((degrees - offset) / _STEP).astype("<u2").view("<i2")


def _unpacking(offset: float) -> Attributes:
    return {"scale_factor": _STEP, "add_offset": offset, "_Unsigned": "true"}


def _quantities(file: h5py.File, flashes: int, longitude: float) -> None:
    """Write times, field of view, counts and quality."""
    since = "seconds since 2000-01-01 12:00:00"
    variable(file, "product_time", np.float64(0), units=since, standard_name="time", bounds="product_time_bounds")
    variable(file, "product_time_bounds", np.zeros(2), dimensions=["number_of_time_bounds"])
    half = _HALF_FIELD_OF_VIEW
    for name, centre, bounds, units in (
        ("lat", 0.0, (half, -half), "degrees_north"),
        ("lon", longitude, (longitude - half, longitude + half), "degrees_east"),
    ):
        field = f"{name}_field_of_view"
        variable(file, field, np.float32(centre), units=units, bounds=f"{field}_bounds")
        variable(file, f"{field}_bounds", np.array(bounds, "<f4"), dimensions=["number_of_field_of_view_bounds"])
    variable(file, "lightning_wavelength", np.float32(777.37), units="nm", bounds="lightning_wavelength_bounds")
    variable(
        file, "lightning_wavelength_bounds", np.array([776.87, 777.87], "<f4"),
        dimensions=["number_of_wavelength_bounds"],
    )  # fmt: skip
    for name, per_flash in (("event_count", _GROUPS * _EVENTS), ("group_count", _GROUPS), ("flash_count", 1)):
        variable(file, name, np.int32(flashes * per_flash), _FillValue=np.array([-1], "<i4"), units="count")
    for name, share in (("percent_navigated_L1b_events", 1.0), ("percent_uncorrectable_L0_errors", 0.0)):
        variable(file, name, np.float32(share), _FillValue=f4(-999), units="percent")
    # 0.2 degrees west of the slot, where GOES-16 and GOES-17 were according to their files.
    for name, value, units in (
        ("subpoint_lat", 0.0, "degrees_north"),
        ("subpoint_lon", longitude - 0.2, "degrees_east"),
        ("height", 35786.02, "km"),
    ):
        variable(file, f"nominal_satellite_{name}", np.float32(value), _FillValue=f4(-999), units=units)
    for name, seconds in (("group_time_threshold", 0.0), ("flash_time_threshold", 3.33)):
        variable(file, name, np.float32(seconds), units="s")
    variable(file, "yaw_flip_flag", np.int8(0), _FillValue=np.array([-1], "i1"), units="1")
    variable(
        file, "goes_lat_lon_projection", np.int32(-2147483647),
        long_name="GOES-R latitude / longitude projection",
        grid_mapping_name="latitude_longitude",
        semi_major_axis=np.array([6378137.0]),
        semi_minor_axis=np.array([6356752.31414]),
        inverse_flattening=np.array([298.2572221]),
        longitude_of_prime_meridian=np.array([0.0]),
    )  # fmt: skip
