"""NEXRAD Level II volumes as bytes: from the volume header to the first radial, and from there to the end.

Belongs here: where records lie in an object (ICD 2620010, Archive II/User: volume header, LDM records, messages), gzip
around it, and the bounds on what hostile bytes may cost. Does not belong here: what the fields of a record mean
(`nexrad_messages.py`), what the end of a volume says (`nexrad_end.py`), and whether a volume agrees with its key
(`nexrad_level2.py`).
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from dataclasses import dataclass

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.nexrad_end import VolumeEnd, end_of_frames, end_of_gzip, end_of_records
from kfm_dagster.readers.nexrad_messages import (
    HEADER_BYTES,
    Pattern,
    RadarStatus,
    Radial,
    VolumeHeader,
    decode_frequency,
    decode_header,
    decode_pattern,
    decode_radial,
    decode_status,
)
from kfm_dagster.readers.nexrad_records import FRAME_BYTES, READ_BYTES, messages, record_size
from kfm_dagster.readers.ranges import BlockCache
from kfm_dagster.readers.unpacked import Bytes, Gunzip, Unpacked

MAX_READS = 16
METADATA_BYTES = 134 * FRAME_BYTES
"""The first LDM record: messages 15, 13, 18, 3, 5 and 2 (ICD 2620010, 7.3.5); fewer frames before 2008."""
RADIAL_BYTES = 16 * 1024
"""A type 31 radial takes 7 to 10 KB in real volumes; a bzip2 block gives more only for more time."""
MAX_HEAD_BYTES = 2 * METADATA_BYTES
MAX_RECORDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """What a volume's head and its end say. `compression` is that of the object as stored."""

    header: VolumeHeader
    compression: str
    radial: Radial
    """The first one."""
    end: VolumeEnd
    pattern: Pattern | None
    status: RadarStatus | None
    frequency_mhz: int | None
    """Of the transmitter, from the adaptation data (message 18)."""


def read_volume(source: ByteSource) -> Volume:
    """Read a volume's head and end. Raises ReadError(UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT, ...)."""
    stored = BlockCache(source, block_bytes=READ_BYTES, max_blocks=MAX_READS)
    gzipped = stored.read(0, 2) == b"\x1f\x8b"
    plain: Bytes = stored
    if gzipped:
        plain = Unpacked(_pieces(stored, 0, source.size), Gunzip(), step=READ_BYTES, limit=MAX_HEAD_BYTES)
    opening = plain.read(0, HEADER_BYTES + 7)
    header = decode_header(opening[:HEADER_BYTES])
    bzipped = opening[HEADER_BYTES + 4 :] == b"BZh"
    size = None if gzipped else source.size
    radial, bodies = _head(_record_messages(plain, size) if bzipped else messages(plain, HEADER_BYTES))
    if gzipped:
        end = end_of_gzip(source, stored, radial, bzipped=bzipped)
    else:
        end = (end_of_records if bzipped else end_of_frames)(stored, radial)
    return Volume(
        header=header,
        compression="gzip" if gzipped else "bzip2" if bzipped else "none",
        radial=radial,
        end=end,
        pattern=decode_pattern(bodies[5]) if 5 in bodies else None,
        status=decode_status(bodies[2]) if 2 in bodies else None,
        frequency_mhz=decode_frequency(bodies[18]) if 18 in bodies else None,
    )


def _head(found: Iterator[tuple[int, bytes]]) -> tuple[Radial, dict[int, bytes]]:
    """Return the first radial, and the bodies of the messages before it by type, of each the last."""
    bodies: dict[int, bytes] = {}
    for kind, body in found:
        if kind in {1, 31}:
            return decode_radial(kind, body), bodies
        bodies[kind] = body
    raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "the volume ends before its first radial")


def _pieces(source: Bytes, start: int, end: int) -> Iterator[bytes]:
    """Yield [start, end) piece by piece, each within one block of the cache, so that only what is used is requested."""
    while start < end:
        length = min(end - start, READ_BYTES - start % READ_BYTES)
        piece = source.read(start, length)
        if len(piece) < length:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the object ends {end - start - len(piece)} bytes early")
        yield piece
        start += length


def _record_messages(volume: Bytes, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Messages of the first LDM records (ICD 2620010, 7.3.4).

    `end` is the volume's size in bytes where that is known: a record past it means an object cut short, even where
    the first radial is still within it.
    """
    offset = HEADER_BYTES
    for index in range(MAX_RECORDS):
        word = volume.read(offset, 4)
        if len(word) < 4:
            return
        size, last = record_size(word)
        start, offset = offset + 4, offset + 4 + size
        if end is not None and offset > end:
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT, f"LDM record {index} ends {offset - end} bytes past the end"
            )
        step = RADIAL_BYTES if index else METADATA_BYTES
        pieces = _pieces(volume, start, offset)
        yield from messages(Unpacked(pieces, bz2.BZ2Decompressor(), step=step, limit=MAX_HEAD_BYTES), 0)
        if last:
            raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, "the volume has no radial")
    raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"no radial in the first {MAX_RECORDS} LDM records")
