"""GRIB2 sections: from bytes to a message's identification, product and raw grid definition.

Belongs here: octets of sections 0, 1, 3, 4 and 5 (WMO-No. 306, Manual on Codes, volume I.2, FM 92 GRIB edition 2), and
bounded walking from message to message. Does not belong here: meanings of grid definitions (`grib2_grids.py`), sidecars
(`grib_index.py`) and STAC (`grib2.py`). Octet numbers in comments are the manual's, counted from 1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError

REQUEST_BYTES = 4096
"""Minimum bytes of a range request: enough for sections 0 to 5 of an NCEP message, which take 200 to 250 bytes."""

SECTION_BYTES = 256
"""Maximum bytes kept of a section: more than the fixed part of every template here (3.30 has 81, 4.49 has 61)."""

END = b"7777"
"""Section 8, which ends a message."""

SEARCH_BYTES = 1024
"""Maximum bytes between two messages, where NDFD files have WMO headers."""

STRAY_BYTES = 8
"""Maximum bytes after the last message; an object with more is refused. Real objects have a line end there, the first
letters of a missing message, or six zeros (NDFD's wave heights)."""

MAX_STEP = timedelta(days=3660)
"""Longest plausible forecast; a corrupt forecast time must not become a date far outside the calendar."""

_INDICATOR_BYTES = 16
_READ = frozenset({1, 3, 4, 5})
_REPEATED = frozenset({2, 3, 4})
_REPRESENTATION, _DATA = 5, 7
"""Numbers of the sections that are read (`_READ`), that may begin a further field (`_REPEATED`), of the data
representation, and of the data."""
_MISSING_32 = 0xFFFFFFFF


class Span(NamedTuple):
    """Time of a field (UTC): an instant if start equals end, else a window (accumulation)."""

    start: datetime
    end: datetime


class Probability(NamedTuple):
    """Event of a probability (code table 4.9), and its limits; a missing limit is 0."""

    kind: int
    lower: float
    upper: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """Section 4, the product.

    `forecast_time` is in the message's own unit, `level` in the SI unit of the surface (Pa, m, ...). `begin` and `step`
    are the times from the reference to the field's start and end: equal for an instant, the overall interval for
    statistical products. With an unknown template `begin` and `step` are None; with an unknown time unit only a
    statistical product has a `step`. `origin` has the generating process and the role in an ensemble (code tables 4.6
    and 4.7) under ecCodes' key names, if the template has them.
    """

    template: int
    category: int
    number: int
    forecast_time: int | None
    surface_type: int | None
    level: float | None
    begin: timedelta | None
    step: timedelta | None
    origin: Mapping[str, int]
    second_surface: int | None
    """Type of the second fixed surface (code table 4.5); 255 for none."""
    statistic: int | None
    """Code (table 4.10) of the statistic of a product over one time range."""
    probability: Probability | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GribMessage:
    """A message's header. `grid` is section 3, cut at SECTION_BYTES.

    `offset` and `length` are in bytes, `reference` is aware UTC; codes are of tables 1.3, 1.4, C-11 and C-12.
    """

    offset: int
    length: int
    discipline: int
    centre: int
    subcentre: int
    reference: datetime
    production_status: int
    data_type: int
    grid: bytes
    product: Product
    packing: int
    representation: bytes
    """Section 5, cut at SECTION_BYTES."""

    @property
    def end(self) -> int:
        """Offset of the first byte after the message."""
        return self.offset + self.length

    @property
    def span(self) -> Span | None:
        """Time of the field; None for an unknown template or unit of time."""
        if self.product.begin is None or self.product.step is None:
            return None
        return Span(self.reference + self.product.begin, self.reference + self.product.step)


class HeaderWindow:
    """Small reads of a ByteSource, served from its last request (at least REQUEST_BYTES)."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = 0
        self._bytes = b""
        self.size = source.size

    def peek(self, start: int, length: int) -> bytes:
        """Return bytes [start, start + length), cut at the end of the object."""
        length = max(0, min(length, self.size - start))
        self.hold(start, length)
        return self._bytes[start - self._start : start - self._start + length]

    def hold(self, start: int, length: int) -> None:
        """Hold bytes [start, start + length), so that reads within them need no further request."""
        if start < self._start or start + length > self._start + len(self._bytes):
            self._start, self._bytes = start, self._source.read(start, max(length, REQUEST_BYTES))

    def read(self, start: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises ReadError(TRUNCATED_OBJECT) beyond the object's end."""
        data = self.peek(start, length)
        if len(data) < length:
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT,
                f"the object of {self.size} bytes gave {len(data)} of the {length} bytes of a header at {start}",
            )
        return data


