"""GRIB2 messages of samples, over constant or drawn fields, and their index lines.

Belongs here: octets (WMO-No. 306, Manual on Codes, volume I.2, FM 92 GRIB edition 2) and wgrib2's output for them. A
constant field is packed in 0 bits, so that a message takes about 200 bytes whatever its grid; ecCodes and wgrib2 read
it like any other field. Does not belong here: the objects of a dataset (`hrrr.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kfm_dagster.demo.samples.patterns import waves_as_png

SPHERE = b"\x06" + bytes(15)
"""The earth of NCEP's models: code table 3.2, shape 6, a sphere of 6,371,229 m."""
MISSING = 0xFFFFFFFF
_HOUR, _MINUTE = 1, 0
"""Units of time (code table 4.4)."""
_PNG = 41
"""Data representation template of a PNG image."""
_PROBABILITY = 5
"""Product template of a probability at an instant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Origin of the messages: centre and its tables (section 1), generating process (section 4)."""

    centre: int = 7
    subcentre: int = 0
    tables: tuple[int, int] = (2, 1)
    """Version of the master tables, and of the centre's own."""
    significance: int = 1
    """Significance of the reference time (code table 1.2): start of a forecast."""
    status: int = 0
    """Production status (code table 1.3): operational."""
    data_type: int = 1
    """Type of data (code table 1.4): forecast."""
    process: tuple[int, int, int, int, int]
    """Type (code table 4.3), background, process, hours and minutes of the data cut-off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GridSection:
    """Section 3, and its columns and rows."""

    section: bytes
    columns: int
    rows: int

    @property
    def points(self) -> int:
        """Number of points."""
        return self.columns * self.rows


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnValues:
    """A field with a pattern for pictures: value = lowest + level * 2 ** exponent."""

    lowest: float
    exponent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleRole:
    """A field's part in an ensemble: template 4.1, 4.2 or 4.5, further octets, index text."""

    template: int
    octets: bytes
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A constant field: its index texts, parameter, first fixed surface and value."""

    name: str
    level: str
    parameter: tuple[int, int, int]
    """Discipline, category and number."""
    surface: tuple[int, int]
    """Type and value."""
    value: float
    accumulated: bool = False
    percentile: int | None = None
    """Percentile of the distribution that the field shows; for accumulations only."""
    ensemble: EnsembleRole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastStep:
    """Time when a field is valid, or begin and `length` of a statistic's window.

    `time` counts from the run. `time` and `length` are in `unit` (code table 4.4); `statistic` is of code table 4.10.
    """

    unit: int
    time: int
    length: int | None
    text: str
    statistic: int = 1


def at_hour(lead: int) -> ForecastStep:
    """Return the step of a field that is valid at a lead in hours."""
    return ForecastStep(unit=_HOUR, time=lead, length=None, text=f"{lead} hour fcst" if lead else "anl")


def at_minute(minutes: int) -> ForecastStep:
    """Return the step of a field that is valid some minutes after the run."""
    return ForecastStep(unit=_MINUTE, time=minutes, length=None, text=f"{minutes} min fcst" if minutes else "anl")


_STATISTICS = {"ave": 0, "acc": 1, "max": 2, "min": 3}
"""wgrib2's texts for code table 4.10."""


def over_hours(begin: int, end: int, statistic: str = "acc") -> ForecastStep:
    """Return the step of a sum, or another statistic, from one lead to another, in hours."""
    text = f"{begin}-{end} hour {statistic} fcst" if end else f"0-0 day {statistic} fcst"
    return ForecastStep(unit=_HOUR, time=begin, length=end - begin, text=text, statistic=_STATISTICS[statistic])


def lat_lon_grid(
    columns: int,
    rows: int,
    *,
    first: tuple[int, int],
    last: tuple[int, int],
    step: int,
    earth: bytes = SPHERE,
    angle: tuple[int, int] = (0, MISSING),
) -> GridSection:
    """Build template 3.0, with rows from north to south.

    Points (latitude, longitude) and step are in microdegrees, which `angle` declares (basic angle, subdivisions).
    """
    points = struct.pack(">IIIIIIBIIIIB", columns, rows, *angle, *first, 0x30, *last, step, step, 0)
    return _grid(0, columns, rows, earth, points)


