"""NEXRAD Level II records: their framing as LDM records and messages, and their fields.

Belongs here: the two framings of ICD 2620010 (7.3.4 and 7.3.5), and the fields of single records of ICD 2620010
(Archive II/User) and ICD 2620002 (RDA/RPG), as values. Does not belong here: the choice of an object's records
(`nexrad_level2.py`, `nexrad_end.py`, `nexrad_chunk.py`).
"""

from __future__ import annotations

import bz2
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.unpacked import Bytes, Unpacked

HEADER_BYTES = 24
MAX_CUTS = 32
"""Maximum elevation cuts of a volume coverage pattern (ICD 2620002, table XI)."""
MAX_BLOCKS = 10
"""Maximum data blocks of a radial: three with constants, seven with moments (ICD 2620002, table XVII)."""
BAND_MHZ = (2700, 3000)
"""Transmitter band of a WSR-88D (ICD 2620002, table XV); before 2008 the table was different, without this field."""
GATE_M = (50, 2000)
"""Valid lengths of a range gate; real volumes have 250 m and 1 km (ICD 2620002, tables III and XVII-B)."""
MOMENTS: Mapping[str, tuple[str, str]] = {
    "REF": ("Reflectivity", "dBZ"),
    "VEL": ("Radial velocity", "m s-1"),
    "SW": ("Spectrum width", "m s-1"),
    "ZDR": ("Differential reflectivity", "dB"),
    "PHI": ("Differential phase", "degree"),
    "RHO": ("Correlation coefficient", "1"),
    "CFP": ("Clutter filter power removed", "dB"),
}
"""Long name and unit of the moments, in the order of their data blocks (ICD 2620002, tables III and XVII-B)."""
INTERMEDIATE, END_OF_VOLUME = 1, 4
"""Radial status (ICD 2620002, tables III and XVII) of a radial within a cut, and of the last of a whole volume."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000
_RDA_STATUS = {2: "start-up", 4: "standby", 8: "restart", 16: "operate", 64: "off-line operate"}
_OPERABILITY = {
    2: "on-line",
    4: "maintenance action required",
    8: "maintenance action mandatory",
    16: "commanded shut down",
    32: "inoperable",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Position of the radar: degrees (WGS 84), and the feedhorn's metres above mean sea level."""

    latitude: float
    longitude: float
    height_m: float


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeHeader:
    """The 24 bytes at the start (ICD 2620010, 7.3.3). `icao` is empty in ARCHIVE2 volumes."""

    magic: str
    extension: str
    time: datetime
    icao: str

    @property
    def version(self) -> str:
        """Format version, two digits; empty in ARCHIVE2 volumes."""
        return self.magic[6:8] if self.magic.startswith("AR2V") else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Radial:
    """A radial: message type 31 (ICD 2620002, table XVII) or 1 (table III).

    cut: number of the elevation cut, a turn of the antenna at one elevation, from 1.
    gate_spacing_m: metres between the reflectivity's range gates; None without reflectivity, or if a gate's length is
    invalid. reach_m: metres to the end of the last gate; None in the same cases, and for type 1, whose cells always
    reach equally far.
    """

    message_type: int
    icao: str
    time: datetime
    status: int
    cut: int
    vcp: int
    moments: tuple[str, ...]
    position: Position | None
    gate_spacing_m: int | None
    reach_m: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Message type 5, the coverage pattern (ICD 2620002, table XI): number, angles in degrees."""

    number: int
    elevations: tuple[float, ...]


def decode_header(data: bytes) -> VolumeHeader:
    """Decode name, extension, date, time and ICAO (ICD 2620010, 7.3.3). Raises ReadError."""
    if len(data) < HEADER_BYTES:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(data)} bytes are less than a volume header")
    magic, extension, day, milliseconds, icao = struct.unpack(">9s3sII4s", data)
    if magic != b"ARCHIVE2." and not (magic[:4] == b"AR2V" and magic[4:8].isdigit() and magic[8:] == b"."):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"starts with {magic!r}; expected AR2V00nn. or ARCHIVE2.")
    return VolumeHeader(
        magic=magic.decode("ascii"),
        extension=_text(extension),
        time=time_of(day, milliseconds),
        icao=_text(icao),
    )


def radial_status(kind: int, body: bytes) -> int:
    """Return a radial's status: 0, 3 and 5 begin a cut, 2 and 4 end it. Raises ReadError."""
    (status,) = _unpack("B", body, 21 if kind == 31 else 13)
    return int(status)


