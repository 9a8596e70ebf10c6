"""Reader of GOES-R GLM lightning (L2 LCFA): NetCDF-4 headers and counts, never an event.

Belongs here: the headers' meaning, and their agreement with each other and the key. Does not belong here: the common
headers of all instruments (`goes_granule.py`), how HDF5 stores them (`hdf5.py`).

A file covers 20 seconds, which may contain midnight, and may have no flash. Its footprint is the detector's field of
view, independent of the detections. Names and units: GOES-R Product Definition and Users' Guide (PUG), volume 5 (L2+,
416-R-PUG-L2 Plus-0349), Lightning Detection: Events, Groups and Flashes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import geometry, goes_granule
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.goes_granule import L0_ERRORS
from kfm_dagster.readers.hdf5 import Hdf5Group, read_hdf5

_COUNTS = {"glm:event-count": "event_count", "glm:group-count": "group_count", "glm:flash-count": "flash_count"}
_NAVIGATED = "percent_navigated_L1b_events"
_LATITUDES, _LONGITUDES = "lat_field_of_view_bounds", "lon_field_of_view_bounds"
_TIMES = "product_time_bounds"
_VARIABLES = {
    **dict.fromkeys(_COUNTS.values(), 1), _LATITUDES: 2, _LONGITUDES: 2, "product_time": 1, _TIMES: 2, L0_ERRORS: 1,
    _NAVIGATED: 1, "nominal_satellite_subpoint_lat": 1, "nominal_satellite_subpoint_lon": 1,
    "nominal_satellite_height": 1, "lightning_wavelength": 1, "lightning_wavelength_bounds": 2,
    "group_time_threshold": 1, "flash_time_threshold": 1,
}  # fmt: skip
"""Variables with their number of elements."""
_DIMENSIONS = {
    "number_of_events": "event_id", "number_of_groups": "group_id", "number_of_flashes": "flash_id",
    "number_of_time_bounds": _TIMES, "number_of_field_of_view_bounds": _LATITUDES,
    "number_of_wavelength_bounds": "lightning_wavelength_bounds",
}  # fmt: skip
"""Dimensions, each with a variable along it. Lengths are read from these variables, because the dimension scale of an
unlimited dimension has length 0."""

_OF_FRAME = "group_frame_time_offset"
"""One of the variables with times of the detector's frames, which only files since October 2018 have. All times of such
a file are in seconds."""
_UNITS = {"time": "group_time_offset", "area": "group_area"}
"""Quantities whose unit depends on the file (milliseconds or seconds, km2 or m2), with the variable that states it."""
_CENTROID = "centroid (mean constituent event latitude weighted by their energies)"
_AREA = "area coverage (pixels containing at least one constituent event only)"
_COLUMNS: Mapping[str, tuple[str, str]] = {
    "event_id": ("1", "product-unique lightning event identifier"),
    "event_time_offset": ("time", "event's time of occurrence"),
    "event_lat": ("degrees_north", "event latitude coordinate"),
    "event_lon": ("degrees_east", "event longitude coordinate"),
    "event_energy": ("J", "event radiant energy"),
    "event_parent_group_id": ("1", "product-unique lightning group identifier for one or more events"),
    "group_id": ("1", "product-unique lightning group identifier"),
    "group_time_offset": ("time", "mean time of group's constituent events' times of occurrence"),
    _OF_FRAME: ("time", "mean time of group's constituent events' times of occurrence"),
    "group_lat": ("degrees_north", f"group {_CENTROID} latitude coordinate"),
    "group_lon": ("degrees_east", f"group {_CENTROID} longitude coordinate"),
    "group_area": ("area", f"group {_AREA}"),
    "group_energy": ("J", "group radiant energy"),
    "group_parent_flash_id": ("1", "product-unique lightning flash identifier for one or more groups"),
    "group_quality_flag": ("1", "group data quality flags"),
    "flash_id": ("1", "product-unique lightning flash identifier"),
    "flash_time_offset_of_first_event": ("time", "time of occurrence of first constituent event in flash"),
    "flash_time_offset_of_last_event": ("time", "time of occurrence of last constituent event in flash"),
    "flash_frame_time_offset_of_first_event": ("time", "time of occurrence of first constituent event in flash"),
    "flash_frame_time_offset_of_last_event": ("time", "time of occurrence of last constituent event in flash"),
    "flash_lat": ("degrees_north", f"flash {_CENTROID} latitude coordinate"),
    "flash_lon": ("degrees_east", f"flash {_CENTROID} longitude coordinate"),
    "flash_area": ("area", f"flash {_AREA}"),
    "flash_energy": ("J", "flash radiant energy"),
    "flash_quality_flag": ("1", "flash data quality flags"),
}
"""Unit, or its key in _UNITS, and long name of the variables along events, groups and flashes, as in the PUG. They are
not read from the file, because each would take a millisecond: 20 of them would treble the CPU time of a file."""
_LISTS = {"event": "number_of_events", "group": "number_of_groups", "flash": "number_of_flashes"}

_J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)
_MOST = 1 << 31
"""Bound of counts, which are 32-bit integers."""


def read_goes_glm(request: ReadRequest) -> HeaderMetadata:
    """Read the headers of a lightning file and check them against its key.

    Raises ReadError: TIME_MISMATCH, PLATFORM_MISMATCH or INCOMPLETE_PRODUCT_METADATA when content and key disagree,
    MISSING_GEOLOCATION, INVALID_GEOMETRY, INVALID_TIME_RANGE, and the errors of `read_hdf5`.
    """
    native = read_hdf5(request.source, _header)
    start, end = goes_granule.coverage(native["attrs"])
    goes_granule.check_key(request, native["attrs"], start, end)
    _check_times(native, start, end)
    properties = {
        **goes_granule.properties(request, native, instrument="glm"),
        **{name: _count(native.get(variable, math.nan)) for name, variable in _COUNTS.items()},
        "glm:percent-navigated-l1b-events": goes_granule.fraction(native.get(_NAVIGATED, math.nan)),
        **_detector(native),
        **_cube(native),
    }
    return HeaderMetadata(
        start=start,
        end=end,
        datetime=start,
        geometry=_field_of_view(native),
        properties={name: value for name, value in properties.items() if value is not None},
        native=native,
    )


def _header(root: Hdf5Group) -> dict[str, Any]:
    """Return header values, unrounded, under the file's own names, without absent values.

    `dims` has the length of each dimension. The lengths include the numbers of events, groups and flashes in the file,
    which may be smaller than event_count, group_count and flash_count.
    """
    native = goes_granule.variables(root, _VARIABLES)
    lengths = {name: _length(root, variable) for name, variable in _DIMENSIONS.items()}
    native["dims"] = {name: length for name, length in lengths.items() if length is not None}
    native["columns"] = _columns(root, native["dims"])
    native["attrs"] = goes_granule.texts(root, goes_granule.ATTRIBUTES)
    return native


def _columns(root: Hdf5Group, dims: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Return unit and long name of each variable of the file's lists."""
    units = {key: dataset.text("units") for key, name in _UNITS.items() if (dataset := root.dataset(name)) is not None}
    with_frames = root.dataset(_OF_FRAME) is not None
    columns: dict[str, dict[str, str]] = {}
    for name, (unit, long_name) in _COLUMNS.items():
        if _LISTS[name[:5]] in dims and (with_frames or "_frame_" not in name):
            stated_unit = units.get(unit) if unit in _UNITS else unit
            columns[name] = {"long_name": long_name} | ({"units": stated_unit} if stated_unit else {})
    return columns


