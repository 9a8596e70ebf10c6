"""HDF5 indexes: from a name to the object or attribute of that name.

Belongs here: section III of the HDF5 file format specification 3.0, as far as NetCDF-4 files use it: symbol tables
(B-tree version 1, local heap), and dense storage (B-tree version 2 of name hashes, fractal heap). Does not belong here:
what a header says (`hdf5_messages.py`), values that stand in the global heap (`hdf5_global_heap.py`).

Walks go down a level at each step and are bounded by MAX_ENTRIES, so a tree that bites its tail comes to an end soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5_messages import FileBytes, unreadable

MAX_ENTRIES = 8192
"""Entries and nodes of one index, read in all; the largest of a GOES-R file has about 100."""
MAX_NODE_BYTES = 1 << 16
MAX_MESSAGE_BYTES = 1 << 16
MAX_COLLISIONS = 8
"""Messages that are looked at for one name."""

_U64 = Struct("<Q")
_TREE_1 = Struct("<4sBBHQQ")
_SYMBOL = Struct("<QQI4x16x")
_SYMBOL_NODE = Struct("<4sBxH")
_LOCAL_HEAP = Struct("<4sB3xQQQ")
_TREE_2 = Struct("<4sBBIHHBBQHQ")
_HEAP = Struct("<4sBHHB I QQQQ QQQQ QQQQ H QQ HH QH")
_SOFT_LINK = 2


class _Budget:
    """Entries that one walk may still read."""

    def __init__(self) -> None:
        self._left = MAX_ENTRIES

    def spend(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: an index of more than {MAX_ENTRIES} entries")


def symbol_table(file: FileBytes, tree: int, heap: int) -> dict[bytes, int]:
    """Addresses of a group's objects by name (III.A.1, III.B, III.C, III.D). Soft links are left out."""
    signature, _, length, _, names_at = _LOCAL_HEAP.unpack(file.read(heap, _LOCAL_HEAP.size))
    if signature != b"HEAP" or length > MAX_NODE_BYTES:
        raise unreadable(f"a local heap of {length} bytes")
    names = file.read(names_at, length)
    found: dict[bytes, int] = {}
    budget = _Budget()
    for _, node in tree_1_children(file, tree, kind=0, key_bytes=8):
        signature, _, count = _SYMBOL_NODE.unpack(file.read(node, _SYMBOL_NODE.size))
        if signature != b"SNOD":
            raise unreadable("a symbol table node has no signature")
        budget.spend(count)
        entries = file.read(node + _SYMBOL_NODE.size, count * _SYMBOL.size)
        for at, address, cached in _SYMBOL.iter_unpack(entries):
            if cached != _SOFT_LINK:
                found[names[at : names.index(b"\0", at)]] = address
    return found