def find_message(window: HeaderWindow, start: int) -> int | None:
    """Return the offset of the next `GRIB` within SEARCH_BYTES of `start`, or None."""
    position = window.peek(start, SEARCH_BYTES + 4).find(b"GRIB")
    return None if position < 0 else start + position


_SEPARATOR = re.compile(rb"\*{4}(\d{10})\*{4}\n")
_SEPARATOR_BYTES = 19
"""Flag field separator of the NWS Telecommunications Gateway, with the number of bytes that follow."""


def states_length(window: HeaderWindow) -> bool:
    """Return whether the object states its own length first. Raises ReadError if it is shorter."""
    separator = _SEPARATOR.match(window.peek(0, _SEPARATOR_BYTES))
    stated = separator.end() + int(separator[1]) if separator else 0
    if stated > window.size:
        raise ReadError(
            MetadataIssue.TRUNCATED_OBJECT, f"the object has {window.size} bytes, and its first line states {stated}"
        )
    return stated == window.size


def message_length(window: HeaderWindow, start: int) -> tuple[int, int]:
    """Return discipline and total length in bytes of the message at `start`.

    Section 0, octets 7 and 9-16. Raises ReadError: UNREADABLE_FORMAT for another edition or an impossible length,
    TRUNCATED_OBJECT when the message is longer than the object.
    """
    magic, discipline, edition, length = struct.unpack(">4s2xBBQ", window.read(start, _INDICATOR_BYTES))
    if magic != b"GRIB":
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"no GRIB message starts at byte {start}")
    if edition != 2:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"GRIB edition {edition}; only edition 2 is read")
    if length <= _INDICATOR_BYTES + len(END):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"the message at byte {start} claims {length} bytes")
    if start + length > window.size:
        raise ReadError(
            MetadataIssue.TRUNCATED_OBJECT,
            f"the message at byte {start} has {length} bytes, but the object ends at {window.size}",
        )
    return discipline, length


def read_message(window: HeaderWindow, start: int) -> GribMessage:
    """Return the header of the first field of the message at `start`. Raises ReadError."""
    return next(_read_fields(window, start))


def read_fields(window: HeaderWindow, start: int) -> Iterator[GribMessage]:
    """Yield the header of each field from the message at `start` on, without the packed data.

    Raises ReadError if a message does not end where it states, or if more than STRAY_BYTES follow the last message.
    """
    following: int | None = start
    while following is not None:
        end = following + message_length(window, following)[1]
        try:
            yield from _read_fields(window, following)
        except ReadError:
            check_end(window, end)  # without its end a message is truncated, whatever else is wrong
            raise
        check_end(window, end)
        following = find_message(window, end)
    if window.size - end > STRAY_BYTES:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"no GRIB message follows the message that ends at byte {end}")


