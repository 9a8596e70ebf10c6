"""Reader of ISD station-years: a year's reports of a station, gzipped, a report per line.

Belongs here: the control data section of each report (station, time, place, kind), whether the object is whole, and the
columns of the mandatory data section. Does not belong here: the values of this section, and the additional data
section.

If an object is larger than MAX_OBJECT_BYTES, or unpacks to more than MAX_TEXT_BYTES, only its beginning is read
(`text_lines.py`), with a finding of unchecked completeness.

Source: NOAA NCEI and US Air Force 14th Weather Squadron, Federal Climate Complex Data Documentation for Integrated
Surface Data (ISD), 12 January 2018, "Control Data Section" and "Mandatory Data Section"; positions count from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError, ReadRequest, unchecked
from kfm_dagster.readers.text_lines import BEGINNING_BYTES, TextLines, cube, span, station_places, utc

FIRST_BYTES = BEGINNING_BYTES
MAX_OBJECT_BYTES = 8 * 1024 * 1024
"""Maximum size of an object that is read to its end. A year has 0.8 MB with a report every 20 minutes, 3.5 MB with a
report every 5 minutes."""
MAX_TEXT_BYTES = 128 * 1024 * 1024
"""Maximum unpacked bytes. Real objects unpack to 9 times their size, so MAX_OBJECT_BYTES would become 72 MiB."""
MANDATORY_BYTES = 105
"""Bytes of the control and mandatory data sections; positions 1 to 4 state the number of bytes after these sections."""
MAX_REPORT_BYTES = MANDATORY_BYTES + 9999
MAX_PADDING = 5
"""Maximum blanks that real reports lack at their end. A report may end with a code of element quality data, which has
six characters, padded with blanks."""
MAX_KINDS = 16_384
"""Maximum combinations of place, report type, call sign: a drifting buoy may have 8,784 places, one for each hour."""

_NO_USAF, _NO_WBAN, _NO_TEXT = "999999", "99999", "99999"
"""Texts that mean a missing value; a missing number is outside its valid range."""
_LATITUDES, _LONGITUDES, _ELEVATIONS = range(-90_000, 90_001), range(-180_000, 180_001), range(-400, 8851)
"""Valid ranges, in thousandths of a degree and in metres."""
_MANDATORY = (
    ("wind_direction", "Wind direction, clockwise from true north", "degree", (61, 63), 1),
    ("wind_speed", "Wind speed", "m s-1", (66, 69), 0.1),
    ("ceiling_height", "Height above ground of the ceiling", "m", (71, 75), 1),
    ("visibility", "Horizontal visibility", "m", (79, 84), 1),
    ("air_temperature", "Air temperature", "degC", (88, 92), 0.1),
    ("dew_point_temperature", "Dew point temperature", "degC", (94, 98), 0.1),
    ("sea_level_pressure", "Air pressure at mean sea level", "hPa", (100, 104), 0.1),
)
"""Name, long name, unit, first and last position in a report, and scale; the quality code follows the last position;
nines are a missing value."""
_SIGNED = "degC"
"""Unit of the columns that begin with a sign."""
_CONTROL = re.compile(
    # 1: bytes after position 105; 5: USAF and WBAN; 16: date and time; 28: data source
    rb"\d{4}[0-9A-Z]\d{10}\d{12}."
    # 29 and 35: thousandths of a degree; 42: report type; 47: metres; 52: call sign
    rb"(?P<latitude>[+-]\d{5})(?P<longitude>[+-]\d{6})(?P<type>[ -~]{5})(?P<elevation>[+-]\d{4})(?P<call>[ -~]{5})"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """Common values of several reports' control sections. Degrees and metres; None if missing."""

    position: tuple[float, float] | None
    """Latitude and longitude."""
    report_type: str
    elevation_m: int | None
    call_sign: str


@dataclass(kw_only=True, slots=True)
class _Reports:
    """Summary of the control sections of an object's reports."""

    station: bytes
    """USAF and WBAN, which every report must name."""
    records: int = 0
    first: bytes = b"9" * 12
    last: bytes = b""
    """Stamps of the first and last report, YYYYMMDDHHMM."""
    kinds: dict[bytes, _Kind] = field(default_factory=dict)
    """Kinds by their bytes in a report, in the order of their last reports."""
    odd: int = 0
    """Reports whose length differs from their stated length."""
    unread: str = ""
    """Reason why the object may have unread reports; empty when all were read."""

    def take(self, lines: Sequence[bytes]) -> None:
        """Add reports to the summary. Raises ReadError for a line without a report of the station."""
        station, first, last = self.station, self.first, self.last
        latest = next(reversed(self.kinds), b"")
        for line in lines:
            time, size = line[15:27], len(line) - MANDATORY_BYTES
            if line[4:15] != station or size < 0 or not time.isdigit():
                raise self._refused(line)
            if line[28:56] != latest:
                latest = line[28:56]
                self.kinds[latest] = self.kinds.pop(latest) if latest in self.kinds else self._kind(line)
            first, last = min(first, time), max(last, time)
            # Real reports lack blanks at their end.
            if line[:4] != b"%04d" % size and not (line[:4].isdigit() and size <= int(line[:4]) <= size + MAX_PADDING):
                self.odd += 1
        self.first, self.last = first, last
        self.records += len(lines)

    def _kind(self, line: bytes) -> _Kind:
        if len(self.kinds) >= MAX_KINDS:
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT, f"reports of more than {MAX_KINDS} places, types and call signs"
            )
        match = _CONTROL.match(line)
        if match is None:
            raise self._refused(line)
        latitude, longitude, elevation = (int(match[name]) for name in ("latitude", "longitude", "elevation"))
        placed = latitude in _LATITUDES and longitude in _LONGITUDES
        return _Kind(
            position=(latitude / 1000, longitude / 1000) if placed else None,
            report_type=match["type"].decode("ascii"),
            elevation_m=elevation if elevation in _ELEVATIONS else None,
            call_sign=match["call"].decode("ascii"),
        )

    def _refused(self, line: bytes) -> ReadError:
        if _CONTROL.match(line) and len(line) >= MANDATORY_BYTES:
            other, own = line[4:15].decode("ascii"), self.station.decode("ascii")
            return ReadError(MetadataIssue.PLATFORM_MISMATCH, f"a report is of station {other}; the key names {own}")
        return ReadError(MetadataIssue.UNREADABLE_FORMAT, f"{line[:60]!r} is not a report's control data section")


