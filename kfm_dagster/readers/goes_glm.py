"""Reader of GOES-R GLM lightning detections (L2 LCFA): NetCDF-4 headers and counts, never an event.

Belongs here: what the headers mean, and whether they agree with each other and with the key. Does not belong here: what
other instruments' files have, too (`goes_granule.py`), how HDF5 stores it (`hdf5.py`).

A file is of 20 seconds, one at midnight of two days, and may hold no flash. Its footprint is the detector's field of
view, whatever was detected. Names and units: GOES-R Product Definition and Users' Guide (PUG), volume 5 (L2+,
416-R-PUG-L2 Plus-0349), Lightning Detection: Events, Groups and Flashes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import geometry, goes_granule
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.goes_granule import L0_ERRORS
from kfm_dagster.readers.hdf5 import Hdf5Group, read_hdf5
from kfm_dagster.readers.ranges import BLOCK_BYTES

PROPERTIES = goes_granule.PROPERTIES | {
    "glm:event-count", "glm:group-count", "glm:flash-count", "glm:percent-navigated-l1b-events",
}  # fmt: skip
"""What an object can have."""
FIRST_BYTES = BLOCK_BYTES
"""Of an object, by its first request."""

_COUNTS = {"glm:event-count": "event_count", "glm:group-count": "group_count", "glm:flash-count": "flash_count"}
_NAVIGATED = "percent_navigated_L1b_events"
_LATITUDES, _LONGITUDES = "lat_field_of_view_bounds", "lon_field_of_view_bounds"
_TIMES = "product_time_bounds"
_VARIABLES = {
    **dict.fromkeys(_COUNTS.values(), 1), _LATITUDES: 2, _LONGITUDES: 2, "product_time": 1, _TIMES: 2, L0_ERRORS: 1,
    _NAVIGATED: 1, "nominal_satellite_subpoint_lat": 1, "nominal_satellite_subpoint_lon": 1,
    "nominal_satellite_height": 1,
}  # fmt: skip
"""Variables with their number of elements."""
_DIMENSIONS = {
    "number_of_events": "event_id", "number_of_groups": "group_id", "number_of_flashes": "flash_id",
    "number_of_time_bounds": _TIMES, "number_of_field_of_view_bounds": _LATITUDES,
    "number_of_wavelength_bounds": "lightning_wavelength_bounds",
}  # fmt: skip
"""Dimensions with a variable of each. The file's own dimension scales say 0 of those without limit."""

_J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)
_MOST = 1 << 31
"""Counts are 32-bit integers."""


def read_goes_glm(request: ReadRequest) -> HeaderMetadata:
    """Read the headers of one lightning file and hold them against its key.

    Raises ReadError: TIME_MISMATCH, PLATFORM_MISMATCH or INCOMPLETE_PRODUCT_METADATA when content and key disagree,
    MISSING_GEOLOCATION, INVALID_GEOMETRY, INVALID_TIME_RANGE, and what `read_hdf5` raises.
    """
    native = read_native(request.source)
    start, end = goes_granule.coverage(native["attrs"])
    goes_granule.check_key(request, native["attrs"], start, end)
    _check_times(native, start, end)
    properties = {
        **goes_granule.properties(request, native, instrument="glm"),
        **{name: _count(native.get(variable, math.nan)) for name, variable in _COUNTS.items()},
        "glm:percent-navigated-l1b-events": goes_granule.fraction(native.get(_NAVIGATED, math.nan)),
    }
    return HeaderMetadata(
        start=start,
        end=end,
        datetime=start,
        geometry=_field_of_view(native),
        properties={name: value for name, value in properties.items() if value is not None},
        native=native,
    )


def read_native(source: ByteSource) -> dict[str, Any]:
    """Header values, unrounded, under the names that the file gives them; absent names are absent.

    `dims` has the length of each dimension, so how many events, groups and flashes there are, which may be fewer than
    event_count, group_count and flash_count say. Raises what `read_hdf5` raises.
    """
    return read_hdf5(source, _header)


def _header(root: Hdf5Group) -> dict[str, Any]:
    native = goes_granule.variables(root, _VARIABLES)
    lengths = {name: _length(root, variable) for name, variable in _DIMENSIONS.items()}
    native["dims"] = {name: length for name, length in lengths.items() if length is not None}
    native["attrs"] = goes_granule.texts(root, goes_granule.ATTRIBUTES + goes_granule.OTHER_ATTRIBUTES)
    return native


def _length(root: Hdf5Group, name: str) -> int | None:
    variable = root.dataset(name)
    return variable.shape[0] if variable is not None and len(variable.shape) == 1 else None


def _check_times(native: Mapping[str, Any], start: datetime, end: datetime) -> None:
    """Hold the file's two statements of its time against each other: attributes, and seconds since J2000."""
    for name, seconds, moment in zip(("start", "end"), native.get(_TIMES, ()), (start, end), strict=False):
        # Not as a time: a number may be none.
        if not abs(seconds - (moment - _J2000).total_seconds()) <= goes_granule.TIME_TOLERANCE / timedelta(seconds=1):
            message = f"{_TIMES} says {seconds} s since {_J2000.isoformat()}, time_coverage_{name} {moment.isoformat()}"
            raise ReadError(MetadataIssue.TIME_MISMATCH, message)


def _count(value: float) -> int | None:
    return int(value) if 0 <= value < _MOST else None


def _field_of_view(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """GeoJSON of the field of view; its longitudes go on over the antimeridian (GOES-West: -203.56 to -70.44)."""
    latitudes, longitudes = native.get(_LATITUDES, ()), native.get(_LONGITUDES, ())
    if not len(latitudes) == len(longitudes) == 2:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the file states no field of view")
    (north, south), (west, east) = latitudes, longitudes
    return geometry.rectangle(west, south, east, north)
