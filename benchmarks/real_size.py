"""Samples of real size, so that offsets and requests are real: unread parts are holes.

A sample has true headers and hardly any data. Here GRIB2 messages get a data section of real size, a volume gets the
records of its further sweeps, and a NetCDF-4 file gets the space of its chunks; in a sparse file these parts take no
disk. Two parts stay small: the index, because a file has only 3 or 4 messages (HRRR has 173 to 1,200), and the bzip2
blocks of a volume's first and last records. Belongs here: stretching each format. Does not belong here: writing files
(`objects.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

Pieces = Sequence[tuple[int, bytes]]
"""Parts of a file besides holes: (offset, bytes), by offset; the file ends with the last part."""

MIB = 1024 * 1024
HRRR_MIB = {"sfc": 150, "prs": 390, "nat": 700, "subh": 190}
"""Sizes of CONUS objects, rounded (noaa-hrrr-bdp-pds, forecast hours from 1 on)."""
VOLUME_RECORDS = 9
RECORD_BYTES = MIB - 4
"""A volume of VCP 212 in rain has about 9 MB; one record may have 1 MiB."""
ABI_MIB = {
    "RadF": 25,
    "RadC": 4,
    "RadM": 1,
    "CMIPF": 25,
    "CMIPC": 4,
    "CMIPM": 1,
    "MCMIPF": 300,
    "MCMIPC": 50,
    "MCMIPM": 6,
}
"""Sizes of objects of noaa-goes19, rounded over the bands."""
_VOLUME_HEADER = 24
_HDF5_END_OF_FILE = 40
_GRIB_TAIL = struct.pack(">IB", 5, 7) + b"7777"
"""An empty data section (7) and the end section, with which every message of a sample ends."""


def stretch_hrrr(key: str, content: bytes) -> Pieces:
    """Give each message a data section, so that the object has the size of its product."""
    messages = list(_grib_messages(content))
    kind = next(kind for kind in HRRR_MIB if f"wrf{kind}" in key)
    data = HRRR_MIB[kind] * MIB // len(messages)
    pieces, offset = [], 0
    for message in messages:
        length = len(message) + data
        head = message[:8] + struct.pack(">Q", length) + message[16 : -len(_GRIB_TAIL)]
        pieces += [(offset, head + struct.pack(">IB", 5 + data, 7)), (offset + length - 4, b"7777")]
        offset += length
    return pieces


def hrrr_index(sample: str, pieces: Pieces) -> str:
    """Return an index whose lines name the offsets of the stretched messages."""
    starts = [offset for offset, piece in pieces if piece.startswith(b"GRIB")]
    lines = [line.split(":", 2) for line in sample.splitlines()]
    return "".join(f"{number}:{start}:{rest}\n" for start, (number, _, rest) in zip(starts, lines, strict=True))


def stretch_volume(_key: str, content: bytes) -> Pieces:
    """Insert records of true size, whose bytes are holes, after the first record of radials."""
    first = _after_record(content, _after_record(content, _VOLUME_HEADER))
    holes = [(first + number * (RECORD_BYTES + 4), struct.pack(">i", RECORD_BYTES)) for number in range(VOLUME_RECORDS)]
    return [(0, content[:first]), *holes, (first + VOLUME_RECORDS * (RECORD_BYTES + 4), content[first:])]


def stretch_abi(key: str, content: bytes) -> Pieces:
    """Extend a file to its real size, and write this size into its superblock (version 0)."""
    name = key.partition("/")[0].removeprefix("ABI-").partition("-")[2]
    size = len(content) + ABI_MIB[name] * MIB
    end = struct.pack("<Q", size)
    return [(0, content[:_HDF5_END_OF_FILE] + end + content[_HDF5_END_OF_FILE + 8 :]), (size - 1, b"\0")]


STRETCH: dict[str, Callable[[str, bytes], Pieces]] = {
    "hrrr": stretch_hrrr,
    "nexrad-l2": stretch_volume,
    "goes-abi": stretch_abi,
}
"""By dataset: a function from key and content of a sample to the parts of a file of real size."""


def _grib_messages(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        (length,) = struct.unpack(">Q", content[start + 8 : start + 16])
        message = content[start : start + length]
        if not message.endswith(_GRIB_TAIL):
            raise ValueError("a sample's messages have no data")
        yield message
        start += length


def _after_record(content: bytes, start: int) -> int:
    (size,) = struct.unpack(">i", content[start : start + 4])
    return start + 4 + abs(int(size))
