"""What every GOES-R granule says of itself: satellite, times and name, held against the key, which says them, too.

Belongs here: global attributes and properties that the instruments share. Does not belong here: what the product of an
instrument holds (`goes_abi.py`, `goes_glm.py`), how HDF5 stores it (`hdf5.py`).

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

PROPERTIES = frozenset({
    "platform", "instruments", "gsd", "processing:level", "sat:orbit_state", "sat:platform_international_designator",
    "goes:product", "goes:orbital-slot", "goes:created", "goes:production-site", "goes:uuid",
    "goes:percent-uncorrectable-l0-errors",
})  # fmt: skip
"""What an object of any instrument can have."""
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
    """Text attributes by name; absent names are absent."""
    return {name: value for name in names if (value := holder.text(name)) is not None}


def numbers(holder: Hdf5Object, names: tuple[str, ...]) -> dict[str, float]:
    """Numeric attributes by name; absent names are absent."""
    return {name: value for name in names if (value := holder.number(name)) is not None}


def elements(root: Hdf5Group, name: str, count: int) -> list[float]:
    """All elements of a variable that has `count`; none when there is no such variable or nothing was written."""
    variable = root.dataset(name)
    if variable is None:
        return []
    values = [variable.element(index) for index in range(count)]
    return [value for value in values if value is not None]


def variables(root: Hdf5Group, counts: Mapping[str, int]) -> dict[str, Any]:
    """Variables by name: a number where `counts` says 1, else a list; absent and empty ones are absent."""
    found = {name: elements(root, name, count) for name, count in counts.items()}
    return {name: one if counts[name] > 1 else one[0] for name, one in found.items() if one}


def coverage(attributes: Mapping[str, str]) -> tuple[datetime, datetime]:
    """Start and end of the observation, in UTC. Raises ReadError(INVALID_TIME_RANGE)."""
    start, end = (_moment(attributes, name) for name in ("time_coverage_start", "time_coverage_end"))
    if end < start:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"the observation ends at {end} before it starts at {start}")
    return start, end


def _moment(attributes: Mapping[str, str], name: str) -> datetime:
    text = attributes.get(name, "")
    try:
        moment = datetime.fromisoformat(text)
        # A naive time would be taken for the machine's own zone.
        aware = moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        aware = None
    if aware is None:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"{name} is {text!r}, no RFC 3339 time")
    return aware


def check_key(request: ReadRequest, attributes: Mapping[str, str], start: datetime, end: datetime) -> None:
    """Hold platform, times and name in the file against the key, whose groups are satellite, start and end.

    Raises ReadError: PLATFORM_MISMATCH, TIME_MISMATCH or INCOMPLETE_PRODUCT_METADATA.
    """
    groups = request.groups
    platform = attributes.get("platform_ID")
    if platform != f"G{groups['satellite']}":
        raise ReadError(
            MetadataIssue.PLATFORM_MISMATCH, f"platform_ID is {platform}, the key says G{groups['satellite']}"
        )
    for name, moment in (("start", start), ("end", end)):
        if abs(moment - _stamp(groups[name])) > TIME_TOLERANCE:
            raise ReadError(
                MetadataIssue.TIME_MISMATCH,
                f"time_coverage_{name} is {moment.isoformat()}, the key says {groups[name]}",
            )
    # Without the creation stamp: a copy under the name of a re-issue is still the same granule.
    name = request.key.rpartition("/")[2].rpartition("_c")[0]
    expect("dataset_name", attributes.get("dataset_name", "").rpartition("_c")[0], name)


def expect(what: str, observed: object, expected: object) -> None:
    """Raise ReadError(INCOMPLETE_PRODUCT_METADATA) when the file says something else than the key."""
    if observed != expected:
        raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, f"{what} is {observed}, the key says {expected}")


def _stamp(text: str) -> datetime:
    """Time of a stamp YYYYDDDHHMMSSt, t being tenths of a second (PUG, file naming)."""
    return datetime(int(text[:4]), 1, 1, tzinfo=UTC) + timedelta(
        days=int(text[4:7]) - 1,
        hours=int(text[7:9]),
        minutes=int(text[9:11]),
        seconds=int(text[11:13]),
        milliseconds=100 * int(text[13]),
    )


def properties(request: ReadRequest, native: Mapping[str, Any], *, instrument: str) -> dict[str, Any]:
    """Properties that the instruments share, None where the file does not say; `native` has `attrs` and L0_ERRORS."""
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
    """Keep a share in [0, 1], which PUG's `percent` variables are, whatever their name says; -999 fills."""
    return value if 0 <= value <= 1 else None


def _ground_sample_distance(text: str) -> float | None:
    """Metres at nadir of a text such as `0.5km at nadir`."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?) ?km at nadir", text, re.ASCII)
    return float(found[1]) * 1000 if found else None