def gaussian_grid(columns: int, rows: int, *, north: int, east: int, step: int) -> GridSection:
    """Build template 3.40 from Greenwich to `east`, symmetric to the equator, in microdegrees."""
    corners = ((north, 0), (0x80000000 | north, east))
    points = struct.pack(">IIIIIIBIIIIB", columns, rows, 0, 0, *corners[0], 0x30, *corners[1], step, rows // 2, 0)
    return _grid(40, columns, rows, SPHERE, points)


def rotated_grid(
    columns: int, rows: int, *, first: tuple[int, int], last: tuple[int, int], step: int, pole: tuple[int, int]
) -> GridSection:
    """Build template 3.1, rows from south to north, in microdegrees with GRIB's sign bit."""
    points = struct.pack(">IIIIIIBIIIIB", columns, rows, 0, MISSING, *first, 0x38, *last, step, step, 0x40)
    return _grid(1, columns, rows, SPHERE, points + struct.pack(">IIf", *pole, 0.0))


def mercator_grid(
    columns: int,
    rows: int,
    *,
    first: tuple[int, int],
    last: tuple[int, int],
    true_at: int,
    spacing: int,
    earth: bytes = SPHERE,
    scan: int = 0x40,
) -> GridSection:
    """Build template 3.10; angles are in microdegrees, `spacing` is in millimetres."""
    points = struct.pack(">IIIIBIIIBIII", columns, rows, *first, 0x38, true_at, *last, scan, 0, spacing, spacing)
    return _grid(10, columns, rows, earth, points)


def projected_grid(
    columns: int,
    rows: int,
    *,
    template: int,
    first: tuple[int, int],
    true_at: int,
    meridian: int,
    spacing: int,
    earth: bytes = SPHERE,
    flags: int = 8,
    scan: int = 0x40,
    pole: int = 0,
) -> GridSection:
    """Build template 3.20 (polar stereographic) or 3.30 (Lambert) from the south-west corner.

    Units are those of `mercator_grid`; `pole` is the latitude of a pole, which Lambert grids state but do not use.
    """
    points = struct.pack(">IIIIBIIIIBB", columns, rows, *first, flags, true_at, meridian, spacing, spacing, 0, scan)
    cone = struct.pack(">IIII", true_at, true_at, pole, 0) if template == 30 else b""
    return _grid(template, columns, rows, earth, points + cone)


def _grid(template: int, columns: int, rows: int, earth: bytes, points: bytes) -> GridSection:
    common = struct.pack(">BIBBH", 0, columns * rows, 0, 0, template) + earth
    return GridSection(section=_section(3, common + points), columns=columns, rows=rows)


def message(
    field: Field,
    step: ForecastStep,
    *,
    run: datetime,
    origin: Origin,
    grid: GridSection,
    packing: int = 0,
    drawn: DrawnValues | None = None,
) -> bytes:
    """Build a message of a field at a step.

    `packing` is the number of a data representation template that has the octets of 5.0. A drawn field is packed as PNG
    (5.41).
    """
    utc = run.astimezone(UTC)
    clock = struct.pack(">H5B", utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second)
    identification = (
        struct.pack(">HHBBB", origin.centre, origin.subcentre, *origin.tables, origin.significance)
        + clock
        + bytes([origin.status, origin.data_type])
    )
    # A field packed in 0 bits has its reference value at every point.
    representation, values = struct.pack(">HfHHBB", packing, field.value, 0, 0, 0, 0), b""
    if drawn is not None:
        exponent = abs(drawn.exponent) | (0x8000 if drawn.exponent < 0 else 0)
        representation = struct.pack(">HfHHBB", _PNG, drawn.lowest, exponent, 0, 8, 0)
        values = waves_as_png(grid.columns, grid.rows)
    sections = (
        _section(1, identification)
        + grid.section
        + _section(4, _product(field, step, utc, origin))
        + _section(5, struct.pack(">I", grid.points) + representation)
        + _section(6, b"\xff")
        + _section(7, values)
    )
    return struct.pack(">4sHBBQ", b"GRIB", 0, field.parameter[0], 2, len(sections) + 20) + sections + b"7777"


def assembled(fields: Iterable[tuple[Field, ForecastStep, bytes]], *, run: datetime) -> tuple[bytes, str]:
    """Join messages to an object, and write its index as wgrib2 does."""
    content, lines = b"", []
    for number, (field, step, encoded) in enumerate(fields, start=1):
        qualifier = field.ensemble.text if field.ensemble else _percent(field)
        lines.append(f"{number}:{len(content)}:d={run:%Y%m%d%H}:{field.name}:{field.level}:{step.text}:{qualifier}\n")
        content += encoded
    return content, "".join(lines)


def _percent(field: Field) -> str:
    return "" if field.percentile is None else f"{field.percentile}% level"


def full_hour(run: datetime) -> datetime:
    """Return a run in UTC. Raises ValueError unless it is an aware full hour."""
    utc = run.astimezone(UTC)
    if run.tzinfo is None or (utc.minute, utc.second, utc.microsecond) != (0, 0, 0):
        raise ValueError(f"run {run!r} is not an aware full hour")
    return utc


def _section(number: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 5, number) + body


def _product(field: Field, step: ForecastStep, run: datetime, origin: Origin) -> bytes:
    """Build section 4 by template 4.0, 4.8 (accumulation) or 4.10 (its percentile).

    An ensemble's templates are 4.1 and 4.2, and 4.11 and 4.12 for accumulations; a probability's are 4.5 and 4.9.
    """
    template, role = (0 if step.length is None else 8 if field.percentile is None else 10), b""
    if field.percentile is not None:
        role = bytes([field.percentile])
    if field.ensemble:
        further = 4 if field.ensemble.template == _PROBABILITY else 10
        template, role = field.ensemble.template + (0 if step.length is None else further), field.ensemble.octets
    body = struct.pack(
        ">HHBBBBBHBBIBBIBBI",
        0,
        template,
        *field.parameter[1:],
        *origin.process,
        step.unit,
        step.time,
        field.surface[0],
        0,
        field.surface[1],
        255,
        0,
        0,
    )
    if step.length is None:
        return body + role
    end = run + (step.time + step.length) * timedelta(hours=step.unit == _HOUR, minutes=step.unit == _MINUTE)
    # One interval; its type is 2, successive times of the same run (code table 4.11).
    interval = (
        end.year,
        end.month,
        end.day,
        end.hour,
        end.minute,
        0,
        1,
        0,
        step.statistic,
        2,
        step.unit,
        step.length,
        255,
        0,
    )
    return body + role + struct.pack(">H5BBIBBBIBI", *interval)