def _read_fields(window: HeaderWindow, start: int) -> Iterator[GribMessage]:
    discipline, length = message_length(window, start)
    try:
        for sections in _sections(window, start + _INDICATOR_BYTES, start + length - len(END)):
            identification, reference = sections[1], _time(sections[1], 12)
            # Octets 6-7 centre, 8-9 sub-centre, 13-19 reference time, 20 production status, 21 type of data.
            centre, subcentre = struct.unpack_from(">HH", identification, 5)
            yield GribMessage(
                offset=start,
                length=length,
                discipline=discipline,
                centre=centre,
                subcentre=subcentre,
                reference=reference,
                production_status=identification[19],
                data_type=identification[20],
                grid=sections[3],
                product=_product(sections[4], reference),
                packing=struct.unpack_from(">H", sections[5], 9)[0],
                representation=sections[5],
            )
    except (struct.error, IndexError):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, "a section is shorter than its template") from None


def check_end(window: HeaderWindow, end: int) -> None:
    """Raise ReadError(TRUNCATED_OBJECT) unless the 4 bytes before byte `end` are END."""
    if window.read(end - len(END), len(END)) != END:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the message that ends at byte {end} has no {END.decode()}")


def check_tail(window: HeaderWindow) -> None:
    """Raise ReadError(TRUNCATED_OBJECT) unless at most STRAY_BYTES follow the last END."""
    tail = window.peek(max(0, window.size - len(END) - STRAY_BYTES), len(END) + STRAY_BYTES)
    if END not in tail:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"no message ends where the object does, at byte {window.size}")


def _sections(window: HeaderWindow, start: int, end: int) -> Iterator[Mapping[int, bytes]]:
    """Yield sections 1, 3, 4 and 5 of each field by number.

    Numbers ascend, and a further field begins with section 2, 3 or 4. A section that a further field does not repeat
    is the same as for the field before it (regulation 92.6.2). A section out of order ends the iteration; before the
    first field it raises ReadError.
    """
    sections: dict[int, bytes] = {}
    previous, fields = 0, 0
    while start < end:
        length, number = struct.unpack(">IB", window.read(start, 5))
        repeats = previous == _DATA and number in _REPEATED
        if length < 5 or start + length > end or not (repeats or previous < number <= _DATA):
            if fields:
                return
            raise ReadError(
                MetadataIssue.UNREADABLE_FORMAT,
                f"section {number} of {length} bytes after section {previous} at byte {start} does not fit its message",
            )
        if number in _READ:
            sections[number] = window.read(start, min(length, SECTION_BYTES))
        if number == _REPRESENTATION:
            if missing := _READ - sections.keys():
                raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a message has no section {min(missing)}")
            yield sections
            fields += 1
        start += length
        previous = number
    if not fields:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a message has no section {_REPRESENTATION}")


def _time(section: bytes, at: int) -> datetime:
    try:
        year, month, day, hour, minute, second = struct.unpack_from(">H5B", section, at)
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"section {section[4]} holds no time: {error}") from None


_INSTANTS = {18: (0, 1, 2, 3, 4, 5, 6, 7, 15, 51, 60), 20: (40, 41), 31: (45, 50), 42: (48, 49)}
_INTERVALS = {
    18: {8: 35, 9: 48, 10: 36, 11: 38, 12: 37, 13: 69, 14: 65, 61: 45, 91: 36},
    20: {42: 37, 43: 40},
    31: {46: 48, 47: 51, 85: 51},
}
_LAYOUTS: Mapping[int, tuple[int, int | None, int | None]] = {
    **{number: (unit, unit + 5, None) for unit, numbers in _INSTANTS.items() for number in numbers},
    **{number: (unit, unit + 5, end) for unit, ends in _INTERVALS.items() for number, end in ends.items()},
    # Simulated satellite products have bands instead of a surface.
    32: (18, None, None),
    33: (18, None, None),
    34: (18, None, 27),
}
"""Octets of the unit of time, the first fixed surface and the end of the overall interval in NOAA's product definition
templates (template tables of section 4)."""