def _cube(native: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists and their variables as fields of the datacube extension 2.2.0."""
    counts = {name: count for name in _LISTS.values() if (count := native["dims"].get(name, _MOST)) < _MOST}
    if not counts:
        return {}
    return {
        "cube:dimensions": {
            name: {"type": "index", "extent": [0, count - 1] if count else [None, None]}
            for name, count in counts.items()
        },
        "cube:variables": {
            name: {
                "dimensions": [_LISTS[name[:5]]],
                "type": "data",
                "description": column["long_name"],
                **({"unit": column["units"]} if "units" in column else {}),
            }
            for name, column in native["columns"].items()
            if _LISTS[name[:5]] in counts
        },
    }


def _detector(native: Mapping[str, Any]) -> dict[str, float | None]:
    """Return time thresholds of groups and flashes, wavelength and width, subsatellite point."""
    shortest, longest = native.get("lightning_wavelength_bounds", (math.nan, math.nan))
    return {
        # Seconds.
        "glm:group-time-threshold": _within(0, native.get("group_time_threshold", math.nan), 60),
        "glm:flash-time-threshold": _within(0, native.get("flash_time_threshold", math.nan), 60),
        # Micrometres. Files have nanometres, and two bounds instead of the width at half the maximum.
        "eo:center_wavelength": _within(0.1, native.get("lightning_wavelength", math.nan) / 1000, 10),
        "eo:full_width_half_max": _within(1e-5, (longest - shortest) / 1000, 1),
        "goes:subsatellite-latitude": _within(-90, native.get("nominal_satellite_subpoint_lat", math.nan), 90),
        "goes:subsatellite-longitude": _within(-180, native.get("nominal_satellite_subpoint_lon", math.nan), 180),
    }


def _within(lowest: float, value: float, highest: float) -> float | None:
    """Round a 32-bit number to 5 decimals; None for a fill value or an impossible value."""
    return round(value, 5) if lowest <= value <= highest else None


def _length(root: Hdf5Group, name: str) -> int | None:
    variable = root.dataset(name)
    return variable.shape[0] if variable is not None and len(variable.shape) == 1 else None


def _check_times(native: Mapping[str, Any], start: datetime, end: datetime) -> None:
    """Compare the times in attributes with those in seconds since J2000. Raises ReadError."""
    for name, seconds, moment in zip(("start", "end"), native.get(_TIMES, ()), (start, end), strict=False):
        # Compares seconds, because the number may be NaN, which cannot become a time.
        if not abs(seconds - (moment - _J2000).total_seconds()) <= goes_granule.TIME_TOLERANCE / timedelta(seconds=1):
            message = f"{_TIMES} is {seconds} s since {_J2000.isoformat()}, time_coverage_{name} {moment.isoformat()}"
            raise ReadError(MetadataIssue.TIME_MISMATCH, message)


def _count(value: float) -> int | None:
    return int(value) if 0 <= value < _MOST else None


def _field_of_view(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the GeoJSON field of view; longitudes may pass -180 (GOES-West: -203.56 to -70.44)."""
    latitudes, longitudes = native.get(_LATITUDES, ()), native.get(_LONGITUDES, ())
    if not len(latitudes) == len(longitudes) == 2:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the file states no field of view")
    (north, south), (west, east) = latitudes, longitudes
    return geometry.rectangle(west, south, east, north)
