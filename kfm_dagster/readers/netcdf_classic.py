"""Header of a classic NetCDF file (NetCDF-3): dimensions, attributes, and variables with their values' location.

Belongs here: "The NetCDF Classic Format Specification" (NetCDF Users Guide, appendix B), CDF-1 and CDF-2 (64-bit
offsets). Does not belong here: the meaning of the names (`cf_axes.py`). CDF-5 is refused, and files of unknown length.

All integers are big-endian; names and values of attributes are padded to four bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5 import MAX_MEMBERS, MAX_NUMBERS, MAX_TEXT_BYTES, AttributeValue
from kfm_dagster.readers.hdf5_chunks import StoredValues
from kfm_dagster.readers.hdf5_forms import MAX_RANK
from kfm_dagster.readers.hdf5_messages import Datatype, FileBytes, Layout
from kfm_dagster.readers.ranges import BlockCache

SIGNATURES = {b"CDF\x01": 4, b"CDF\x02": 8}
"""First bytes, and the bytes of an offset."""
MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a header; RTOFS has 1 KB, a model with 100 variables 30 KB."""

_DIMENSION, _VARIABLE, _ATTRIBUTE = 0x0A, 0x0B, 0x0C
_CHAR = 2
_TYPES = {1: ">b", _CHAR: ">c", 3: ">h", 4: ">i", 5: ">f", 6: ">d"}
_STREAMING = 0xFFFF_FFFF


class ClassicVariable(NamedTuple):
    """A variable of a classic file, with the same members as a variable of HDF5."""

    name: str
    dimensions: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    shape: tuple[int, ...]
    data_type: str | None
    storage: StoredValues


class ClassicHeader(NamedTuple):
    """A whole header."""

    attributes: Mapping[str, AttributeValue]
    dimensions: Mapping[str, int]
    variables: tuple[ClassicVariable, ...]


def read_classic(blocks: BlockCache) -> ClassicHeader:
    """Read the header. Raises ReadError(UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT)."""
    header = _Cursor(blocks, at=4)
    records = header.number()
    if records == _STREAMING:
        raise _unreadable("the number of records is not stated")
    lengths = [(header.text(), header.number()) for _ in header.elements(_DIMENSION)]
    attributes = header.attributes()
    declared = [_declared(header, lengths, SIGNATURES[blocks.read(0, 4)]) for _ in header.elements(_VARIABLE)]
    unlimited = [name for name, length in lengths if not length]
    dimensions = {name: length or records for name, length in lengths}
    if len(dimensions) < len(lengths) or len(unlimited) > 1 or len({var.name for var in declared}) < len(declared):
        raise _unreadable("two dimensions or variables have the same name, or two dimensions are unlimited")
    of_records = [variable for variable in declared if variable.dimensions[:1] == tuple(unlimited) != ()]
    # The records of a single variable are not padded.
    pad = 0 if len(of_records) == 1 else 3
    stride = sum(variable.bytes_of(dimensions, of_record=True) + pad & ~pad for variable in of_records)
    strides = dict.fromkeys((variable.name for variable in of_records), stride)
    variables = tuple(variable.stored(blocks, dimensions, strides.get(variable.name, 0)) for variable in declared)
    return ClassicHeader(attributes, dimensions, variables)


@dataclass(frozen=True, slots=True)
class _Declared:
    """A variable as its header declares it."""

    name: str
    dimensions: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    kind: int
    begin: int

    def bytes_of(self, lengths: Mapping[str, int], *, of_record: bool = False) -> int:
        """Return the bytes of all values, or of a record."""
        extents = [lengths[name] for name in self.dimensions]
        return math.prod(extents[1 if of_record else 0 :]) * struct.calcsize(_TYPES[self.kind])

    def stored(self, blocks: BlockCache, lengths: Mapping[str, int], stride: int) -> ClassicVariable:
        """Return the variable with its values' location. Raises ReadError(TRUNCATED_OBJECT) past the end."""
        shape = tuple(lengths[name] for name in self.dimensions)
        size = self.bytes_of(lengths, of_record=bool(stride))
        end = self.begin + size + stride * max(shape[0] - 1 if stride else 0, 0)
        if all(shape) and end > blocks.size:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{self.name} ends at byte {end} of {blocks.size}")
        code = _TYPES[self.kind]
        datatype = Datatype(struct.calcsize(code), None if self.kind == _CHAR else code)
        storage = StoredValues(
            file=FileBytes(blocks), name=self.name, shape=shape, datatype=datatype, layout=Layout(address=self.begin),
            filters=(), fill=None, stride=stride,
        )  # fmt: skip
        return ClassicVariable(self.name, self.dimensions, self.attributes, shape, datatype.name, storage)


