"""HDF5 indexes: from a name to the object or attribute of that name.

Belongs here: section III of the HDF5 file format specification 3.0, as far as NetCDF-4 files use it: symbol tables
(B-tree version 1, local heap), and dense storage (B-tree version 2 of name hashes, fractal heap). Does not belong here:
messages of headers (`hdf5_messages.py`), values in the global heap (`hdf5_chunks.py`).

Walks descend a level at each step and read a bounded number of entries, so the walk of a cyclic tree ends soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5_forms import CHECKSUM_BYTES, lookup3, name_hash, unreadable, verified
from kfm_dagster.readers.hdf5_messages import UNDEFINED, FileBytes

MAX_ENTRIES = 8192
"""Maximum entries and nodes read from an index of names; the largest of a GOES-R file has about 100."""
MAX_NODE_BYTES = 1 << 16
MAX_BLOCK_BYTES = 1 << 16
MAX_ROWS, MAX_WIDTH = 64, 64
"""Maximum rows and columns of a fractal heap. NetCDF-4 writes blocks of at most 64 KiB, in rows of four."""

_U64 = Struct("<Q")
_U64_PAIR = Struct("<QQ")
_TREE_1 = Struct("<4sBBHQQ")
_SYMBOL = Struct("<QQI4x16x")
_SYMBOL_NODE = Struct("<4sBxH")
_LOCAL_HEAP = Struct("<4sB3xQQQ")
_TREE_2 = Struct("<4sBBIHHBBQHQ")
_HEAP = Struct("<4sBHHB I QQQQ QQQQ QQQQ H QQ HH QH")
_SOFT_LINK = 2
_NO_FREE_BLOCK = 1


class _Budget:
    """Number of entries that a walk may still read."""

    def __init__(self, most: int = MAX_ENTRIES) -> None:
        self._most = self._left = most

    def spend(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: an index of more than {self._most} entries")


def symbol_table(file: FileBytes, tree: int, heap: int) -> dict[bytes, int]:
    """Return addresses of a group's objects by name, without soft links (III.A.1, III.B to D)."""
    names = _local_heap(file, heap)
    addresses: dict[bytes, int] = {}
    budget = _Budget()
    # Other readers find names by binary search, and would miss entries out of order.
    latest = b""
    for left, node, right in tree_1_children(file, tree, kind=0, key_bytes=8):
        low, high = (_name(names, _U64.unpack(key)[0]) for key in (left, right))
        if low < latest:
            raise unreadable(f"a symbol table's key {low[:80]!r} comes after {latest[:80]!r}")
        latest = low
        for at, address, cached in _symbols(file, node, budget):
            name = _name(names, at)
            if not latest < name <= high:
                raise unreadable(f"the name {name[:80]!r} must come after {latest[:80]!r}, and not after {high[:80]!r}")
            latest = name
            if cached != _SOFT_LINK:
                addresses[name] = address
    return addresses


def _local_heap(file: FileBytes, address: int) -> bytes:
    """Return a symbol table's names (III.D), after a check of its free blocks."""
    # A free block begins with the offset of the next block (1: none) and its own size.
    signature, version, length, free, names_at = _LOCAL_HEAP.unpack(file.read(address, _LOCAL_HEAP.size))
    if signature != b"HEAP" or version or length > MAX_NODE_BYTES:
        raise unreadable(f"a local heap of version {version} and {length} bytes")
    names = file.read(names_at, length)
    budget = _Budget()
    while free != _NO_FREE_BLOCK:
        budget.spend(1)
        if free + 16 > length:
            raise unreadable(f"a free block at byte {free} of a local heap of {length}")
        start, (free, size) = free, _U64_PAIR.unpack_from(names, free)
        if start + size > length or not free:
            raise unreadable(f"a free block of {size} bytes at byte {start} of a local heap of {length}")
    return names


def _name(names: bytes, at: int) -> bytes:
    return names[at : names.index(b"\0", at)]


