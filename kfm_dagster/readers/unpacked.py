"""Compressed streams as bytes, decompressed only as far as read, and within a bound.

Belongs here: gzip and bzip2 behind one interface, a gzipped object as a ByteSource, and the bounds for hostile streams.
Does not belong here: the meaning of the bytes, and the requests for them (`ranges.py`).
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from typing import TypeAlias

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import BLOCK_BYTES, ByteSource, ReadError
from kfm_dagster.readers.ranges import BytesSource


def pieces(source: Bytes, start: int, end: int, *, step: int, first: int = 0) -> Iterator[bytes]:
    """Yield [start, end) by requests of `step` bytes; the first has `first` bytes, if not 0.

    Raises ReadError(TRUNCATED_OBJECT) when the source returns fewer bytes.
    """
    length = first or step
    while start < end:
        piece = source.read(start, min(length, end - start))
        if len(piece) < min(length, end - start):
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(piece)} bytes at offset {start} of {end}")
        yield piece
        start, length = start + length, step


class Gunzip:
    """Decompress gzip, verifying checksum and length; the interface is `bz2.BZ2Decompressor`'s."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was reached, with a valid checksum."""
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        """Whether further output needs further input."""
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the stream."""
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Take all of `data`, return at most `max_length` bytes."""
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


class Unpacked:
    """A compressed stream as bytes, read forwards: a read discards the bytes before its start.

    A call of the decompressor returns up to `step` bytes, or as many as the read still needs if these are more. Once
    `limit` bytes were decompressed, a read that needs more raises ReadError.
    """

    def __init__(
        self, pieces: Iterator[bytes], decompressor: bz2.BZ2Decompressor | Gunzip, *, step: int, limit: int
    ) -> None:
        self._pieces = pieces
        self._decompressor = decompressor
        self._step = step
        self._limit = limit
        self._start = 0
        self._data = b""
        self._ended = False

    @property
    def complete(self) -> bool:
        """Whether the stream's own end was reached; a stream that was cut has no end."""
        return self._decompressor.eof

    def read(self, start: int, length: int) -> bytes:
        """Return [start, start + length), fewer only at the end. Raises ReadError past the limit."""
        end = start + length
        while (stop := self._start + len(self._data)) < end and not self._ended:
            discarded = min(start - self._start, len(self._data))
            self._data = self._data[discarded:]
            self._start += discarded
            # The bytes before the start are unpacked step by step, so that only a step is in memory.
            self._grow(max(end - max(stop, start), self._step))
        return self._data[start - self._start : max(end - self._start, 0)]

    def _grow(self, most: int) -> None:
        if self._start + len(self._data) >= self._limit:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"more than {self._limit} unpacked bytes would be read")
        piece = next(self._pieces, b"") if self._decompressor.needs_input else b""
        try:
            data = self._decompressor.decompress(piece, most)
        except (OSError, zlib.error) as error:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"the compressed data are corrupt: {error}") from error
        self._data += data
        self._ended = self._decompressor.eof or not (piece or data)


Bytes: TypeAlias = ByteSource | Unpacked
"""A source of bytes by offset."""


def gunzipped(source: ByteSource, *, limit: int) -> BytesSource:
    """Request a whole gzipped object, and return the content of its single stream.

    The stream's end proves that the content is whole, with valid checksum and length (RFC 1952, 2.3.1). Raises
    ReadError: TRUNCATED_OBJECT when the stream continues past the object; UNREADABLE_FORMAT when it is corrupt, or
    bytes follow it; RESOURCE_LIMIT when it has more than `limit` bytes.
    """
    packed, gunzip, size = source.read(0, source.size), Gunzip(), 0
    if len(packed) < source.size:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"only {len(packed)} of {source.size} bytes were returned")
    # The first pass keeps nothing, so a hostile stream takes no memory. With `limit + 1`, a stream of exactly `limit`
    # bytes can be read to its end.
    steps = pieces(BytesSource(packed), 0, len(packed), step=BLOCK_BYTES)
    stream = Unpacked(steps, gunzip, step=BLOCK_BYTES, limit=limit + 1)
    while piece := stream.read(size, BLOCK_BYTES):
        size += len(piece)
    if size > limit:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"more than {limit} bytes are in the gzip stream")
    if not stream.complete:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the gzip stream continues past the {len(packed)} bytes")
    if gunzip.unused_data or next(steps, b""):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, "bytes follow the gzip stream")
    return BytesSource(zlib.decompress(packed, wbits=zlib.MAX_WBITS | 16, bufsize=size or 1))
