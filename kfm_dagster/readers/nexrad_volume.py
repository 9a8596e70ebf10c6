"""NEXRAD Level II volumes as bytes: from the volume header to the first radial, and no further.

Belongs here: where records lie in an object (ICD 2620010, Archive II/User: volume header, LDM records, messages), gzip
around it, and the bounds on what hostile bytes may cost. Does not belong here: what the fields of a record mean
(`nexrad_messages.py`), and whether a volume agrees with its key (`nexrad_level2.py`).
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.nexrad_messages import (
    HEADER_BYTES,
    Pattern,
    Radial,
    Status,
    VolumeHeader,
    decode_frequency,
    decode_header,
    decode_pattern,
    decode_radial_1,
    decode_radial_31,
    decode_status,
)
from kfm_dagster.readers.ranges import BlockCache

READ_BYTES = 128 * 1024
"""One range request; real volumes take one to three, because a bzip2 block must be whole (50 to 270 KB)."""
MAX_READS = 16
FRAME_BYTES = 2432
"""Every message but type 31 fills one frame (ICD 2620010, 7.3.5)."""
METADATA_BYTES = 134 * FRAME_BYTES
"""The first LDM record: messages 15, 13, 18, 3, 5 and 2 (ICD 2620010, 7.3.5); fewer frames before 2008."""
RADIAL_BYTES = 16 * 1024
"""A type 31 radial takes 7 to 10 KB in real volumes; a bzip2 block gives more only for more time."""
MAX_UNPACKED_BYTES = 2 * METADATA_BYTES
MAX_RECORD_BYTES = 1024 * 1024
"""An LDM record of 120 radials is at most 1.2 MB before compression and 267 KB after it in real volumes."""
MAX_RECORDS = 4

_MESSAGE = struct.Struct(">12xHxB10xH")


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """What the head of a volume says. `compression` is that of the object as stored."""

    header: VolumeHeader
    compression: str
    radial: Radial
    pattern: Pattern | None
    status: Status | None
    frequency_mhz: int | None
    """Of the transmitter, from the adaptation data (message 18)."""


class _Bytes(Protocol):
    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer only at the end."""
        ...


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """`zlib` with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


class _Unpacked:
    """A compressed stream as bytes, decompressed from its start as far as somebody reads, `step` bytes at a time."""

    def __init__(self, chunks: Iterator[bytes], decompressor: _Decompressor, *, step: int) -> None:
        self._chunks = chunks
        self._decompressor = decompressor
        self._step = step
        self._data = bytearray()
        self._ended = False

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer only at the end. Raises ReadError past MAX_UNPACKED_BYTES."""
        end = start + length
        if end > MAX_UNPACKED_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"no radial in the first {MAX_UNPACKED_BYTES} unpacked bytes")
        while len(self._data) < end and not self._ended:
            self._grow(max(end - len(self._data), self._step))
        return bytes(self._data[start:end])

    def _grow(self, wanted: int) -> None:
        chunk = next(self._chunks, b"") if self._decompressor.needs_input else b""
        try:
            data = self._decompressor.decompress(chunk, wanted)
        except (OSError, zlib.error) as error:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"the compressed data are corrupt: {error}") from error
        self._data += data
        self._ended = self._decompressor.eof or not (chunk or data)


def read_volume(source: ByteSource) -> Volume:
    """Read a volume's head. Raises ReadError(UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT, ...)."""
    stored = BlockCache(source, block_bytes=READ_BYTES, max_blocks=MAX_READS)
    gzipped = stored.read(0, 2) == b"\x1f\x8b"
    plain: _Bytes = _Unpacked(_chunks(stored, 0, source.size), _Gunzip(), step=READ_BYTES) if gzipped else stored
    header = decode_header(plain.read(0, HEADER_BYTES))
    bzipped = plain.read(HEADER_BYTES + 4, 3) == b"BZh"
    pattern: Pattern | None = None
    status: Status | None = None
    frequency: int | None = None
    end = None if gzipped else source.size
    for kind, body in _record_messages(plain, end) if bzipped else _messages(plain, HEADER_BYTES):
        if kind == 2:
            status = decode_status(body)
        elif kind == 5:
            pattern = decode_pattern(body)
        elif kind == 18:
            frequency = decode_frequency(body)
        elif kind in {1, 31}:
            return Volume(
                header=header,
                compression="gzip" if gzipped else "bzip2" if bzipped else "none",
                radial=decode_radial_31(body) if kind == 31 else decode_radial_1(body),
                pattern=pattern,
                status=status,
                frequency_mhz=frequency,
            )
    raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "the volume ends before its first radial")


def _chunks(source: _Bytes, start: int, end: int) -> Iterator[bytes]:
    """Yield [start, end) piece by piece, each within one block of the cache, so that only what is used is requested."""
    while start < end:
        length = min(end - start, READ_BYTES - start % READ_BYTES)
        piece = source.read(start, length)
        if len(piece) < length:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the object ends {end - start - len(piece)} bytes early")
        yield piece
        start += length


def _record_messages(volume: _Bytes, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Messages of the LDM records (ICD 2620010, 7.3.4): a signed size, negative for the last one, then bzip2.

    `end` is the volume's size in bytes where that is known: a record past it means an object cut short, even where
    the first radial is still within it.
    """
    offset = HEADER_BYTES
    for index in range(MAX_RECORDS):
        word = volume.read(offset, 4)
        if len(word) < 4:
            return
        size = int.from_bytes(word, "big", signed=True)
        if not 0 < abs(size) <= MAX_RECORD_BYTES:
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT if size else MetadataIssue.UNREADABLE_FORMAT,
                f"LDM record {index} claims {abs(size)} bytes; expected 1 to {MAX_RECORD_BYTES}",
            )
        start, offset = offset + 4, offset + 4 + abs(size)
        if end is not None and offset > end:
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT, f"LDM record {index} ends {offset - end} bytes past the end"
            )
        step = RADIAL_BYTES if index else METADATA_BYTES
        yield from _messages(_Unpacked(_chunks(volume, start, offset), bz2.BZ2Decompressor(), step=step), 0)
        if size < 0:
            raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, "the volume has no radial")
    raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"no radial in the first {MAX_RECORDS} LDM records")


def _messages(stream: _Bytes, position: int) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message that matters: 12 bytes of channel terminal manager, 16 of message header, body.

    The header is that of table II. Of message 18 only the first segment matters.
    Goes on to the end of the stream, which the stream itself keeps near: see MAX_UNPACKED_BYTES and MAX_READS.
    """
    while len(header := stream.read(position, _MESSAGE.size)) == _MESSAGE.size:
        halfwords, kind, segment = _MESSAGE.unpack(header)
        body_bytes, advance = FRAME_BYTES - _MESSAGE.size, FRAME_BYTES
        if kind == 31:
            # The size counts the message header's 16 bytes and not the 12 before it.
            body_bytes, advance = halfwords * 2 - 16, halfwords * 2 + 12
        if kind in {1, 2, 5, 31} or (kind == 18 and segment == 1):
            body = stream.read(position + _MESSAGE.size, body_bytes)
            if len(body) < body_bytes:
                raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the volume ends within a message of type {kind}")
            yield kind, body
        position += advance