def _symbols(file: FileBytes, address: int, budget: _Budget) -> Iterator[tuple[int, int, int]]:
    """Yield name offset, address and kind of each entry of a symbol table's node (III.B, III.C)."""
    signature, version, count = _SYMBOL_NODE.unpack(file.read(address, _SYMBOL_NODE.size))
    if signature != b"SNOD" or version != 1 or not 0 < count <= 2 * file.leaf_rank:
        raise unreadable(f"a symbol table node of version {version} with {count} entries")
    budget.spend(count)
    # Each node takes its full size in the file, whatever its number of entries.
    entries = file.read(address + _SYMBOL_NODE.size, 2 * file.leaf_rank * _SYMBOL.size)
    for at, header, cached in islice(_SYMBOL.iter_unpack(entries), count):
        if cached > _SOFT_LINK:
            raise unreadable(f"a symbol table entry of kind {cached}")
        yield at, header, cached


def tree_1_children(
    file: FileBytes, root: int, *, kind: int, key_bytes: int, most_entries: int = MAX_ENTRIES
) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield left key, address and right key of a version-1 B-tree's leaf entries, in order."""
    pending: list[tuple[int, int | None]] = [(root, None)]
    budget = _Budget(most_entries)
    while pending:
        address, expected = pending.pop()
        signature, node_kind, level, count, _, _ = _TREE_1.unpack(file.read(address, _TREE_1.size))
        if signature != b"TREE" or node_kind != kind or (expected is not None and level != expected):
            raise unreadable(f"no B-tree node at address {address:#x}")
        budget.spend(count + 1)
        width, most = key_bytes + 8, 2 * file.tree_ranks[kind]
        if not 0 < count <= most:
            raise unreadable(f"a B-tree node with {count} children, {most} at most")
        # Each node has room for its maximum of children, each with a left key, and for one more key (III.A.1).
        body = file.read(address + _TREE_1.size, most * width + key_bytes)
        children = [
            (body[at : at + key_bytes], _U64.unpack_from(body, at + key_bytes)[0], body[at + width :][:key_bytes])
            for at in range(0, count * width, width)
        ]
        if level == 0:
            yield from children
        else:
            pending.extend((child, level - 1) for _, child, _ in reversed(children))


def dense_storage(file: FileBytes, heap_at: int, tree_at: int, name_of: Callable[[bytes], bytes]) -> dict[bytes, bytes]:
    """Return the managed messages of a fractal heap by name, in the order of the hashes.

    Raises ReadError if the hash of a name differs from the index, because other readers would not find that name.
    """
    heap, messages = _FractalHeap(file, heap_at), dict[bytes, bytes]()
    for hash_, heap_id in _hashes(file, tree_at):
        if not heap.holds(heap_id):
            continue
        message = heap.message(heap_id)
        name = name_of(message)
        if name_hash(name) != hash_ or name in messages:
            raise unreadable(f"the name {name[:80]!r} occurs twice, or its hash differs from its index")
        messages[name] = message
    return messages


def _hashes(file: FileBytes, address: int) -> Iterator[tuple[int, bytes]]:
    """Yield the name hashes and heap ids of a B-tree of version 2 (III.A.2)."""
    header = _TREE_2.unpack(verified(file.read(address, _TREE_2.size + CHECKSUM_BYTES), "an index of names"))
    signature, version, kind, node_bytes, record_bytes, depth, split, merge, root, count, total = header
    # Type 5 indexes links: hash, heap id of 7 bytes. Type 8 indexes attributes: heap id of 8, flags, order, hash.
    sound = 0 < split <= 100 and 0 < merge <= split // 2 and total <= MAX_ENTRIES and not version
    if signature != b"BTHD" or (kind, record_bytes) not in {(5, 11), (8, 17)} or not sound:
        raise unreadable(f"no index of names at address {address:#x}")
    if not 64 <= node_bytes <= MAX_NODE_BYTES:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: B-tree nodes of {node_bytes} bytes")
    latest = 0
    for record in _tree_2_records(
        file, root, count, depth, node_bytes=node_bytes, record_bytes=record_bytes, kind=kind
    ):
        total -= 1
        hash_, heap_id = (record[:4], record[4:]) if kind == 5 else (record[13:], record[:8])
        # A message may only have the flags "constant" and "not to be shared" (IV.A.1).
        if kind == 8 and record[8] & ~0x05:
            raise unreadable(f"an attribute with flags {record[8]:#x}")
        number = int.from_bytes(hash_, "little")
        # Other readers find names by binary search, and would miss entries out of order.
        if number < latest:
            raise unreadable(f"an index of names is out of order at {number:#x}")
        latest = number
        yield number, heap_id
    if total:
        raise unreadable(f"an index of names differs by {abs(total)} entries from the number that it states")


