"""Footer of a Parquet file: rows, columns and the ranges of their texts; no page is read.

The footer has at most MAX_FOOTER_BYTES and takes one or two requests. It is not decoded by pyarrow, which ends the
process at some corrupt footers. Sources: Apache Parquet, "File Format" and parquet.thrift; Apache Thrift, "Thrift
compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import BLOCK_BYTES, ByteSource, ReadError

MAX_FOOTER_BYTES = 1024 * 1024
MAX_VALUES = 200_000
"""Maximum values of a footer, which has 60 values for each column of each group of rows."""
MAX_DEPTH = 16
"""Maximum depth of structures: statistics are the sixth level."""
_MAGIC = b"PAR1"
_TRAILER = 8
"""Bytes after the footer: its length and the magic."""

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
"""Types of the compact protocol; maps (11) occur in no footer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """Contents of a footer."""

    rows: int
    columns: Sequence[str]
    """Names in order; empty if there is no group of rows."""
    ranges: Mapping[str, tuple[bytes, bytes]]
    """Least and greatest value, as stored, of the columns whose statistics have both in every group of rows."""


def read_footer(source: ByteSource) -> Footer:
    """Read a footer. Raises ReadError: TRUNCATED_OBJECT, UNREADABLE_FORMAT, RESOURCE_LIMIT."""
    tail = _tail(source, BLOCK_BYTES)
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the object ends with {tail[-4:]!r}, not with a footer")
    length = int.from_bytes(tail[-_TRAILER : -len(_MAGIC)], "little") + _TRAILER
    if length + len(_MAGIC) > source.size:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"a footer of {length} bytes in an object of {source.size}")
    if length > MAX_FOOTER_BYTES:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"the footer has {length} bytes; {MAX_FOOTER_BYTES} at most")
    footer = tail[-length:] if length <= len(tail) else _tail(source, length)
    try:
        # Field numbers. FileMetaData: 3 rows, 4 groups. RowGroup: 1 columns. ColumnChunk: 3 metadata (its 3: the path).
        file = _Compact(footer[:-_TRAILER]).value(_STRUCT, 0)
        chunks = [[chunk[3] for chunk in group[1]] for group in file[4]]
        names = [b".".join(chunk[3]).decode() for chunk in chunks[0]] if chunks else []
        end = max((_end(chunk) for columns in chunks for chunk in columns), default=0)
        ranges = dict(zip(names, map(_range, zip(*chunks, strict=True)), strict=True))
        rows = int(file[3])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        text = f"the footer is corrupt: {type(error).__name__} {str(error)[:100]}"
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, text) from None
    if not all(map(str.isprintable, names)):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"names of columns are not printable: {str(names)[:200]}")
    if end > source.size - length:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "column chunks end within the footer or after it")
    known = {name: values for name, values in ranges.items() if values is not None}
    return Footer(rows=rows, columns=names, ranges=known)


class _Compact:
    """Decoder of the compact protocol; structures are dictionaries by field number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._left = MAX_VALUES

    def value(self, kind: int, depth: int) -> Any:
        """Return the next value. Raises ReadError(RESOURCE_LIMIT), IndexError and ValueError."""
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT, f"a footer of over {MAX_VALUES} values, or {MAX_DEPTH} levels"
            )
        match kind:
            case _ if kind in _INTEGERS:
                number = self._varint()
                return number >> 1 ^ -(number & 1)
            case _ if kind in {_TRUE, _FALSE, _BYTE}:
                return self._take(1)
            case _ if kind == _DOUBLE:
                return self._take(8)
            case _ if kind == _BINARY:
                return self._take(self._varint())
            case _ if kind in {_LIST, _SET}:
                head = self._take(1)[0]
                size = head >> 4 if head >> 4 < 15 else self._varint()
                return [self.value(head & 15, depth + 1) for _ in range(size)]
            case _ if kind == _STRUCT:
                return self._struct(depth)
        raise ValueError(f"type {kind}")

    def _struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._take(1)[0]:
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self.value(_INTEGERS[0], depth)
            # A boolean field has no bytes for its value: its type is the value.
            fields[number] = kind == _TRUE if kind in {_TRUE, _FALSE} else self.value(kind, depth + 1)
        return fields

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("an integer of over ten bytes")

    def _take(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length]
        if len(piece) < length:
            raise IndexError("a value continues past the end")
        self._at += length
        return piece


def _end(chunk: Mapping[int, Any]) -> int:
    """Return the end of a column chunk."""
    # Field numbers of ColumnMetaData: 7 size, 9 first data page, 11 dictionary page.
    first = [at for at in (chunk.get(11), chunk[9]) if at]
    return int(min(first, default=0) + chunk[7])


def _range(chunks: Sequence[Mapping[int, Any]]) -> tuple[bytes, bytes] | None:
    """Return a column's least and greatest value."""
    # Field 12 of ColumnMetaData has these as fields 6 and 5, in files before 2017 as fields 2 and 1.
    statistics = [chunk.get(12, {}) for chunk in chunks]
    least = [each.get(6, each.get(2)) for each in statistics]
    greatest = [each.get(5, each.get(1)) for each in statistics]
    if not all(isinstance(value, bytes) for value in (*least, *greatest)):
        return None
    return min(least), max(greatest)


def _tail(source: ByteSource, length: int) -> bytes:
    start = max(source.size - length, 0)
    tail = source.read(start, source.size - start)
    if len(tail) < source.size - start:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(tail)} bytes at offset {start} of {source.size}")
    return tail
