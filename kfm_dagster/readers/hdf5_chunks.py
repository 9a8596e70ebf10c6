"""HDF5 values outside of headers: chunks of variables, and the global heap.

Belongs here: the index of chunks (HDF5 file format specification 3.0, III.A.1, node type 1), filters, the fill value
of unwritten elements, and values of variable length (III.E). Does not belong here: names and attributes (`hdf5.py`),
the use of chunks in a virtual store, the heaps of names and attributes (`hdf5_index.py`).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5_forms import CHECKSUM_BYTES, fletcher32, unreadable
from kfm_dagster.readers.hdf5_index import tree_1_children
from kfm_dagster.readers.hdf5_messages import (
    DEFLATE,
    FLETCHER32,
    SHUFFLE,
    UNDEFINED,
    Datatype,
    FileBytes,
    Layout,
)

MAX_CHUNKS = 16_384
"""Maximum chunks of a variable; a full disk at 0.5 km has 7,569, of 250 pixels on a side."""
MAX_CHUNK_BYTES = 3 << 20
"""Largest chunk that is decompressed here; the ABI's longest axis has 43 KB, an ocean model's longitudes 2 MB."""
MAX_SMALL_BYTES = 1 << 18
"""Default size limit for reading all values of a variable; the ABI's longest axis has 174 KB as 64-bit numbers."""


class StoredChunk(NamedTuple):
    """A chunk in bytes [offset, offset + length); `place` is its number along each dimension."""

    place: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredValues:
    """Storage of a variable's values. `filters` are identifiers in the order of writing."""

    file: FileBytes
    name: str
    shape: tuple[int, ...]
    datatype: Datatype
    layout: Layout
    filters: tuple[int, ...]
    fill: bytes | None
    """Value of unwritten elements; None for zeros."""

    @property
    def chunk(self) -> tuple[int, ...]:
        """Extents of a chunk; the whole shape if the values are not chunked."""
        return self.layout.chunk or self.shape

    @property
    def chunk_count(self) -> int:
        """Number of the variable's chunks, written or not."""
        return math.prod(-(-length // extent) for length, extent in zip(self.shape, self.chunk, strict=True))

    def chunks(self) -> tuple[StoredChunk, ...]:
        """Return the written chunks, in the order of their places; none for values in the header.

        Raises ReadError for chunks off their grid, out of order, past the object's end, or with filters skipped.
        """
        if self.layout.compact is not None or self.layout.address == UNDEFINED or not all(self.shape):
            return ()
        if self.layout.chunk is None:
            length = math.prod(self.shape) * self.datatype.size
            return (StoredChunk((0,) * len(self.shape), self.layout.address, length),)
        if self.chunk_count > MAX_CHUNKS:
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT,
                f"variable {self.name} has {self.chunk_count} chunks, {MAX_CHUNKS} at most",
            )
        return tuple(self._indexed())

    def _indexed(self) -> Iterator[StoredChunk]:
        # A key has the number of stored bytes, the skipped filters, the offset in each dimension, and in the element.
        key = struct.Struct(f"<II{len(self.shape) + 1}Q")
        # Enough for half-full leaves and the nodes above them.
        most = 4 * MAX_CHUNKS
        latest: tuple[int, ...] = ()
        children = tree_1_children(self.file, self.layout.address, kind=1, key_bytes=key.size, most_entries=most)
        for left_key, address, right_key in children:
            stored, skipped, *offsets, inner = key.unpack(left_key)
            _, _, *following, end = key.unpack(right_key)
            place = tuple(offset // extent for offset, extent in zip(offsets, self.chunk, strict=True))
            on_grid = not inner and all(
                offset % extent == 0 and offset < length and after % extent == 0
                for offset, after, extent, length in zip(offsets, following, self.chunk, self.shape, strict=True)
            )
            # The key after the last chunk may repeat that chunk's offsets; the last offset is then the element's size.
            in_order = latest < place and (offsets, inner) < (following, end) and end % self.datatype.size == 0
            if not on_grid or not in_order or skipped:
                raise unreadable(f"variable {self.name} has a chunk at {offsets} after {latest}, skipping {skipped:#x}")
            if not stored or address + stored > self.file.size or (not self.filters and stored != self._chunk_bytes):
                raise unreadable(f"variable {self.name} has a chunk of {stored} bytes at address {address:#x}")
            latest = place
            yield StoredChunk(place, address, stored)

    def element(self, index: int) -> float | None:
        """Return the number at an index of a scalar or one-dimensional variable; None if unwritten.

        Raises ReadError for a text, and for an index out of range.
        """
        size, code = self.datatype.size, self.datatype.struct_code
        if code is None or len(self.shape) > 1 or not 0 <= index < math.prod(self.shape):
            raise unreadable(f"variable {self.name} of shape {self.shape} has no number {index}")
        if self.layout.address == UNDEFINED and self.layout.compact is None:
            return None
        data, at = self.layout.compact, index
        if self.layout.chunk is not None:
            number, at = divmod(index, self.layout.chunk[0])
            stored = next((chunk for chunk in self.chunks() if chunk.place == (number,)), None)
            if stored is None:
                return None
            data = self._unfiltered(stored)
        elif data is None:
            data, at = self.file.read(self.layout.address + index * size, size), 0
        return float(struct.unpack_from(code, data, at * size)[0])

    def values(self, most: int = MAX_SMALL_BYTES) -> bytes:
        """Return all values of a variable of at most `most` bytes, in the file's byte order.

        Raises ReadError(RESOURCE_LIMIT) for a larger variable.
        """
        size = math.prod(self.shape) * self.datatype.size
        if size > most:
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT, f"variable {self.name} of shape {self.shape} is too large to be read"
            )
        if self.layout.compact is not None:
            return self.layout.compact[:size]
        # Elements are copied as bytes without a type, so that texts can be copied, too.
        element = np.dtype((np.void, self.datatype.size))
        values: npt.NDArray[Any] = np.full(
            self.shape, np.frombuffer(self.fill or bytes(self.datatype.size), element)[0], element
        )
        for chunk in self.chunks():
            data = self._unfiltered(chunk)
            if len(data) < self._chunk_bytes:
                raise unreadable(f"a chunk of variable {self.name} does not have its {self._chunk_bytes} bytes")
            block = np.frombuffer(data[: self._chunk_bytes], element).reshape(self.chunk)
            places = zip(chunk.place, self.chunk, strict=True)
            # `...` makes `values[inside]` a view of the array even if the variable is a scalar.
            inside: tuple[Any, ...] = (..., *(slice(place * extent, (place + 1) * extent) for place, extent in places))
            target = values[inside]
            target[...] = block[tuple(map(slice, target.shape))]
        return values.tobytes()

    def _unfiltered(self, chunk: StoredChunk) -> bytes:
        if max(chunk.length, self._chunk_bytes) > MAX_CHUNK_BYTES:
            text = f"variable {self.name} has chunks of {chunk.length} and {self._chunk_bytes} bytes"
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, text)
        data = self.file.read(chunk.offset, chunk.length)
        return unfiltered(data, self.filters, self._chunk_bytes, self.datatype.size, name=self.name)

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self.chunk) * self.datatype.size