def _tree_2_records(
    file: FileBytes, root: int, count: int, depth: int, *, node_bytes: int, record_bytes: int, kind: int
) -> Iterator[bytes]:
    """Yield the records in order; between two child nodes comes one record of their parent."""
    # Sizes of a pointer's fields follow from the maximum of records below (III.A.2, "Version 2 B-tree internal node").
    overhead = 10  # Bytes of signature, version, type and checksum.
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
    # Nodes to read and records to yield, in reverse order.
    pending: list[tuple[int, int, int] | bytes] = [(root, count, depth)] if count else []
    budget = _Budget()
    while pending:
        following = pending.pop()
        if isinstance(following, bytes):
            yield following
            continue
        address, count, level = following
        budget.spend(count + 1)
        pointer = pointers[level]
        used = 6 + count * record_bytes
        stored = (used + (count + 1) * pointer if level else used) + CHECKSUM_BYTES
        # Each node takes its full size in the file.
        room = file.read(address, node_bytes)
        if stored > node_bytes or not count:
            raise unreadable(f"a B-tree node of {count} records, in an index of nodes of {node_bytes} bytes")
        node = verified(room[:stored], "a B-tree node")
        if node[:6] != (b"BTIN" if level else b"BTLF") + bytes((0, kind)):
            raise unreadable(f"no B-tree node at address {address:#x}")
        records: list[tuple[int, int, int] | bytes] = [
            node[at : at + record_bytes] for at in range(6, used, record_bytes)
        ]
        if level:
            below: list[tuple[int, int, int] | bytes] = [
                (
                    _U64.unpack_from(node, at)[0],
                    int.from_bytes(node[at + 8 : at + 8 + count_bytes], "little"),
                    level - 1,
                )
                for at in range(used, len(node), pointer)
            ]
            records = [entry for pair in zip(below, records, strict=False) for entry in pair] + below[-1:]
        pending.extend(reversed(records))