def decode_radial(kind: int, body: bytes) -> Radial:
    """Decode a radial of message type 31 or 1. Raises ReadError."""
    return _radial_31(body) if kind == 31 else _radial_1(body)


def _radial_31(body: bytes) -> Radial:
    """Decode ICD 2620002, table XVII: the header's 32 bytes, then pointers to data blocks."""
    icao, milliseconds, day, cut, count = _unpack(">4sIH12xB7xH", body, 0)
    position: Position | None = None
    vcp = 0
    gates = first = spacing = 0
    moments: set[str] = set()
    for pointer in _unpack(f">{min(count, MAX_BLOCKS)}I", body, 32):
        block, name = _unpack(">c3s", body, pointer)
        if name == b"VOL":
            # Table XVII-E: latitude, longitude, height of the site, feedhorn above the site, pattern number.
            latitude, longitude, site, feedhorn, vcp = _unpack(">ffhH20xH", body, pointer + 8)
            position = Position(latitude=latitude, longitude=longitude, height_m=site + feedhorn)
        elif block == b"D":
            moments.add(_text(name))
            if name == b"REF":
                # Table XVII-B, after name and reserved word: gates, range to the middle of the first gate, spacing.
                gates, first, spacing = _unpack(">HhH", body, pointer + 8)
    return Radial(
        message_type=31,
        icao=_text(icao),
        time=time_of(day, milliseconds),
        status=radial_status(31, body),
        cut=cut,
        vcp=vcp,
        moments=tuple(moment for moment in MOMENTS if moment in moments),
        position=position,
        gate_spacing_m=_gate(spacing),
        reach_m=round(first + spacing * (gates - 0.5)) if gates and _gate(spacing) else None,
    )


def _radial_1(body: bytes) -> Radial:
    """Decode ICD 2620002, table III: pattern number, pointers to three moments (zero if absent)."""
    milliseconds, day, cut, spacing, *pointers, vcp = _unpack(">IH10xH4xH12x3H2xH", body, 0)
    return Radial(
        message_type=1,
        icao="",
        time=time_of(day, milliseconds),
        status=radial_status(1, body),
        cut=cut,
        vcp=vcp,
        moments=tuple(moment for moment, pointer in zip(MOMENTS, pointers, strict=False) if pointer),
        position=None,
        gate_spacing_m=_gate(spacing if pointers[0] else 0),
    )


def decode_pattern(body: bytes) -> Pattern:
    """Decode ICD 2620002, table XI: 22 bytes of header, then 46 bytes per cut, the angle first."""
    number, cuts = _unpack(">4xHH", body, 0)
    angles = (_unpack(">H", body, 22 + 46 * cut)[0] for cut in range(min(cuts, MAX_CUTS)))
    return Pattern(number=number, elevations=tuple(angle * 360 / 65536 for angle in angles))


def decode_status(body: bytes) -> tuple[str | None, str | None, str | None]:
    """Decode message type 2, the RDA's status (ICD 2620002, table IV: halfwords 1, 2 and 10).

    Return state, operability and build of the software; None for codes that are not in the table.
    """
    rda, operability, build = _unpack(">HH14xH", body, 0)
    # Bit 0 of the operability: calibration is not automatic. Builds are in hundredths: 1900 is build 19.0, and 2210 is
    # 22.1; 0 means that an older radar states no build.
    version = f"{build / 100:.2f}".removesuffix("0") if build else None
    return _RDA_STATUS.get(rda), _OPERABILITY.get(operability & ~1), version


def decode_frequency(body: bytes) -> int | None:
    """Return the frequency in MHz (ICD 2620002, table XV, byte 1092); None outside BAND_MHZ."""
    (frequency,) = _unpack(">i", body, 1092)
    low, high = BAND_MHZ
    return int(frequency) if low <= frequency <= high else None


def _gate(spacing: int) -> int | None:
    return spacing if GATE_M[0] <= spacing <= GATE_M[1] else None