def _declared(header: _Cursor, lengths: list[tuple[str, int]], offset_bytes: int) -> _Declared:
    name, rank = header.text(), header.number()
    if rank > MAX_RANK:
        raise _unreadable(f"variable {name[:80]!r} has {rank} dimensions")
    places = [header.number() for _ in range(rank)]
    if any(place >= len(lengths) for place in places) or not all(lengths[place][1] for place in places[1:]):
        raise _unreadable(f"variable {name[:80]!r} has dimensions {places} of {len(lengths)}")
    attributes, kind, _ = header.attributes(), header.number(), header.number()
    if kind not in _TYPES:
        raise _unreadable(f"variable {name[:80]!r} is of type {kind}")
    begin = int.from_bytes(header.take(offset_bytes), "big")
    return _Declared(name, tuple(lengths[place][0] for place in places), attributes, kind, begin)


@dataclass(slots=True)
class _Cursor:
    """A place in the header, which moves past each value that is read."""

    blocks: BlockCache
    at: int

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        if self.at + length > MAX_HEADER_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a NetCDF header of more than {MAX_HEADER_BYTES} bytes")
        if self.at + length > self.blocks.size:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the header goes on past the {self.blocks.size} bytes")
        data = self.blocks.read(self.at, length)
        self.at += length
        return data

    def number(self) -> int:
        """Return the next count."""
        return int.from_bytes(self.take(4), "big")

    def padded(self, length: int) -> bytes:
        """Return the next bytes without their padding to four."""
        return self.take(length + 3 & ~3)[:length]

    def text(self) -> str:
        """Return the next name. Raises ReadError unless it is printable."""
        name = self.padded(self.number()).decode("utf-8", errors="replace")
        if not name or not name.isprintable():
            raise _unreadable(f"the name {name[:80]!r}")
        return name

    def elements(self, tag: int) -> range:
        """Return the places of the elements of the next list."""
        kind, count = self.number(), self.number()
        if kind != tag and (kind or count):
            raise _unreadable(f"a list of {count} elements with the tag {kind:#x}, not {tag:#x}")
        if count > MAX_MEMBERS:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a list of {count} elements, {MAX_MEMBERS} at most")
        return range(count)

    def attributes(self) -> dict[str, AttributeValue]:
        """Return texts, numbers and lists of numbers by name; larger values are left out, as in HDF5."""
        values: dict[str, AttributeValue] = {}
        for _ in self.elements(_ATTRIBUTE):
            name, kind, count = self.text(), self.number(), self.number()
            if kind not in _TYPES or name in values:
                raise _unreadable(f"attribute {name[:80]!r} is of type {kind}, or occurs twice")
            data = self.padded(count * struct.calcsize(_TYPES[kind]))
            if kind == _CHAR and count <= MAX_TEXT_BYTES:
                values[name] = data.rstrip(b"\0").decode("utf-8", errors="replace")
            elif kind != _CHAR and 0 < count <= MAX_NUMBERS:
                numbers = list(struct.unpack(f">{count}{_TYPES[kind][1]}", data))
                values[name] = numbers[0] if count == 1 else numbers
        return dict(sorted(values.items()))


def _unreadable(what: str) -> ReadError:
    return ReadError(MetadataIssue.UNREADABLE_FORMAT, f"NetCDF-3: {what}")