def _width(most: int) -> int:
    """Return the number of bytes for a count up to `most`."""
    return max(1, (max(most, 1).bit_length() + 7) // 8)


class _FractalHeap:
    """Managed objects of a fractal heap, whose root is a direct or an indirect block (III.G)."""

    def __init__(self, file: FileBytes, address: int) -> None:
        self._file = file
        self._address = address
        header = _HEAP.unpack(verified(file.read(address, _HEAP.size + CHECKSUM_BYTES), "a fractal heap"))
        signature, version, _, filter_bytes, flags, max_object = header[:6]
        bits: int
        self._width: int
        self._start: int
        self._max_direct: int
        self._root: int
        self._rows: int
        self._width, self._start, self._max_direct, bits, _, self._root, self._rows = header[18:]
        if (
            signature != b"FRHP"
            or version
            or flags & ~0x03
            or filter_bytes
            or not (self._width and self._start and bits)
        ):
            raise unreadable(f"no plain fractal heap at address {address:#x}")
        huge, free, count = header[7], header[9], header[15]
        self._huge, self._tiny = bool(count), bool(header[17])
        # Checks the addresses of free space and of the list of huge objects; without huge objects no list exists.
        if (huge == UNDEFINED) != (not count) or any(at != UNDEFINED and at >= file.size for at in (huge, free)):
            raise unreadable(f"a fractal heap with {count} huge objects listed at address {huge:#x}")
        if max(self._start, self._max_direct) > MAX_BLOCK_BYTES or self._rows > MAX_ROWS or self._width > MAX_WIDTH:
            text = f"HDF5: a heap of {self._rows} rows of {self._width} blocks of {self._max_direct} bytes"
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, text)
        self._max_object = max_object
        self._managed = header[10]
        """Bytes of the heap's managed space, the bound of every offset."""
        self._checked = bool(flags & 0x02)
        self._offset_bytes = (bits + 7) // 8
        self._length_bytes = min(_width(self._max_direct), _width(max_object))
        self._blocks: dict[int, bytes] = {}
        self._addresses: bytes | None = None

    def holds(self, heap_id: bytes) -> bool:
        """Return whether a heap id names a managed object, and not a huge or tiny object (III.G)."""
        kind = heap_id[0] >> 4
        if not (kind == 0 or (kind == 1 and self._huge) or (kind == 2 and self._tiny)):
            raise unreadable(f"a fractal heap id of kind {kind}")
        return kind == 0

    def message(self, heap_id: bytes) -> bytes:
        """Read the managed object of a heap id."""
        end = 1 + self._offset_bytes
        offset = int.from_bytes(heap_id[1:end], "little")
        length = int.from_bytes(heap_id[end : end + self._length_bytes], "little")
        if offset > self._managed or length > self._max_object:
            raise unreadable(f"a fractal heap object of {length} bytes at offset {offset} of {self._managed}")
        block, inside = self._locate(offset)
        begin = self._begin + (CHECKSUM_BYTES if self._checked else 0)
        if not begin <= inside < inside + length <= len(block):
            raise unreadable(f"a fractal heap object of {length} bytes at {inside} of its block of {len(block)}")
        return block[inside : inside + length]

    def _locate(self, offset: int) -> tuple[bytes, int]:
        """Return the direct block that holds an offset of the heap, and the offset in the block."""
        if not self._rows:
            return self._direct(self._root, 0, self._start), offset
        # Rows 0 and 1 have blocks of the starting size; from row to row after them, the size doubles.
        turn = offset // (self._start * self._width)
        row = turn.bit_length()
        size = self._start << max(row - 1, 0)
        if row >= self._rows or size > self._max_direct:
            raise unreadable(f"a fractal heap object at offset {offset} of {self._rows} rows")
        before = self._start * self._width * (1 << row - 1) if row else 0
        column, inside = divmod(offset - before, size)
        at = self._begin + 8 * (row * self._width + column)
        address = int.from_bytes(self._indirect()[at : at + 8], "little")
        return self._direct(address, offset - inside, size), inside

    @property
    def _begin(self) -> int:
        """Bytes before a block's content: signature, version, heap address, block offset."""
        return 13 + self._offset_bytes

    def _indirect(self) -> bytes:
        """Read the root: the addresses of the blocks, then a checksum."""
        if self._addresses is None:
            size = self._begin + 8 * self._rows * self._width + CHECKSUM_BYTES
            block = verified(self._file.read(self._root, size), "a fractal heap's root")
            self._addresses = self._of_this_heap(block, b"FHIB", 0)
        return self._addresses

    def _direct(self, address: int, offset: int, size: int) -> bytes:
        block = self._blocks.get(address)
        if block is None:
            block = self._blocks[address] = self._of_this_heap(self._file.read(address, size), b"FHDB", offset)
            at = self._begin
            # The checksum covers the whole block, with zeros instead of the checksum's own bytes.
            whole = block[:at] + bytes(CHECKSUM_BYTES) + block[at + CHECKSUM_BYTES :]
            if self._checked and lookup3(whole) != int.from_bytes(block[at : at + CHECKSUM_BYTES], "little"):
                raise unreadable(f"the checksum of the fractal heap's block at address {address:#x} does not match")
        return block

    def _of_this_heap(self, block: bytes, signature: bytes, offset: int) -> bytes:
        place = offset.to_bytes(self._offset_bytes, "little")
        if not block.startswith(signature + b"\0" + self._address.to_bytes(8, "little") + place):
            raise unreadable(f"a block does not belong to the fractal heap at address {self._address:#x}")
        return block
