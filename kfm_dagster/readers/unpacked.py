"""Compressed streams as bytes, decompressed only as far as they are read, and within a bound.

Belongs here: gzip and bzip2 behind one interface, and what hostile streams may cost. Does not belong here: what the
bytes mean, and how they are requested (`ranges.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError


class Bytes(Protocol):
    """Whatever gives bytes by their place."""

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer only at the end."""
        ...


class Decompressor(Protocol):
    """What `bz2.BZ2Decompressor` offers."""

    @property
    def eof(self) -> bool:
        """Tell whether the end of the stream was reached."""
        ...

    @property
    def needs_input(self) -> bool:
        """Tell whether nothing more comes without more input."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Take all of `data`, return at most `max_length` bytes."""
        ...


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

    def __init__(self, pieces: Iterator[bytes], decompressor: Decompressor, *, step: int, limit: int) -> None:
        self._pieces = pieces
        self._decompressor = decompressor
        self._step = step
        self._limit = limit
        self._start = 0
        self._data = bytearray()
        self._ended = False

    @property
    def complete(self) -> bool:
        """Tell whether the stream's own end was reached: a stream that was cut has none."""
        return self._decompressor.eof

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer only at the end. Raises ReadError past the limit."""
        end = start + length
        while self._start + len(self._data) < end and not self._ended:
            self._forget(start)
            self._grow(max(end - self._start - len(self._data), self._step))
        return bytes(self._data[start - self._start : max(end - self._start, 0)])

    def _forget(self, start: int) -> None:
        gone = min(start - self._start, len(self._data))
        del self._data[:gone]
        self._start += gone

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