def read_isd(request: ReadRequest) -> HeaderMetadata:
    """Read a station-year; `request.groups` must have `usaf`, `wban` and `year`.

    `start` and `end` are the times of the first and last report, and `datetime` is the start. If the end was not
    reached (`isd:end-known` is False), `end` is the start, too, and the properties describe only the beginning. The
    geometry is a Point at the last place that a report states; it is empty if no report states a place. Raises
    ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT, INVALID_TIME_RANGE and INCOMPLETE_PRODUCT_METADATA
    for the bytes, TIME_MISMATCH and PLATFORM_MISMATCH against the key.
    """
    groups = request.groups
    reports = _read(request.source, station=(groups["usaf"] + groups["wban"]).encode("ascii"))
    first, last = span(reports.first, reports.last, year=groups["year"], moment=_moment)
    kinds = list(reports.kinds.values())
    places = [kind.position for kind in kinds if kind.position is not None]
    elevations = [kind.elevation_m for kind in kinds if kind.elevation_m is not None]
    odd = f"{reports.odd} of {reports.records} reports do not have their stated length" if reports.odd else ""
    return HeaderMetadata(
        start=first,
        end=first if reports.unread else last,
        datetime=first,
        geometry={"type": "Point", "coordinates": (places[-1][1], places[-1][0])} if places else {},
        properties=_properties(groups["usaf"], groups["wban"], reports, places, elevations)
        | cube(first, None if reports.unread else last, _variables()),
        native={"records": reports.records},
        findings=unchecked(reports.unread, odd),
    )


def _read(source: ByteSource, *, station: bytes) -> _Reports:
    reports = _Reports(station=station)
    text = TextLines(
        source=source, most_bytes=MAX_OBJECT_BYTES, most_line=MAX_REPORT_BYTES, most_unpacked=MAX_TEXT_BYTES
    )
    for lines in text:
        reports.take(lines)
    reports.unread = text.unread
    if not text.unread:
        _take_last(reports, text.rest)
    return reports


def _take_last(reports: _Reports, rest: bytes) -> None:
    """Add the text after the last line's end: nothing, or a whole report."""
    if not rest:
        return
    if rest[:4] != b"%04d" % (len(rest) - MANDATORY_BYTES):
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the text ends within a report: {rest[:60]!r}")
    reports.take([rest])


def _moment(stamp: bytes) -> datetime:
    """Return the time of a stamp; hour 2400, which real stations report, is the end of the day."""
    at_midnight = stamp[8:] == b"2400"
    try:
        return utc(stamp[:8] if at_midnight else stamp) + timedelta(days=at_midnight)
    except OverflowError:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"{stamp!r} is not the time of a report") from None


def _properties(
    usaf: str, wban: str, reports: _Reports, places: Sequence[tuple[float, float]], elevations: Sequence[int]
) -> dict[str, Any]:
    kinds = reports.kinds.values()
    optional = {
        "isd:usaf": None if usaf == _NO_USAF else usaf,
        "isd:wban": None if wban == _NO_WBAN else wban,
        "isd:call-signs": _texts(kind.call_sign for kind in kinds),
        "isd:report-types": _texts(kind.report_type for kind in kinds),
        # The total is unknown when only the beginning was read.
        "isd:records": None if reports.unread else reports.records,
        "isd:end-known": False if reports.unread else None,
    }
    return (
        {"platform": f"{usaf}-{wban}"}
        | {name: value for name, value in optional.items() if value is not None}
        | station_places("isd", places, elevations, whole=not reports.unread)
    )


def _variables() -> dict[str, dict[str, Any]]:
    """Return the mandatory columns."""
    return {
        name: {
            "description": description,
            "unit": unit,
            "isd:positions": list(positions),
            "isd:scale": scale,
            "isd:missing": ("+" if unit == _SIGNED else "9") + "9" * (positions[1] - positions[0]),
        }
        for name, description, unit, positions, scale in _MANDATORY
    }


def _texts(values: Iterable[str]) -> list[str] | None:
    """Return the distinct texts without blanks at their ends; None when all are missing."""
    return sorted({text for value in values if (text := value.strip()) not in {"", _NO_TEXT}}) or None
