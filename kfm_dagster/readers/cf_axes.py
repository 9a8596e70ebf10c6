"""Axes of a grid by the CF conventions: their kinds, the edges of cells, the times.

Belongs here: CF conventions 1.11, chapter 4 (coordinate types), for axes of longitude, latitude, projected x and y,
height and time. Does not belong here: how a file stores them (`netcdf_header.py`), a grid's place (`cf_places.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.netcdf_header import NetcdfHeader, Variable

AxisKind = Literal["x", "y", "z", "t"]

_UNITS: Mapping[str, AxisKind] = {
    **dict.fromkeys(("degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"), "y"),
    **dict.fromkeys(("degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"), "x"),
}
"""Units that define the kind of an axis (CF 4.1, 4.2)."""
_NAMES: Mapping[AxisKind, str] = {"x": "longitude", "y": "latitude", "z": "height", "t": "time"}
_UNNAMED: Mapping[tuple[str, ...], AxisKind] = {("lon",): "x", ("lat",): "y"}
"""Dimensions of axes without units, as GrADS writes them."""
_PROJECTED: Mapping[str, AxisKind] = {"projection_x_coordinate": "x", "projection_y_coordinate": "y"}
_METRES = frozenset({"m", "meter", "meters", "metre", "metres"})
_UNEVEN = 0.002
"""Tolerance of an even axis, as a share of a step. At its ends a Gaussian grid of 192 rows deviates by more, 0.8 %."""
_ROUNDED = 1e-5
"""Rounding error, in degrees, of an axis with five decimals."""
_DECIMALS = 9
"""Decimals of a degree. Sums of decimal numbers have errors in later decimals."""
_FARTHEST = 720.0
"""Largest longitude of an axis in degrees: two turns."""
_FARTHEST_METRES = 1e8
"""Largest coordinate of a projection in metres, more than two circumferences of the earth."""

_SINCE = re.compile(
    r"(?P<unit>[A-Za-z]+) +since +(?P<year>\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T ] *(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?P<fraction>\.\d{1,9})?)?)?)?"
    r" *(?:Z|UTC|GMT|(?P<zone>[+-]\d{1,2})(?::?(?P<zone_minute>\d{2}))?)?",
    re.ASCII,
)
"""Units of a time axis (CF 4.4) in the syntax of UDUNITS; a time without a zone is in UTC."""
_SECONDS: Mapping[str, float] = {
    **dict.fromkeys(("microseconds", "microsecond"), 1e-6),
    **dict.fromkeys(("milliseconds", "millisecond", "msecs", "msec", "ms"), 1e-3),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("minutes", "minute", "mins", "min"), 60.0),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), 86_400.0),
}
"""Units of time; months and years have no fixed length, so CF 4.4 advises against them."""
_GREGORIAN = frozenset({"", "standard", "gregorian", "proleptic_gregorian"})
_REFORM = datetime(1582, 10, 15, tzinfo=UTC)
"""Before this day the calendar `standard` is Julian (CF 4.4.1), which Python does not support."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GridAxis:
    """An axis of longitude or latitude in degrees, or of a projection in metres.

    `first_edge` and `last_edge` are the outer edges of the first and the last cell, in the file's order. `step` is from
    cell to cell, negative for descending values, None when cells differ in size.
    """

    name: str
    length: int
    first_edge: float
    last_edge: float
    step: float | None
    in_metres: bool

    @property
    def low(self) -> float:
        """Lower edge."""
        return min(self.first_edge, self.last_edge)

    @property
    def high(self) -> float:
        """Upper edge."""
        return max(self.first_edge, self.last_edge)


def axis_kind(axis: Variable) -> AxisKind | None:
    """Return the kind of an axis by units, standard name, or direction (CF 4.1 to 4.4)."""
    units = axis.text("units").strip()
    if " since " in units:
        return "t"
    standard = axis.text("standard_name")
    if known := _UNITS.get(units) or _PROJECTED.get(standard):
        return known
    for kind, name in _NAMES.items():
        if standard == name:
            return kind
    if "units" not in axis.attributes and axis.dimensions in _UNNAMED:
        return _UNNAMED[axis.dimensions]
    return "z" if axis.text("positive").lower() in {"up", "down"} or axis.text("axis") == "Z" else None


def reference_time(header: NetcdfHeader) -> datetime | None:
    """Return the time of the run: the only value of an axis `forecast_reference_time`."""
    runs = [name for name, axis in header.axes.items() if axis.text("standard_name") == "forecast_reference_time"]
    moments = times(header, runs[0]) if len(runs) == 1 else None
    return moments[0] if moments and moments[0] == moments[1] else None


def time_axis(header: NetcdfHeader) -> str | None:
    """Return the name of the axis of valid times, else of any other axis of times."""
    names = {name: axis.text("standard_name") for name, axis in header.axes.items() if axis_kind(axis) == "t"}
    valid = [name for name, standard in names.items() if standard == "time"]
    plain = [name for name, standard in names.items() if standard != "forecast_reference_time"]
    return next(iter(valid or plain or names), None)