_UNITS: Mapping[int, timedelta] = {
    0: timedelta(minutes=1),
    1: timedelta(hours=1),
    2: timedelta(days=1),
    10: timedelta(hours=3),
    11: timedelta(hours=6),
    12: timedelta(hours=12),
    13: timedelta(seconds=1),
}
"""Units of time (code table 4.4), without months and longer units, which have no fixed length."""


_PROBABILITY_TEMPLATES = frozenset({5, 9})
_MEMBER_TEMPLATES, _DERIVED_TEMPLATES = frozenset({1, 11, 60, 61}), frozenset({2, 3, 4, 12, 13, 14})


def _product(section: bytes, reference: datetime) -> Product:
    template, category, number = struct.unpack_from(">HBB", section, 7)
    layout = _LAYOUTS.get(template)
    forecast_time = surface_type = level = begin = step = second_surface = statistic = None
    if layout is not None:
        unit_octet, surface_octet, end_octet = layout
        unit, forecast_time = struct.unpack_from(">BI", section, unit_octet - 1)
        forecast_time = signed(forecast_time, 32)
        if surface_octet is not None:
            surface_type, level = _surface(section, surface_octet - 1)
            second_surface = section[surface_octet + 5]
        if unit in _UNITS:
            begin = step = _scaled_step(forecast_time, _UNITS[unit])
        if end_octet is not None:
            step = _time(section, end_octet - 1) - reference
            begin = None if begin is None else min(begin, step)
            # After the end: number of time ranges (1 octet), missing values (4), statistic of the first range.
            statistic = section[end_octet + 11] if section[end_octet + 6] == 1 else None
        if step is not None and not timedelta(0) <= step <= MAX_STEP:
            raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"a message's time is {step} after its reference")
    return Product(
        template=template,
        category=category,
        number=number,
        forecast_time=forecast_time,
        surface_type=surface_type,
        level=level,
        begin=begin,
        step=step,
        origin=_origin(section, template),
        second_surface=second_surface,
        statistic=statistic,
        probability=_probability(section) if template in _PROBABILITY_TEMPLATES else None,
    )


def _probability(section: bytes) -> Probability:
    """Return octets 37 (kind), 38-42 (lower limit) and 43-47 (upper limit)."""
    kind, *scaled = struct.unpack_from(">BBIBI", section, 36)
    lower, upper = (_scaled(*limit) or 0.0 for limit in zip(*[iter(scaled)] * 2, strict=True))
    return Probability(kind, lower, upper)


def _origin(section: bytes, template: int) -> dict[str, int]:
    """Return generating process and role in an ensemble under ecCodes' key names."""
    # The generating process is 4 octets before the unit of time; octet 35 is the type, octet 36 the member's number.
    layout = _LAYOUTS.get(template)
    octets = {} if layout is None else {"generatingProcessIdentifier": layout[0] - 4}
    if template in _MEMBER_TEMPLATES:
        octets |= {"typeOfEnsembleForecast": 35, "perturbationNumber": 36}
    if template in _DERIVED_TEMPLATES:
        octets |= {"derivedForecast": 35}
    return {name: section[octet - 1] for name, octet in octets.items()}


def _scaled_step(count: int, unit: timedelta) -> timedelta:
    """Return count times unit, cut just above MAX_STEP so that no timedelta overflows."""
    limit = (MAX_STEP + unit) // unit
    return unit * max(-limit, min(count, limit))


def _surface(section: bytes, at: int) -> tuple[int, float | None]:
    surface_type, factor, value = struct.unpack_from(">BBI", section, at)
    return surface_type, _scaled(factor, value)


def _scaled(factor: int, value: int) -> float | None:
    """Return a value with its decimal scale factor; None if either is missing."""
    missing = factor == 0xFF or value == _MISSING_32
    return None if missing else signed(value, 32) / 10.0 ** signed(factor, 8)


def signed(value: int, bits: int) -> int:
    """Decode sign and magnitude: the first bit is the sign (regulation 92.1.5)."""
    sign = 1 << (bits - 1)
    return sign - value if value & sign else value
