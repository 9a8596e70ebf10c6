"""Reader of GHCNh: hourly observations of a station, in columns divided by `|`.

Belongs here: station, places and times of the rows, which variables have values, and the quality codes that occur. Does
not belong here: the values. Rows without the header's number of columns, or without a time, are only counted. Of an
object larger than MAX_OBJECT_BYTES the two ends are read (`text_lines.py`), with a finding.

Source: NOAA NCEI, Global Historical Climatology Network hourly (GHCNh), documentation, "Format of the data" and the
tables of codes. Headers since version 1.1 have `STATION`, `DATE` and `LATITUDE`; older ones have `Station_ID`, `Year`
to `Minute`, and `Latitude`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest, unchecked
from kfm_dagster.readers.text_lines import BEGINNING_BYTES, TextLines, cube, is_time, span, station_places

FIRST_BYTES = BEGINNING_BYTES
MAX_OBJECT_BYTES = 8 * 1024 * 1024
"""Maximum size of an object that is read to its end. A year of a station has up to 9,000 rows of 700 bytes, the archive
of a station has 50 times as much."""
MAX_LINE_BYTES = 64 * 1024
"""Maximum bytes of a line: a header of 329 columns has 9,400, and a row with all values and remarks has fewer."""
MAX_COLUMNS = 1000
MAX_PLACES = 1000
"""Maximum places of a station: a fixed station has a few."""

_DELIMITER = b"|"
_STAMP = 12
"""Digits of a time, YYYYMMDDHHMM."""
_TIME = ("year", "month", "day", "hour", "minute")
_IDENTITY = {
    "station_id": "station",
    "station_name": "name",
    **{name: name for name in (*_TIME, "station", "date", "latitude", "longitude", "elevation")},
}
"""Columns that identify a row, by their names in lower case. After them, each variable has its own column, followed by
columns of its attributes."""
_QUALITY = "_Quality_Code"
_ATTRIBUTES = ("_Measurement_Code", _QUALITY, "_Report_Type", "_Source_Code", "_Source_Station_ID")
"""Endings of the names of a variable's attributes."""
_UNITS = (
    ("degC", ("temperature", "dew_point_temperature", "wet_bulb_temperature")),
    ("hPa", ("station_level_pressure", "sea_level_pressure", "altimeter", "pressure_3hr_change")),
    ("m s-1", ("wind_speed", "wind_gust")),
    ("degree", ("wind_direction",)),
    ("mm", ("precipitation", "snow_depth")),
    ("m", ("sky_cover_baseht",)),
    ("km", ("visibility",)),
    ("%", ("relative_humidity",)),
)
"""Units by the beginnings of variables' names; other variables are codes and texts: sky cover, weather, remarks."""
_CODES = {
    "0": "passed gross limits check",
    "1": "passed all checks",
    "2": "suspect",
    "3": "erroneous",
    "4": "passed gross limits check; of an NCEI source",
    "5": "passed all checks; of an NCEI source",
    "6": "suspect; of an NCEI source",
    "7": "erroneous; of an NCEI source",
    "9": "passed gross limits check if there is a value",
    "A": "suspect, accepted by hand as good",
    "C": "climatological outlier",
    "D": "distribution of the month",
    "F": "frequent value",
    "K": "streak of equal values",
    "L": "inconsistent with another variable",
    "S": "spike",
    "T": "inconsistent time stamp",
    "U": "diurnal inconsistency",
    "W": "beyond the world's record",
    "d": "distribution of all observations",
    "o": "outlier",
}
"""Meanings of quality codes. Rows with source codes 313 to 348 have digits, as in the Integrated Surface Database."""


@dataclass(kw_only=True, slots=True)
class _Rows:
    """Summary of an object's rows."""

    station: bytes
    """Station that the key names; every row must be of this station."""
    columns: Sequence[str] = ()
    identity: Mapping[str, int] = field(default_factory=dict)
    """Positions of the identity's columns."""
    variables: Mapping[int, str] = field(default_factory=dict)
    quality: Sequence[int] = ()
    """Positions of the columns of quality codes."""
    count: int = 0
    odd: int = 0
    """Rows that do not have the header's number of columns, or have no time."""
    first: bytes = b"9" * _STAMP
    last: bytes = b""
    name: bytes = b""
    places: dict[tuple[bytes, ...], bytes] = field(default_factory=dict)
    """Latest time by latitude, longitude and elevation."""
    values: dict[int, int] = field(default_factory=dict)
    """Number of rows with a value, by the variable's position."""
    codes: set[bytes] = field(default_factory=set)

    def take(self, lines: Sequence[bytes]) -> None:
        """Add lines; the object's first line is the header. Raises ReadError."""
        if lines and not self.columns:
            self._take_header(lines[0])
            lines = lines[1:]
        for line in lines:
            row = line.removesuffix(b"\r").split(_DELIMITER)
            self.count += 1
            stamp = self._stamp(row) if len(row) == len(self.columns) else b""
            # A time between `first` and `last` is not checked, because it changes neither.
            if not stamp or not (self.first <= stamp <= self.last or is_time(stamp)):
                self.odd += 1
                continue
            if row[self.identity["station"]] != self.station:
                raise self._mismatch(row[self.identity["station"]])
            self._take_row(row, stamp)

    def _take_row(self, row: Sequence[bytes], stamp: bytes) -> None:
        self.first, self.last = min(self.first, stamp), max(self.last, stamp)
        self.name = row[self.identity["name"]] if "name" in self.identity else b""
        place = tuple(row[self.identity[name]] for name in ("latitude", "longitude", "elevation"))
        self.places[place] = max(self.places.get(place, b""), stamp)
        if len(self.places) > MAX_PLACES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"rows of more than {MAX_PLACES} places")
        for position in self.variables:
            if row[position]:
                self.values[position] = self.values.get(position, 0) + 1
        self.codes.update([row[position] for position in self.quality])

    def _take_header(self, line: bytes) -> None:
        columns = line.removesuffix(b"\r").decode("utf-8", "replace").split(_DELIMITER.decode())
        self.identity = {_IDENTITY[name.lower()]: at for at, name in enumerate(columns) if name.lower() in _IDENTITY}
        needed = {"station", "latitude", "longitude", "elevation"}
        if needed - self.identity.keys() or not ("date" in self.identity or set(_TIME) <= self.identity.keys()):
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"{line[:60]!r} is not the header of GHCNh")
        if len(columns) > MAX_COLUMNS:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"{len(columns)} columns; up to {MAX_COLUMNS} are read")
        self.columns = columns
        self.variables = {
            at: name
            for at, name in enumerate(columns)
            if at not in self.identity.values() and name.isidentifier() and not name.endswith(_ATTRIBUTES)
        }
        self.quality = [at for at, name in enumerate(columns) if name.endswith(_QUALITY)]

    def _stamp(self, row: Sequence[bytes]) -> bytes:
        """Return a row's time; empty if the row has no time."""
        if (date := self.identity.get("date")) is not None:
            stamp = row[date].translate(None, b"-T: ")[:_STAMP]
        else:
            stamp = b"".join(row[self.identity[name]].zfill(2) for name in _TIME)
        return stamp if len(stamp) == _STAMP and stamp.isdigit() else b""

    def _mismatch(self, station: bytes) -> ReadError:
        text = f"a row is of station {station[:20]!r}; the key names {self.station.decode()}"
        return ReadError(MetadataIssue.PLATFORM_MISMATCH, text)