def tree_1_children(file: FileBytes, root: int, *, kind: int, key_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Left keys and addresses of what the leaves of a B-tree of version 1 point to, in order (III.A.1)."""
    pending: list[tuple[int, int | None]] = [(root, None)]
    budget = _Budget()
    while pending:
        address, expected = pending.pop()
        signature, found, level, count, _, _ = _TREE_1.unpack(file.read(address, _TREE_1.size))
        if signature != b"TREE" or found != kind or (expected is not None and level != expected):
            raise unreadable(f"no B-tree node at address {address:#x}")
        budget.spend(count + 1)
        width = key_bytes + 8
        body = file.read(address + _TREE_1.size, count * width)
        children = [
            (body[at : at + key_bytes], _U64.unpack_from(body, at + key_bytes)[0])
            for at in range(0, count * width, width)
        ]
        if level == 0:
            yield from children
        else:
            pending.extend((child, level - 1) for _, child in reversed(children))


class DenseStorage:
    """Messages in a fractal heap, found by the hash of their name. Nothing is read before the first name is asked."""

    def __init__(self, file: FileBytes, heap: int, tree: int) -> None:
        self._file = file
        self._heap_at = heap
        self._tree_at = tree
        self._heap: _FractalHeap | None = None
        self._ids: dict[int, list[bytes]] = {}

    def named(self, name: bytes) -> Iterator[bytes]:
        """Give the messages whose name has the hash of `name`: one, unless hashes collide."""
        heap = self._opened()
        for heap_id in self._ids.get(name_hash(name), [])[:MAX_COLLISIONS]:
            yield heap.message(heap_id)

    def each(self) -> Iterator[bytes]:
        """Give every message of the heap, in the order of the hashes; not those that are too large to stand in it."""
        heap = self._opened()
        for heap_ids in self._ids.values():
            yield from (heap.message(heap_id) for heap_id in heap_ids if heap.holds(heap_id))

    def _opened(self) -> _FractalHeap:
        if self._heap is None:
            for hash_, heap_id in _hashes(self._file, self._tree_at):
                self._ids.setdefault(hash_, []).append(heap_id)
            self._heap = _FractalHeap(self._file, self._heap_at)
        return self._heap


def _hashes(file: FileBytes, address: int) -> Iterator[tuple[int, bytes]]:
    """Name hashes and heap ids of a B-tree of version 2 (III.A.2)."""
    header = _TREE_2.unpack(file.read(address, _TREE_2.size))
    signature, _, kind, node_bytes, record_bytes, depth, _, _, root, count, _ = header
    # Type 5 indexes links: hash, heap id (7). Type 8 indexes attributes: heap id (8), flags, creation order, hash.
    if signature != b"BTHD" or (kind, record_bytes) not in {(5, 11), (8, 17)}:
        raise unreadable(f"no index of names at address {address:#x}")
    if not 64 <= node_bytes <= MAX_NODE_BYTES:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: B-tree nodes of {node_bytes} bytes")
    for records in _tree_2_records(file, root, count, depth, node_bytes=node_bytes, record_bytes=record_bytes):
        for at in range(0, len(records), record_bytes):
            record = records[at : at + record_bytes]
            if kind == 5:
                yield int.from_bytes(record[:4], "little"), record[4:]
            else:
                yield int.from_bytes(record[13:], "little"), record[:8]


def _tree_2_records(
    file: FileBytes, root: int, count: int, depth: int, *, node_bytes: int, record_bytes: int
) -> Iterator[bytes]:
    """Give the records of each node, packed."""
    # Sizes of a pointer's fields follow from how many records fit below (III.A.2, "Version 2 B-tree internal node").
    overhead = 10  # Signature, version, type, checksum.
    most = (node_bytes - overhead) // record_bytes
    count_bytes, total, total_bytes = _width(most), most, 0
    pointers = [0]
    for _ in range(min(depth, 8)):
        pointers.append(8 + count_bytes + total_bytes)
        most = (node_bytes - overhead - pointers[-1]) // (record_bytes + pointers[-1])
        total = (most + 1) * total + most
        total_bytes = _width(total)
    if depth >= len(pointers):
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: an index of {depth} levels")
    pending = [(root, count, depth)]
    budget = _Budget()
    while pending:
        address, count, level = pending.pop()
        budget.spend(count + 1)
        pointer = pointers[level]
        used = 6 + count * record_bytes
        node = file.read(address, used + (count + 1) * pointer if level else used)
        if len(node) > node_bytes or node[:4] != (b"BTIN" if level else b"BTLF"):
            raise unreadable(f"no B-tree node at address {address:#x}")
        yield node[6:used]
        if level:
            for at in range(used, len(node), pointer):
                below = int.from_bytes(node[at + 8 : at + 8 + count_bytes], "little")
                pending.append((_U64.unpack_from(node, at)[0], below, level - 1))


def _width(most: int) -> int:
    """Bytes that hold a count up to `most`."""
    return max(1, (max(most, 1).bit_length() + 7) // 8)


class _FractalHeap:
    """Managed objects of a fractal heap whose root is a direct block, or one indirect block of direct ones (III.G)."""

    def __init__(self, file: FileBytes, address: int) -> None:
        self._file = file
        header = _HEAP.unpack(file.read(address, _HEAP.size))
        signature, _, _, filter_bytes, _, max_object = header[:6]
        bits: int
        self._width: int
        self._start: int
        self._max_direct: int
        self._root: int
        self._rows: int
        self._width, self._start, self._max_direct, bits, _, self._root, self._rows = header[18:]
        if signature != b"FRHP" or filter_bytes or not (self._width and self._start and bits):
            raise unreadable(f"no plain fractal heap at address {address:#x}")
        self._offset_bytes = (bits + 7) // 8
        self._length_bytes = min(_width(self._max_direct), _width(max_object))

    def holds(self, heap_id: bytes) -> bool:
        """Tell whether the object of a heap id is a managed one: huge and tiny ones stand elsewhere."""
        return not heap_id[0] & 0xF0

    def message(self, heap_id: bytes) -> bytes:
        """Read the object of a heap id."""
        if not self.holds(heap_id):
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, "HDF5: a message that is stored as a huge or tiny object")
        end = 1 + self._offset_bytes
        offset = int.from_bytes(heap_id[1:end], "little")
        length = int.from_bytes(heap_id[end : end + self._length_bytes], "little")
        if length > MAX_MESSAGE_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: a message of {length} bytes")
        return self._file.read(self._locate(offset), length)

    def _locate(self, offset: int) -> int:
        if not self._rows:
            return self._root + offset
        # Rows 0 and 1 have blocks of the starting size; each further row doubles it.
        turn = offset // (self._start * self._width)
        row = turn.bit_length()
        size = self._start << max(row - 1, 0)
        if row >= self._rows or size > self._max_direct:
            raise unreadable(f"a fractal heap object at offset {offset} of {self._rows} rows")
        before = self._start * self._width * (1 << row - 1) if row else 0
        column, inside = divmod(offset - before, size)
        # Signature, version, heap address and block offset come before the addresses of the blocks.
        entry = 13 + self._offset_bytes + 8 * (row * self._width + column)
        return int.from_bytes(self._file.read(self._root + entry, 8), "little") + inside


@lru_cache(maxsize=1024)
def name_hash(name: bytes) -> int:
    """Hash a name as HDF5 does: `hashlittle` of Bob Jenkins's lookup3 (public domain, 2006), initial value 0."""
    mask = 0xFFFF_FFFF

    def turn(value: int, by: int) -> int:
        return (value << by | value >> 32 - by) & mask

    a = b = c = (0xDEAD_BEEF + len(name)) & mask
    blocks = max(0, (len(name) - 1) // 12)
    for at in range(0, blocks * 12, 12):
        a, b, c = (
            (value + int.from_bytes(name[at + 4 * word : at + 4 * word + 4], "little")) & mask
            for word, value in enumerate((a, b, c))
        )
        a = (a - c & mask) ^ turn(c, 4)
        c = c + b & mask
        b = (b - a & mask) ^ turn(a, 6)
        a = a + c & mask
        c = (c - b & mask) ^ turn(b, 8)
        b = b + a & mask
        a = (a - c & mask) ^ turn(c, 16)
        c = c + b & mask
        b = (b - a & mask) ^ turn(a, 19)
        a = a + c & mask
        c = (c - b & mask) ^ turn(b, 4)
        b = b + a & mask
    if not name:
        return c
    tail = name[blocks * 12 :].ljust(12, b"\0")
    a, b, c = (
        (value + int.from_bytes(tail[4 * word : 4 * word + 4], "little")) & mask for word, value in enumerate((a, b, c))
    )
    c = (c ^ b) - turn(b, 14) & mask
    a = (a ^ c) - turn(c, 11) & mask
    b = (b ^ a) - turn(a, 25) & mask
    c = (c ^ b) - turn(b, 16) & mask
    a = (a ^ c) - turn(c, 4) & mask
    b = (b ^ a) - turn(a, 14) & mask
    return (c ^ b) - turn(b, 24) & mask
