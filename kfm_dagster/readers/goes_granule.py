"""Common metadata of GOES-R granules: satellite, times and name, checked against the key.

Belongs here: global attributes and properties that the instruments share. Does not belong here: the products of an
instrument (`goes_abi.py`, `goes_glm.py`), how HDF5 stores them (`hdf5.py`).

Names and texts: GOES-R Product Definition and Users' Guide (PUG), volume 3 (L1b, 416-R-PUG-L1B-0347) and volume 5 (L2+,
416-R-PUG-L2 Plus-0349), section 5.0 of each, global attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError, ReadRequest
from kfm_dagster.readers.hdf5 import Hdf5Group, Hdf5Object

ATTRIBUTES = (
    "dataset_name", "date_created", "id", "orbital_slot", "platform_ID", "processing_level", "production_site",
    "spatial_resolution", "time_coverage_end", "time_coverage_start",
)  # fmt: skip
L0_ERRORS = "percent_uncorrectable_L0_errors"
TIME_TOLERANCE = timedelta(seconds=1)

_INTERNATIONAL_DESIGNATORS = {"G16": "2016-071A", "G17": "2018-022A", "G18": "2022-021A", "G19": "2024-119A"}
"""COSPAR designators of GOES-R, -S, -T and -U (launched 2016-11-19, 2018-03-01, 2022-03-01, 2024-06-25), as NASA's
Space Science Data Coordinated Archive (NSSDCA master catalog) lists them."""


def texts(holder: Hdf5Object, names: tuple[str, ...]) -> dict[str, str]:
    """Return the existing text attributes by name."""
    return {name: value for name in names if (value := holder.text(name)) is not None}


def numbers(holder: Hdf5Object, names: tuple[str, ...]) -> dict[str, float]:
    """Return the existing numeric attributes by name."""
    return {name: value for name in names if (value := holder.number(name)) is not None}


def elements(root: Hdf5Group, name: str, count: int) -> list[float]:
    """Return a variable's first `count` elements without unwritten ones; [] if it is absent."""
    variable = root.dataset(name)
    if variable is None:
        return []
    return [value for value in map(variable.storage.element, range(count)) if value is not None]


def variables(root: Hdf5Group, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return non-empty variables by name: a number if the count is 1, else a list."""
    values_of = {name: elements(root, name, count) for name, count in counts.items()}
    return {name: values if counts[name] > 1 else values[0] for name, values in values_of.items() if values}


def coverage(attributes: Mapping[str, str]) -> tuple[datetime, datetime]:
    """Return start and end of the observation, in UTC. Raises ReadError(INVALID_TIME_RANGE)."""
    start, end = (_moment(attributes, name) for name in ("time_coverage_start", "time_coverage_end"))
    if end < start:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"the observation ends at {end} before it starts at {start}")
    return start, end


def _moment(attributes: Mapping[str, str], name: str) -> datetime:
    text = attributes.get(name, "")
    try:
        moment = datetime.fromisoformat(text)
        # Python would interpret a naive time in the machine's own zone.
        aware = moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        aware = None
    if aware is None:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"{name} is {text!r}, not an RFC 3339 time")
    return aware


def check_key(request: ReadRequest, attributes: Mapping[str, str], start: datetime, end: datetime) -> None:
    """Check platform, times and name in the file against the key.

    Key groups: satellite, start, end. Raises ReadError(PLATFORM_MISMATCH, TIME_MISMATCH, INCOMPLETE_PRODUCT_METADATA).
    """
    groups = request.groups
    platform = attributes.get("platform_ID")
    if platform != f"G{groups['satellite']}":
        raise ReadError(
            MetadataIssue.PLATFORM_MISMATCH, f"platform_ID is {platform}, the key has G{groups['satellite']}"
        )
    for name, moment in (("start", start), ("end", end)):
        if abs(moment - _stamp(groups[name])) > TIME_TOLERANCE:
            raise ReadError(
                MetadataIssue.TIME_MISMATCH,
                f"time_coverage_{name} is {moment.isoformat()}, the key has {groups[name]}",
            )
    # Names are compared without the creation stamp, which differs if the granule was created again.
    name = request.key.rpartition("/")[2].rpartition("_c")[0]
    expect("dataset_name", attributes.get("dataset_name", "").rpartition("_c")[0], name)


def expect(what: str, observed: object, expected: object) -> None:
    """Raise ReadError(INCOMPLETE_PRODUCT_METADATA) when file and key differ."""
    if observed != expected:
        raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, f"{what} is {observed}, the key has {expected}")


def _stamp(text: str) -> datetime:
    """Return the time of a stamp YYYYDDDHHMMSSt, t being tenths of a second (PUG, file naming)."""
    return datetime.strptime(text[:13] + "+0000", "%Y%j%H%M%S%z") + timedelta(milliseconds=100 * int(text[13]))


def properties(request: ReadRequest, native: Mapping[str, Any], *, instrument: str) -> dict[str, Any]:
    """Return the common properties, None for unstated ones; `native` has `attrs` and L0_ERRORS."""
    attributes = native["attrs"]
    platform = attributes["platform_ID"]
    return {
        "platform": f"goes-{platform.removeprefix('G')}",
        "instruments": [instrument],
        "gsd": _ground_sample_distance(attributes.get("spatial_resolution", "")),
        "processing:level": attributes.get("processing_level", "").rpartition(" ")[2] or None,
        "sat:orbit_state": "geostationary",
        "sat:platform_international_designator": _INTERNATIONAL_DESIGNATORS.get(platform),
        "goes:product": request.groups["product"],
        "goes:orbital-slot": attributes.get("orbital_slot"),
        "goes:created": attributes.get("date_created"),
        "goes:production-site": attributes.get("production_site"),
        "goes:uuid": attributes.get("id"),
        "goes:percent-uncorrectable-l0-errors": fraction(native.get(L0_ERRORS, math.nan)),
    }


def fraction(value: float) -> float | None:
    """Return a share in [0, 1], the range of PUG's `percent` variables; None for other values."""
    return value if 0 <= value <= 1 else None


def _ground_sample_distance(text: str) -> float | None:
    """Return the metres of a text such as `0.5km at nadir`."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?) ?km at nadir", text, re.ASCII)
    return float(match[1]) * 1000 if match else None
