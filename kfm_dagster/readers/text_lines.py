"""Lines of an object of text, plain or gzipped, within bounds of requests, bytes and memory.

Only a complete read of a gzip stream shows whether the stream is whole, so an object of up to `most_bytes` is read to
its end, block by block. Of a larger object only the beginning is read, and of plain text the end, too; `unread` then
states why lines may be unread. Does not belong here: the meaning of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.unpacked import Gunzip, Unpacked, pieces

BEGINNING_BYTES = 256 * 1024
"""Length of the first request for an object."""
READ_BYTES = 1024 * 1024
"""Bytes of each request after the first, and of the end of an object that is not read whole."""
STEP_BYTES = 256 * 1024
"""Bytes of text in memory at a time."""
MAX_POSITIONS = 100
"""Maximum places listed in an Item; a station moves once in several years."""


@dataclass(kw_only=True, slots=True)
class TextLines:
    """An object's lines in blocks; iterate once, then `unread` and `rest` are known."""

    source: ByteSource
    most_bytes: int
    """Maximum size of an object that is read to its end."""
    most_line: int
    """Maximum bytes of a line."""
    most_unpacked: int = 0
    """Maximum unpacked bytes of a gzipped object; 0 for plain text."""
    unread: str = ""
    """Reason why the object may have unread lines; empty when all were read."""
    rest: bytes = b""
    """Text after the last line's end."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield the lines block by block. Raises ReadError."""
        blocks = self._unpacked() if self.most_unpacked else self._plain()
        for block in blocks:
            *lines, self.rest = (self.rest + block).split(b"\n")
            yield lines
            if len(self.rest) > self.most_line:
                raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a line has more than {self.most_line} bytes")

    def _plain(self) -> Iterator[bytes]:
        size = self.source.size
        if size <= self.most_bytes:
            yield from _requests(self.source, size)
            return
        self.unread = f"{size} bytes; the first and last {READ_BYTES} are read"
        yield from _requests(self.source, READ_BYTES)
        tail = b"".join(pieces(self.source, size - READ_BYTES, size, step=READ_BYTES))
        # The beginning ends within a line, and the end begins within one: both cut lines are dropped.
        self.rest, end = b"", tail.find(b"\n")
        yield tail[end + 1 :] if 0 <= end <= self.most_line else tail

    def _unpacked(self) -> Iterator[bytes]:
        gunzip, size = Gunzip(), self.source.size
        requests = _requests(self.source, min(size, self.most_bytes))
        text = Unpacked(requests, gunzip, step=STEP_BYTES, limit=self.most_unpacked)
        place = 0
        while place < self.most_unpacked and (block := text.read(place, STEP_BYTES)):
            place += len(block)
            yield block
        # The last step may have passed the bound and reached the end of the stream.
        if text.complete and not text.read(place, 1):
            if gunzip.unused_data or next(requests, b""):
                raise ReadError(MetadataIssue.UNREADABLE_FORMAT, "bytes follow the gzip stream")
        elif size > self.most_bytes:
            self.unread = f"{size} gzipped bytes; up to {self.most_bytes} are read"
        elif place >= self.most_unpacked:
            self.unread = f"the object unpacks to more than the {self.most_unpacked} bytes that are read"
        else:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the gzip stream continues past the {size} bytes")


def station_places(
    prefix: str, places: Sequence[tuple[float, float]], elevations: Sequence[float], *, whole: bool
) -> dict[str, Any]:
    """Return properties with a station's distinct places, sorted, and its last elevation."""
    distinct = sorted(set(places))
    properties: dict[str, Any] = {f"{prefix}:elevation-m": elevations[-1]} if elevations else {}
    if 0 < len(distinct) <= MAX_POSITIONS:
        listed = [{"latitude": latitude, "longitude": longitude} for latitude, longitude in distinct]
        properties[f"{prefix}:positions"] = listed
    # The total is unknown when only a part was read.
    return properties | ({f"{prefix}:position-count": len(distinct)} if whole else {})


def span(
    first: bytes, last: bytes, *, year: str | None, moment: Callable[[bytes], datetime] | None = None
) -> tuple[datetime, datetime]:
    """Return the times of an object's first and last row; `year` is the year in its key.

    `moment` parses a stamp, by default as `utc`. Raises ReadError if no row has a time, or a time is not of the year.
    """
    if not last:
        text = "no row has all columns and a time, or the statistics lack the times"
        raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, text)
    start, end = map(moment or utc, (first, last))
    # Compares stamps instead of times, because hour 2400 of the last day is a time of the next year.
    if year and not first[:4] == last[:4] == year.encode("ascii"):
        raise ReadError(MetadataIssue.TIME_MISMATCH, f"the rows are from {start} to {end}; the key has {year}")
    return start, end


def is_time(stamp: bytes) -> bool:
    """Return whether digits, YYYYMMDD or YYYYMMDDHHMM, are a time."""
    try:
        utc(stamp)
    except ReadError:
        return False
    return True


def utc(stamp: bytes) -> datetime:
    """Return the time of digits, YYYYMMDD or YYYYMMDDHHMM. Raises ReadError."""
    digits = stamp if len(stamp) in {8, 12} and stamp.isdigit() else b""
    try:
        return datetime.strptime(digits.decode("ascii").ljust(12, "0"), "%Y%m%d%H%M").replace(tzinfo=UTC)
    except ValueError:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"{stamp[:20]!r} is not the time of a row") from None


def cube(first: datetime, last: datetime | None, variables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return variables over the times (datacube extension 2.2.0); an unknown `last` is None."""
    return {
        "cube:dimensions": {"time": {"type": "temporal", "extent": [rfc3339(first), last and rfc3339(last)]}},
        "cube:variables": {
            name: {"dimensions": ["time"], "type": "data", **described} for name, described in variables.items()
        },
    }


def _requests(source: ByteSource, end: int) -> Iterator[bytes]:
    first = pieces(source, 0, min(end, BEGINNING_BYTES), step=BEGINNING_BYTES)
    return chain(first, pieces(source, BEGINNING_BYTES, end, step=READ_BYTES))
