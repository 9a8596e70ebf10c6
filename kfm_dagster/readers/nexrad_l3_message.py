"""The message of a NEXRAD Level III object: header, description, blocks, completeness.

ICD 2620001 (RPG to Class 1 User): message header (figure 3-3), product description block and the symbology, graphic and
tabular blocks that it points at (figure 3-6), bzip2 after the description (figure 3-6, note 3, and appendix D), general
status message (figure 3-17). A message and its blocks state their lengths, and a compressed message states its unpacked
size. A length past the bytes, or a wrong unpacked size, is refused. Surplus bytes, and an offset at which no block
begins, are stated in `Message.unchecked`. The header's count of blocks is not checked, because a real storm total
product does not count its tabular block.

Belongs here: the fields as values, and the table of products; `nexrad_l3_products.csv` states its sources in its first
lines. Does not belong here: the frame of the message (`nexrad_l3_bulletin.py`) and the Item (`nexrad_level3.py`).
"""

from __future__ import annotations

import bz2
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError, table
from kfm_dagster.readers.nexrad_messages import time_of
from kfm_dagster.readers.unpacked import Unpacked

GENERAL_STATUS = 2
FREE_TEXT = 75
TDWR = range(180, 188)
"""Codes of products that only terminal Doppler weather radars have (ICD 2620063, table III)."""
CLASSIFICATIONS = (165, 177)
"""Codes of the products whose values are classes of hydrometeors."""
HYDROMETEORS: Mapping[int, str] = {
    0: "below-threshold",
    10: "biological",
    20: "ground-clutter",
    30: "ice-crystals",
    40: "dry-snow",
    50: "wet-snow",
    60: "rain",
    70: "heavy-rain",
    80: "big-drops",
    90: "graupel",
    100: "hail",
    110: "large-hail",
    120: "giant-hail",
    140: "unknown",
    150: "range-folded",
}
"""Classes by stored value (ICD 2620001, table III, notes on codes 165 and 177)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductKind:
    """Common values of all objects of a product.

    mnemonic: empty if the ICDs have none. range_m: metres from the radar; None for a profile above the radar, a text,
    or the radar's status. unit: unit of the values, empty without values. begin, end: numbers (1 to 10) of the two
    product-dependent parameters with the date and minute when an accumulation begins or ends. minutes: the
    accumulation's length if no begin is stated. length: number of the parameter that states the length.
    """

    code: int
    mnemonic: str
    name: str
    range_m: int | None
    unit: str
    begin: tuple[int, int] | None
    end: tuple[int, int] | None
    minutes: int | None
    length: int | None


@cache
def product_kinds() -> Mapping[int, ProductKind]:
    """Return all products by code."""
    return {
        int(row["code"]): ProductKind(
            code=int(row["code"]),
            mnemonic=row["mnemonic"],
            name=row["name"],
            range_m=int(row["range_km"]) * 1000 if row["range_km"] else None,
            unit=row["unit"],
            begin=_places(row["begin"]),
            end=_places(row["end"]),
            minutes=int(row["minutes"]) if (row["minutes"] or "").isdecimal() else None,
            length=int(row["minutes"][1:]) if (row["minutes"] or "").startswith("=") else None,
        )
        for row in table("nexrad_l3_products.csv")
    }


def _places(text: str) -> tuple[int, int] | None:
    date, _, minute = text.partition(":")
    return (int(date), int(minute or int(date) + 1)) if date else None


MAX_UNPACKED_BYTES = 8 * 1024 * 1024
"""Maximum unpacked bytes. Super-resolution products may have 1.3 MB (720 radials of 1,840 bytes, figure 3-11c); real
objects have 0.5 MB."""
BLOCKS = ("symbology", "graphic", "tabular")
"""Blocks in the order of their numbers and their offsets (figure 3-6)."""

_HEADER = struct.Struct(">hHiihhh")
_DESCRIPTION = struct.Struct(">hiihhhhhhHiHihhhh32x7h2x3I")
_STATUS = struct.Struct(">hhhhh")
_BLOCK = struct.Struct(">hhI")
_HEADER_BYTES = _HEADER.size
_DESCRIPTION_END = _HEADER_BYTES + _DESCRIPTION.size
_DIVIDER = -1
_BZIP2 = 1
"""Number of the compression method bzip2 (figure 3-6, note 3)."""
_WITHOUT_BLOCKS = frozenset({62, 73, 74, 75, 77, 82, *range(100, 112)})
"""Codes of texts, whose offsets point at pages or lines without a block's header (figure 3-16)."""
_DAY_MINUTES = 1_440


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """The product description: thousandths of a degree, feet above mean sea level, UTC.

    parameters: the ten product-dependent halfwords, signed. elevation_number: 0 for a product of the whole volume.
    """

    latitude: int
    longitude: int
    height_ft: int
    product_code: int
    volume_number: int
    volume_time: datetime
    generation_time: datetime
    elevation_number: int
    parameters: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message. `time` is from its header; None without a time, as in archives of the 1990s.

    unchecked: why the message may not be whole although its length is right; None if everything fits.
    """

    code: int
    length: int
    time: datetime | None
    radar_id: int
    mode: int
    vcp: int
    unchecked: str | None
    description: Description | None = None
    is_bzip2: bool = False
    blocks: tuple[str, ...] = ()


def decode_message(data: bytes) -> Message:
    """Decode a message and compare its lengths.

    Raises ReadError: TRUNCATED_OBJECT, UNREADABLE_FORMAT, RESOURCE_LIMIT, INVALID_TIME_RANGE.
    """
    if len(data) < _HEADER_BYTES:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(data)} bytes are less than a message header")
    code, day, seconds, length, radar_id, _, _ = _HEADER.unpack_from(data)
    if length < _HEADER_BYTES:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a message of {length} bytes is shorter than its header")
    if length > len(data):
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the message has {length} bytes, the object only {len(data)}")
    surplus = f"{len(data) - length} bytes follow the message" if length < len(data) else None
    decode = _status if code == GENERAL_STATUS else _product
    return decode(data[:length], code, time_of(day, 1000 * seconds) if day else None, radar_id, surplus)


def accumulation(description: Description) -> tuple[datetime | None, datetime | None]:
    """Return begin and end of a product's accumulation, each None if it is not known.

    If only the end is stated, the begin follows from the product's fixed length, or from the stated length (code 173).
    """
    if (kind := product_kinds().get(description.product_code)) is None:
        return None, None
    begin, end = (_date_and_minute(description, places) for places in (kind.begin, kind.end))
    minutes = description.parameters[kind.length - 1] if kind.length else kind.minutes or 0
    if begin is None and end is not None and minutes > 0:
        begin = end - timedelta(minutes=minutes)
    return begin, end


def _date_and_minute(description: Description, places: tuple[int, int] | None) -> datetime | None:
    if places is None:
        return None
    day, minutes = (description.parameters[place - 1] for place in places)
    if day < 1 or not 0 <= minutes <= _DAY_MINUTES:
        return None
    return time_of(day, 0) + timedelta(minutes=minutes)


def _status(data: bytes, code: int, time: datetime | None, radar_id: int, surplus: str | None) -> Message:
    """Decode figure 3-17. Its length field counts the bytes after it: 82, or 178 since build 14."""
    if len(data) < _HEADER_BYTES + _STATUS.size:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(data)} bytes are less than a general status message")
    divider, length, mode, _, vcp = _STATUS.unpack_from(data, _HEADER_BYTES)
    if divider != _DIVIDER or _HEADER_BYTES + 4 + length != len(data):
        raise ReadError(
            MetadataIssue.UNREADABLE_FORMAT,
            f"the status block has divider {divider} and {length} bytes in a message of {len(data)}",
        )
    return Message(
        code=code,
        length=len(data),
        time=time,
        radar_id=radar_id,
        mode=mode,
        vcp=vcp,
        unchecked=surplus,
    )


def _product(data: bytes, code: int, time: datetime | None, radar_id: int, surplus: str | None) -> Message:
    if len(data) < _DESCRIPTION_END:
        raise ReadError(
            MetadataIssue.UNREADABLE_FORMAT, f"message {code} of {len(data)} bytes has no product description"
        )
    divider, latitude, longitude, height, product, mode, vcp, _, volume, *rest = _DESCRIPTION.unpack_from(
        data, _HEADER_BYTES
    )
    if divider != _DIVIDER:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"the product description begins with {divider}, expected -1")
    if product != code:
        raise ReadError(
            MetadataIssue.UNREADABLE_FORMAT, f"the header has product {code}, the product description has {product}"
        )
    volume_day, volume_seconds, product_day, product_seconds, first, second, elevation, third, *later = rest
    parameters, offsets = (first, second, third, *later[:7]), later[7:]
    is_bzip2 = data.startswith(b"BZh", _DESCRIPTION_END)
    plain = data[:_DESCRIPTION_END] + _unpacked(data, parameters) if is_bzip2 else data
    blocks, open_end = ((), None) if product in _WITHOUT_BLOCKS else _blocks(plain, offsets)
    return Message(
        code=code,
        length=len(data),
        time=time,
        radar_id=radar_id,
        mode=mode,
        vcp=vcp,
        description=Description(
            latitude=latitude,
            longitude=longitude,
            height_ft=height,
            product_code=product,
            volume_number=volume,
            volume_time=time_of(volume_day, 1000 * volume_seconds),
            generation_time=time_of(product_day, 1000 * product_seconds),
            elevation_number=elevation,
            parameters=parameters,
        ),
        is_bzip2=is_bzip2,
        blocks=blocks,
        unchecked=surplus or open_end,
    )


def _unpacked(data: bytes, parameters: Sequence[int]) -> bytes:
    """Unpack the data after the description: parameter 8 is the method, 9 and 10 are the size."""
    method, high, low = parameters[7:]
    size = (high & 0xFFFF) << 16 | (low & 0xFFFF)
    if method != _BZIP2:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"bzip2 data under compression method {method}")
    if size > MAX_UNPACKED_BYTES:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"{size} bytes unpacked; {MAX_UNPACKED_BYTES} at most are read")
    decompressor = bz2.BZ2Decompressor()
    # Reads up to one byte more than stated, to detect data that are too long.
    stream = Unpacked(iter([data[_DESCRIPTION_END:]]), decompressor, step=size + 1, limit=size + 1)
    plain = stream.read(0, size + 1)
    if len(plain) < size and not stream.complete:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the bzip2 data end after {len(plain)} of {size} bytes")
    if len(plain) != size or not stream.complete or decompressor.unused_data:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"the bzip2 data are not the {size} bytes that they claim")
    return plain


def _blocks(message: bytes, offsets: Sequence[int]) -> tuple[tuple[str, ...], str | None]:
    """Return the blocks' names and any fault; offsets are halfwords from the message's start."""
    names: list[str] = []
    end = _DESCRIPTION_END
    for number, (name, offset) in enumerate(zip(BLOCKS, offsets, strict=True), 1):
        if not offset:
            continue
        start = 2 * offset
        if start + _BLOCK.size > len(message):
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the {name} block lies past the message's end")
        divider, identity, length = _BLOCK.unpack_from(message, start)
        if (divider, identity) != (_DIVIDER, number):
            return tuple(names), f"no {name} block begins at byte {start}, the offset in the description"
        if start + length > len(message):
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT,
                f"the {name} block ends {start + length - len(message)} bytes past the message",
            )
        names.append(name)
        end = max(end, start + length)
    return tuple(names), f"{len(message) - end} bytes belong to no block" if end < len(message) else None