def grid_axis(header: NetcdfHeader, kind: Literal["x", "y"]) -> GridAxis:
    """Return the file's only axis of a kind: longitude or projected x, latitude or projected y.

    Each cell ends half a step from its centre. Five samples decide whether the axis is even: more samples would cost
    requests, and no known grid is uneven between the five. Raises ReadError: MISSING_GEOLOCATION without exactly one
    such axis, its samples, or a known unit; INVALID_GEOMETRY unless the values are ordered degrees or metres.
    """
    names = [name for name, axis in header.axes.items() if axis_kind(axis) == kind]
    if len(names) != 1:
        text = f"{len(names)} axes are of {_NAMES[kind]} (CF 4.1, 4.2); axes: {', '.join(header.axes) or 'none'}"
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, text)
    (name,) = names
    axis, length = header.axes[name], header.dimensions[name]
    in_metres = axis.text("standard_name") in _PROJECTED
    if in_metres and axis.text("units") not in _METRES:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"axis {name} is in {axis.text('units')!r}, not in metres")
    values = _values(axis)
    if length < 2 or not {0, 1, length // 2, length - 2, length - 1} <= values.keys():
        raise ReadError(
            MetadataIssue.MISSING_GEOLOCATION,
            f"axis {name} of length {length} has only {len(values)} values at its ends and middle",
        )
    first, last = values[0], values[length - 1]
    steps = values[1] - first, last - values[length - 2]
    step = (last - first) / (length - 1)
    farthest = _FARTHEST_METRES if in_metres else 90.0 + _ROUNDED if kind == "y" else _FARTHEST
    reach = max(map(abs, values.values())) if all(map(math.isfinite, values.values())) else math.inf
    if reach > farthest or min(steps[0] * step, steps[1] * step) <= 0:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, f"axis {name} runs from {first} to {last} by {steps}")
    deviations = abs(steps[0] - step), abs(steps[1] - step), abs(values[length // 2] - first - step * (length // 2))
    is_even = max(deviations) <= _UNEVEN * abs(step) + _ROUNDED
    first_width, last_width = (step, step) if is_even else steps
    first_edge, last_edge = (round(edge, _DECIMALS) for edge in (first - first_width / 2, last + last_width / 2))
    return GridAxis(
        name=name,
        length=length,
        first_edge=first_edge,
        last_edge=last_edge,
        step=round((last_edge - first_edge) / length, _DECIMALS) if is_even else None,
        in_metres=in_metres,
    )


def ends(header: NetcdfHeader, name: str) -> tuple[float, float] | None:
    """Return first and last value of an axis; None unless both are finite."""
    values = _values(header.axes[name])
    first, last = values.get(0, math.nan), values.get(header.dimensions[name] - 1, math.nan)
    return (first, last) if math.isfinite(first) and math.isfinite(last) else None


def times(header: NetcdfHeader, name: str) -> tuple[datetime, datetime] | None:
    """Return first and last time of an axis in UTC; None if they cannot be decoded."""
    axis = header.axes[name]
    units = _SINCE.fullmatch(axis.text("units").strip())
    values = ends(header, name)
    calendar = axis.text("calendar").lower()
    if units is None or values is None or units["unit"].lower() not in _SECONDS or calendar not in _GREGORIAN:
        return None
    try:
        epoch = _epoch(units)
        if epoch < _REFORM and calendar != "proleptic_gregorian":
            return None
        first, last = (epoch + timedelta(seconds=value * _SECONDS[units["unit"].lower()]) for value in values)
    except (OverflowError, ValueError):
        return None
    return first, last


def _epoch(units: re.Match[str]) -> datetime:
    year, month, day, hour, minute, second, zone, zone_minute = (
        int(units[part] or 0) for part in ("year", "month", "day", "hour", "minute", "second", "zone", "zone_minute")
    )
    west = (units["zone"] or "").startswith("-")
    offset = timedelta(hours=zone, minutes=-zone_minute if west else zone_minute)
    moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone(offset))
    return (moment + timedelta(seconds=float(units["fraction"] or 0))).astimezone(UTC)


def _values(axis: Variable) -> dict[int, float]:
    """Return unpacked samples (CF 8.1); a 32-bit float becomes its shortest decimal number."""
    scale, offset = axis.attributes.get("scale_factor", 1), axis.attributes.get("add_offset", 0)
    if not (isinstance(scale, int | float) and isinstance(offset, int | float)):
        return {}
    values = {place: value * scale + offset for place, value in axis.samples.items()}
    if axis.data_type != "float32":
        return values
    # NumPy prints a 32-bit float as its shortest decimal: 89.975, which is stored as 89.9749984741.
    with np.errstate(over="ignore"):
        return {place: float(str(np.float32(value))) for place, value in values.items()}
