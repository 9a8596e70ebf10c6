"""The HDF5 global heap: values whose length is not known from their type, such as texts of any length.

Belongs here: section III.E of the HDF5 file format specification 3.0. Does not belong here: what leads there
(`hdf5.py`), the heaps of names and attributes (`hdf5_index.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5_forms import unreadable
from kfm_dagster.readers.hdf5_messages import FileBytes

MAX_OBJECTS = 1 << 14
"""Objects of all collections that are looked at; texts of any length and lists of dimensions are one each."""
MAX_COLLECTION_BYTES = 1 << 18
MAX_OBJECT_BYTES = 1 << 16

_COLLECTION = Struct("<4sB3xQ")
_OBJECT = Struct("<HH4xQ")


class GlobalHeap:
    """Objects of the file's global heap, by the address of their collection and their index in it (III.E)."""

    def __init__(self, file: FileBytes) -> None:
        self._file = file
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}
        self._left = MAX_OBJECTS

    def read(self, address: int, index: int, expected: int) -> bytes:
        """Bytes of an object, padding left out, as many as the reference to it says."""
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
        """Index, start and length of each object of a collection, which is listed once."""
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
            # Index 0 is the free space behind the last object, and counts itself.
            if at + (length + 7 & ~7) - (0 if index else _OBJECT.size) > size:
                raise unreadable(f"an object of {length} bytes goes on past its global heap at address {address:#x}")
            if index == 0:
                return
            self._left -= 1
            if self._left < 0:
                raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: more than {MAX_OBJECTS} objects in global heaps")
            yield index, (address + at, length)
            at += length + 7 & ~7