def _unpack(layout: str, data: bytes, offset: int) -> tuple[Any, ...]:
    try:
        return struct.unpack_from(layout, data, offset)
    except struct.error as error:
        raise ReadError(
            MetadataIssue.UNREADABLE_FORMAT, f"a data block lies outside of its message: {error}"
        ) from error


def _text(data: bytes) -> str:
    return data.decode("ascii", errors="replace").strip(" \0")


def time_of(day: int, milliseconds: int) -> datetime:
    """Return the time of a day, 1970-01-01 being day 1, and milliseconds past midnight UTC.

    ICD 2620002, table II, note 1. Raises ReadError(INVALID_TIME_RANGE).
    """
    if not 1 <= day <= 0xFFFF or not 0 <= milliseconds < _DAY_MS:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"day {day}, millisecond {milliseconds} is not a time")
    return _EPOCH + timedelta(days=day - 1, milliseconds=milliseconds)


READ_BYTES = 128 * 1024
"""Bytes of a range request's block; real heads take 1 to 3: a bzip2 block (50 to 270 KB) is only unpacked whole."""
FRAME_BYTES = 2432
"""Bytes of a frame; every message except type 31 fills one frame (ICD 2620010, 7.3.5)."""
MAX_RECORD_BYTES = 1024 * 1024
"""Maximum bytes of an LDM record; in real volumes 120 radials have up to 1.4 MB, and up to 267 KB when compressed."""
MAX_RECORD_UNPACKED = 2 * 1024 * 1024
"""Maximum bytes of an unpacked LDM record; 120 radials have at most 1.42 MB in real volumes."""

_MESSAGE = struct.Struct(">12xHxB10xH")
MESSAGE_BYTES = _MESSAGE.size
"""12 bytes of channel terminal manager, 16 of message header (ICD 2620002, table II)."""


def record_size(word: bytes) -> tuple[int, bool]:
    """Return the size of an LDM record in bytes, and whether it is marked as the last.

    The mark is a negative size (ICD 2620010, 7.3.4). Raises ReadError for a size of 0 or above MAX_RECORD_BYTES.
    """
    size = int.from_bytes(word, "big", signed=True)
    if not 0 < abs(size) <= MAX_RECORD_BYTES:
        raise ReadError(
            MetadataIssue.RESOURCE_LIMIT if size else MetadataIssue.UNREADABLE_FORMAT,
            f"an LDM record claims {abs(size)} bytes; expected 1 to {MAX_RECORD_BYTES}",
        )
    return abs(size), size < 0


def message_at(header: bytes) -> tuple[int, int, int, int]:
    """Return type, segment, size of the body and distance to the next message, in bytes.

    `header` has MESSAGE_BYTES. Raises ReadError for a message that is smaller than its own header.
    """
    halfwords, kind, segment = _MESSAGE.unpack(header)
    if kind == 31:
        if halfwords < 8:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a message of type 31 claims {halfwords} halfwords")
        # The size includes the 16 bytes of the message header, but not the 12 bytes before the header.
        return kind, segment, halfwords * 2 - 16, halfwords * 2 + 12
    return kind, segment, FRAME_BYTES - MESSAGE_BYTES, FRAME_BYTES


def messages(stream: Bytes, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of messages of type 1, 2, 5 and 31, and of type 18's first segment.

    Continues to the end of the stream. The stream bounds the memory: see `Unpacked` and `BlockCache`.
    Raises ReadError when the stream ends within one of these messages.
    """
    while len(header := stream.read(position, MESSAGE_BYTES)) == MESSAGE_BYTES:
        kind, segment, body_bytes, advance = message_at(header)
        if kind in {1, 2, 5, 31} or (kind == 18 and segment == 1):
            body = stream.read(position + MESSAGE_BYTES, body_bytes)
            if len(body) < body_bytes:
                raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the volume ends within a message of type {kind}")
            yield kind, body
        position += advance


def messages_of_record(record: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of an LDM record's messages, from the bytes after its size.

    Raises ReadError.
    """
    stream = Unpacked(iter([record]), bz2.BZ2Decompressor(), step=READ_BYTES, limit=MAX_RECORD_UNPACKED)
    yield from messages(stream, 0)
    if not stream.complete:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "the LDM record ends before its data")