def unfiltered(data: bytes, filters: Sequence[int], length: int, size: int, *, name: str) -> bytes:
    """Undo a chunk's filters, last first; elements have `size` bytes, the result has `length`."""
    for identifier in reversed(filters):
        if identifier == FLETCHER32:
            data, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
            if fletcher32(data) != int.from_bytes(checksum, "little"):
                raise unreadable(f"the checksum of a chunk of variable {name} does not match")
        elif identifier == DEFLATE:
            inflate = zlib.decompressobj()
            data = inflate.decompress(data, length + CHECKSUM_BYTES)
            if not inflate.eof:
                raise unreadable(f"a chunk of variable {name} does not inflate to its {length} bytes")
        elif identifier == SHUFFLE:
            count = len(data) // size
            data = b"".join(bytes(data[at::count][:size]) for at in range(count))
        else:
            raise unreadable(f"variable {name} uses filter {identifier}")
    return data


MAX_OBJECTS = 1 << 14
"""Maximum objects read from all collections together; an object is a text, or a list of dimensions."""
MAX_COLLECTION_BYTES = 1 << 18
MAX_OBJECT_BYTES = 1 << 16

_COLLECTION = Struct("<4sB3xQ")
_OBJECT = Struct("<HH4xQ")


class GlobalHeap:
    """Objects of the global heap by their collection's address and their index in it (III.E)."""

    def __init__(self, file: FileBytes) -> None:
        self._file = file
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}
        self._left = MAX_OBJECTS

    def read(self, address: int, index: int, expected: int) -> bytes:
        """Return an object's `expected` bytes, without padding. Raises ReadError for another length."""
        objects = self._collections.get(address)
        if objects is None:
            objects = self._collections[address] = dict(self._objects(address))
        if index not in objects:
            raise unreadable(f"no object {index} in the global heap at address {address:#x}")
        start, length = objects[index]
        if length > MAX_OBJECT_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: an object of {length} bytes in a global heap")
        if length != expected:
            raise unreadable(f"an object of {length} bytes in a global heap, where a value has {expected}")
        return self._file.read(start, length)

    def _objects(self, address: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield index, start and length of each object of a collection."""
        signature, version, size = _COLLECTION.unpack(self._file.read(address, _COLLECTION.size))
        if signature != b"GCOL" or version != 1:
            raise unreadable(f"no global heap at address {address:#x}")
        if size > MAX_COLLECTION_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: a global heap of {size} bytes")
        collection = self._file.read(address, size)
        at = _COLLECTION.size
        while at + _OBJECT.size <= size:
            index, _, length = _OBJECT.unpack_from(collection, at)
            at += _OBJECT.size
            # Index 0 is the free space after the last object; its length includes the 16 bytes of its header.
            if at + (length + 7 & ~7) - (0 if index else _OBJECT.size) > size:
                raise unreadable(f"an object of {length} bytes continues past its global heap at address {address:#x}")
            if index == 0:
                return
            self._left -= 1
            if self._left < 0:
                raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: more than {MAX_OBJECTS} objects in global heaps")
            yield index, (address + at, length)
            at += length + 7 & ~7
