"""Compressed streams as bytes, decompressed only as far as they are read, and within a bound.

Belongs here: gzip and bzip2 behind one interface, a gzipped object as a ByteSource, and what hostile streams may cost.
Does not belong here: what the bytes mean, and how they are requested (`ranges.py`).
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from typing import Protocol

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError

STEP_BYTES = 64 * 1024
"""What is taken of a gzipped object at a time, and kept of either end of what is in it."""


class Bytes(Protocol):
    """Whatever gives bytes by their place."""

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer only at the end."""
        ...


def pieces(source: Bytes, start: int, end: int, *, step: int, first: int = 0) -> Iterator[bytes]:
    """Yield [start, end) of a source by requests of `step` bytes, the first one of `first` where that is given.

    Raises ReadError(TRUNCATED_OBJECT) for fewer.
    """
    length = first or step
    while start < end:
        piece = source.read(start, min(length, end - start))
        if len(piece) < min(length, end - start):
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(piece)} bytes at offset {start} of {end}")
        yield piece
        start, length = start + length, step


class Gunzip:
    """`zlib` with the interface of `bz2.BZ2Decompressor`; it checks the checksum and the length of RFC 1952, 2.3.1."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        """Tell whether the end of the stream was reached, and its checksum held."""
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        """Tell whether nothing more comes without more input."""
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        """What was given after the end of the stream."""
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Take all of `data`, return at most `max_length` bytes."""
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


class Unpacked:
    """A compressed stream as bytes, read forwards: a read forgets what lies before its start.

    `step` bytes at least are decompressed at a time, `limit` bytes at most in all.
    """

    def __init__(
        self, pieces: Iterator[bytes], decompressor: bz2.BZ2Decompressor | Gunzip, *, step: int, limit: int
    ) -> None:
        self._pieces = pieces
        self._decompressor = decompressor
        self._step = step
        self._limit = limit
        self._start = 0
        self._data = bytearray()
        self._ended = False

    @property
    def start(self) -> int:
        """Where the bytes begin that are not forgotten."""
        return self._start

    @property
    def complete(self) -> bool:
        """Tell whether the stream's own end was reached: a stream that was cut has none."""
        return self._decompressor.eof

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer only at the end. Raises ReadError past the limit."""
        end = start + length
        while (reached := self._start + len(self._data)) < end and not self._ended:
            gone = min(start - self._start, len(self._data))
            del self._data[:gone]
            self._start += gone
            # What is passed over on the way to the start is not unpacked at once.
            self._grow(max(end - max(reached, start), self._step))
        return bytes(self._data[start - self._start : max(end - self._start, 0)])

    def _grow(self, wanted: int) -> None:
        if self._start + len(self._data) >= self._limit:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"more than {self._limit} unpacked bytes would be read")
        piece = next(self._pieces, b"") if self._decompressor.needs_input else b""
        try:
            data = self._decompressor.decompress(piece, wanted)
        except (OSError, zlib.error) as error:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"the compressed data are corrupt: {error}") from error
        self._data += data
        self._ended = self._decompressor.eof or not (piece or data)


class Gunzipped:
    """What is in a gzipped object of one stream, as a ByteSource. Of what is in it, memory holds only both ends.

    It is unpacked to its end when it is opened, so that whoever reads it knows that it is whole, and that checksum and
    length hold (RFC 1952, 2.3.1). Reads within STEP_BYTES of an end cost nothing more; any other goes on from where the
    last one stood, or begins again.
    """

    def __init__(self, packed: bytes, *, limit: int) -> None:
        """Raise ReadError where it is not whole.

        TRUNCATED_OBJECT when the stream goes on past the object; UNREADABLE_FORMAT when it is corrupt, or something
        follows it; RESOURCE_LIMIT when more than `limit` bytes are in it.
        """
        self._packed = packed
        self._limit = limit
        self._head, self._tail, self._size = self._survey()
        self._stream = self._unpacked(Gunzip(), _in_steps(packed))

    @classmethod
    def open(cls, source: ByteSource, *, limit: int) -> Gunzipped:
        """Request the whole object in one read. Raises ReadError."""
        packed = source.read(0, source.size)
        if len(packed) < source.size:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(packed)} bytes of {source.size} came")
        return cls(packed, limit=limit)

    @property
    def size(self) -> int:
        """Size of what is in it, in bytes."""
        return self._size

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), cut at the end."""
        stop = min(start + length, self._size)
        if start >= stop:
            return b""
        if stop <= len(self._head):
            return self._head[start:stop]
        tail = self._size - len(self._tail)
        if start >= tail:
            return self._tail[start - tail : stop - tail]
        if start < self._stream.start:
            self._stream = self._unpacked(Gunzip(), _in_steps(self._packed))
        return self._stream.read(start, stop - start)

    def _unpacked(self, decompressor: Gunzip, pieces: Iterator[bytes]) -> Unpacked:
        # One more, because a stream of just so many is asked once more whether it has ended.
        return Unpacked(pieces, decompressor, step=STEP_BYTES, limit=self._limit + 1)

    def _survey(self) -> tuple[bytes, bytes, int]:
        """Unpack everything, and return both ends and the size."""
        pieces, decompressor = _in_steps(self._packed), Gunzip()
        stream = self._unpacked(decompressor, pieces)
        head = tail = stream.read(0, STEP_BYTES)
        size = len(head)
        while piece := stream.read(size, STEP_BYTES):
            size += len(piece)
            tail = (tail + piece)[-STEP_BYTES:]
        if size > self._limit:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"more than {self._limit} bytes are in the gzip stream")
        if not stream.complete:
            known = len(self._packed)
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the gzip stream goes on past the object's {known} bytes")
        if decompressor.unused_data or next(pieces, b""):
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, "something follows the gzip stream")
        return head, tail, size


def _in_steps(packed: bytes) -> Iterator[bytes]:
    return (packed[at : at + STEP_BYTES] for at in range(0, len(packed), STEP_BYTES))