def read_ghcn_hourly(request: ReadRequest) -> HeaderMetadata:
    """Read a station's observations.

    `request.groups` has `station`, and `year` if the object is of a year. `start` and `end` are the times of the first
    and last row, `datetime` is `start`; rows may be in any order. If only the beginning and end of the object were
    read, the times are those of the rows read, and `ghcn:rows` is missing. The geometry is a Point at the place of the
    last row; it is empty when no row has a place. Raises ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT
    and INCOMPLETE_PRODUCT_METADATA for the bytes, TIME_MISMATCH and PLATFORM_MISMATCH against the key.
    """
    station = request.groups["station"]
    rows = _Rows(station=station.encode("ascii"))
    text = TextLines(source=request.source, most_bytes=MAX_OBJECT_BYTES, most_line=MAX_LINE_BYTES)
    for lines in text:
        rows.take(lines)
    if text.rest:
        rows.take([text.rest])
    first, last = span(rows.first, rows.last, year=request.groups.get("year"))
    # The places, in the order of their latest times.
    places = [_numbers(place) for place in sorted(rows.places, key=rows.places.__getitem__)]
    positions = [(latitude, longitude) for latitude, longitude, _ in places if latitude is not None is not longitude]
    columns = len(rows.columns)
    cut = "the last row does not end with a newline, so the object may be cut" if text.rest else ""
    odd = (
        f"{rows.odd} of {rows.count} rows do not have the header's {columns} columns, or have no time"
        if rows.odd
        else ""
    )
    return HeaderMetadata(
        start=first,
        end=last,
        datetime=first,
        geometry={"type": "Point", "coordinates": positions[-1][::-1]} if positions else {},
        properties=_properties(station, rows, text.unread)
        | station_places(
            "ghcn", positions, [metres for *_, metres in places if metres is not None], whole=not text.unread
        )
        | cube(first, last, _variables(rows)),
        native={
            "columns": columns,
            "rows": rows.count,
            "odd_rows": rows.odd,
            "values": {rows.variables[at]: count for at, count in rows.values.items()},
        },
        findings=unchecked(text.unread, cut, odd),
    )


def _properties(station: str, rows: _Rows, unread: str) -> dict[str, Any]:
    name = rows.name.decode("utf-8", "replace")
    codes = {code: text for code, text in _CODES.items() if code.encode() in rows.codes}
    optional = {
        "ghcn:station-name": name if name.isprintable() else None,
        "ghcn:rows": None if unread else rows.count,
        "ghcn:quality-codes": codes,
    }
    return {
        "platform": station,
        "ghcn:csv": {"delimiter": _DELIMITER.decode(), "header": True},
        **{key: value for key, value in optional.items() if value},
    }


def _variables(rows: _Rows) -> dict[str, dict[str, Any]]:
    """Return description and unit of the variables that have values."""
    variables: dict[str, dict[str, Any]] = {}
    for name in (rows.variables[at] for at in sorted(rows.values)):
        unit = next((unit for unit, beginnings in _UNITS if name.startswith(beginnings)), None)
        variables[name] = {"description": name.replace("_", " ")} | ({"unit": unit} if unit else {})
    return variables


def _numbers(place: Sequence[bytes]) -> tuple[float | None, float | None, float | None]:
    """Return latitude, longitude and elevation of a row; None for a missing or invalid value."""
    latitude, longitude, elevation = (_number(text) for text in place)
    return (
        latitude if latitude is not None and abs(latitude) <= 90 else None,
        longitude if longitude is not None and abs(longitude) <= 180 else None,
        elevation if elevation is not None and -500 <= elevation <= 9000 else None,
    )


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
