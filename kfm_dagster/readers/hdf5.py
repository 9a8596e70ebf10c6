"""HDF5 headers by range requests: attributes and small variables of a NetCDF-4 object, read through libhdf5, guarded.

Belongs here: what any NetCDF-4 reader needs, and the guards against hostile bytes. Does not belong here: the meaning of
a name. h5py's low-level interface is used because its high-level one costs five times the time per attribute.

libhdf5 runs under one global lock and trusts its input more than we may. So:

- no request is made inside it: a read of bytes that are not here leaves the library, the blocks are fetched without the
  lock, and the headers are read again from the start (`read_hdf5`);
- superblock and end-of-file address are checked first (HDF5 file format specification 3.0, II.A);
- only hard links are followed, and only plain storage is read: no external file, virtual dataset or foreign filter;
- every buffer is sized by us after the size in the file was checked, since the low-level calls do not check it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from h5py import h5a, h5d, h5f, h5fd, h5g, h5l, h5p, h5s, h5t, h5z

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.ranges import BlockCache, HeldFile, NotHeldError

T = TypeVar("T")

MAX_TEXT_BYTES = 4096
"""Longest text attribute that is read; the longest in a GOES-R product that a catalog wants has about 500 bytes."""
MAX_AXIS = 65_536
"""Longest coordinate variable; the ABI's longest is 21,696 (full disk at 0.5 km)."""
MAX_CHUNK_BYTES = 1 << 20
MAX_STORED_BYTES = 1 << 16
"""Largest chunk of a coordinate, and most that all its compressed chunks may take. The second bounds memory: libhdf5
inflates to the end of the stream, whatever the chunk's size, and deflate expands at most 1032 times."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK_BYTES = 96
_PLAIN_FILTERS = frozenset({h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32})
# What h5py makes of an error of libhdf5, and what numpy and UTF-8 decoding say of impossible values.
_HDF5_ERRORS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError, NotImplementedError)


def read_hdf5(source: ByteSource, read: Callable[[Hdf5Group], T], *, cache: BlockCache | None = None) -> T:
    """Call `read` with the root group, again with more blocks each time bytes were missing; return its result.

    `read` must be pure. `cache` may be given to look at it afterwards. Raises ReadError(TRUNCATED_OBJECT,
    UNREADABLE_FORMAT or RESOURCE_LIMIT), and whatever `source` raises.
    """
    blocks = cache or BlockCache(source)
    _check_superblock(blocks)
    while True:
        file = HeldFile(blocks)
        failure: Exception | None = None
        try:
            result = _attempt(file, read)
        except (NotHeldError, ReadError, *_HDF5_ERRORS) as error:
            failure = error
        # Asked before the outcome is believed: libhdf5 may turn a refused read into "no such name".
        if file.wanted is not None:
            blocks.read(*file.wanted)
        elif failure is None:
            return result
        elif isinstance(failure, ReadError):
            raise failure
        else:
            # Text only: a chained traceback would keep the file and its blocks alive for as long as the error is kept.
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"HDF5: {failure}") from None


def _attempt(file: HeldFile, read: Callable[[Hdf5Group], T]) -> T:
    access = h5p.create(h5p.FILE_ACCESS)
    # Weak: identifiers that a traceback still holds stay theirs until they are dropped. A strong close would free the
    # numbers for reuse by another thread while h5py still counts on them.
    access.set_fclose_degree(h5f.CLOSE_WEAK)
    # libhdf5 would read ahead 64 KiB of raw data for one number.
    access.set_sieve_buf_size(512)
    access.set_fileobj_driver(h5fd.fileobj_driver, file)
    opened = h5f.open(b"object", h5f.ACC_RDONLY, access)
    try:
        return read(Hdf5Group(h5g.open(opened, b"/")))
    finally:
        opened.close()


def _check_superblock(blocks: BlockCache) -> None:
    """Refuse what is no HDF5 file, and what is cut before the end that the superblock states."""
    head = blocks.read(0, _SUPERBLOCK_BYTES)
    if not head.startswith(_SIGNATURE):
        code = MetadataIssue.TRUNCATED_OBJECT if _SIGNATURE.startswith(head) else MetadataIssue.UNREADABLE_FORMAT
        raise ReadError(code, f"no HDF5 signature in the first {len(head)} bytes")
    if len(head) < _SUPERBLOCK_BYTES:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(head)} bytes are no whole HDF5 superblock")
    version = head[8]
    # Offsets of: size of offsets, base address, end-of-file address.
    layouts = {0: (13, 24, 40), 1: (13, 28, 44), 2: (9, 12, 28), 3: (9, 12, 28)}
    if version not in layouts:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"HDF5 superblock version {version}, known are 0 to 3")
    offset_size, base, end = layouts[version]
    # The netCDF-4 library writes 8-byte offsets and no user block.
    if head[offset_size] != 8 or any(head[base : base + 8]):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, "HDF5 superblock is not one that netCDF-4 writes")
    stated = int.from_bytes(head[end : end + 8], "little")
    if stated > blocks.size:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{blocks.size} bytes, the superblock states {stated}")


class Hdf5Object:
    """A group or dataset with attributes. Valid only inside `read_hdf5`."""

    def __init__(self, identifier: Any) -> None:
        self._id = identifier

    def _attribute(self, name: str) -> Any | None:
        try:
            return h5a.open(self._id, name.encode())
        except KeyError:
            return None

    def text(self, name: str) -> str | None:
        """Return a fixed-length text attribute without its padding, None when there is none of that name."""
        attribute = self._attribute(name)
        if attribute is None:
            return None
        kind, stored = attribute.get_type(), attribute.get_storage_size()
        if kind.get_class() != h5t.STRING or kind.is_variable_str() or kind.get_size() != stored:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"attribute {name} is no single fixed-length text")
        if stored > MAX_TEXT_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"attribute {name} has {stored} bytes")
        buffer = np.empty((), dtype=f"S{stored}")
        attribute.read(buffer, mtype=kind)
        return buffer.tobytes().rstrip(b"\0 ").decode("utf-8")

    def number(self, name: str) -> float | None:
        """Return a numeric attribute of one element, None when there is none of that name."""
        attribute = self._attribute(name)
        if attribute is None:
            return None
        if attribute.get_space().get_simple_extent_npoints() != 1:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"attribute {name} is no single number")
        buffer = np.empty((), dtype=np.float64)
        attribute.read(buffer, mtype=h5t.NATIVE_DOUBLE)
        return float(buffer)


class Hdf5Group(Hdf5Object):
    """The root group."""

    def dataset(self, name: str) -> Hdf5Dataset | None:
        """Return the variable of that name, None when there is none."""
        encoded = name.encode()
        if not self._id.links.exists(encoded):
            return None
        # An external or soft link could lead to a file of this machine.
        if self._id.links.get_info(encoded).type != h5l.TYPE_HARD:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"variable {name} is a link")
        return Hdf5Dataset(h5d.open(self._id, encoded), name)


class Hdf5Dataset(Hdf5Object):
    """A variable of which only few elements are ever read."""

    def __init__(self, identifier: Any, name: str) -> None:
        super().__init__(identifier)
        self._name = name

    def scalars(self, count: int) -> tuple[float, ...]:
        """All elements of a variable that has exactly `count`. Raises ReadError(UNREADABLE_FORMAT) otherwise."""
        space = self._id.get_space()
        if space.get_simple_extent_npoints() != count:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"variable {self._name} has not {count} elements")
        return self._read(h5s.ALL, h5s.ALL, count)

    def ends(self) -> tuple[int, float, float]:
        """Length of a one-dimensional variable, its first and its last element, as stored."""
        space = self._id.get_space()
        dims = space.get_simple_extent_dims()
        if len(dims) != 1 or dims[0] < 2:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"variable {self._name} is no axis: shape {dims}")
        length = dims[0]
        if length > MAX_AXIS:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"axis {self._name} has {length} points")
        space.select_hyperslab((0,), (2,), (length - 1,))
        first, last = self._read(h5s.create_simple((2,)), space, 2)
        return length, first, last

    def _read(self, memory: Any, selection: Any, count: int) -> tuple[float, ...]:
        # An offset means contiguous storage inside this file; everything else is looked at.
        if self._id.get_offset() is None:
            self._check_storage()
        buffer = np.empty(count, dtype=np.float64)
        self._id.read(memory, selection, buffer, mtype=h5t.NATIVE_DOUBLE)
        return tuple(buffer.tolist())

    def _check_storage(self) -> None:
        creation = self._id.get_create_plist()
        layout = creation.get_layout()
        if layout not in {h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED} or creation.get_external_count():
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"variable {self._name} is stored outside the object")
        if layout != h5d.CHUNKED:
            return
        chunk_bytes = self._id.get_type().get_size()
        for extent in creation.get_chunk():
            chunk_bytes *= extent
        if chunk_bytes > MAX_CHUNK_BYTES or self._id.get_storage_size() > MAX_STORED_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"variable {self._name} has chunks of {chunk_bytes} bytes")
        filters = {creation.get_filter(index)[0] for index in range(creation.get_nfilters())}
        if filters - _PLAIN_FILTERS:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"variable {self._name} uses filters {sorted(filters)}")
