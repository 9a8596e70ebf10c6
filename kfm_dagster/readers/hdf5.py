"""HDF5 headers by range requests: attributes and some elements of a NetCDF-4 object.

Belongs here: the interface for readers of NetCDF-4 products, and values of variables. Does not belong here: the meaning
of a name. `hdf5_messages.py`, `hdf5_index.py` and `hdf5_chunks.py` decode the format (HDF5 specification 3.0).

Why not libhdf5: it trusts its input. A sample with one overwritten length (a continuation message of 2**64 - 1 bytes)
made libhdf5 2.0.0 copy memory until the process died, and no check from outside can foresee such cases. It also holds a
global lock during requests, so one thread's request would stop the readers in all other threads. Here every address,
length, count and depth is checked before it is used, and threads share nothing.

Structures that NetCDF-4 headers do not need are refused as unreadable (links other than hard links, variables of
variable-length or compound values, shared messages, filters on heaps, chunk indexes newer than B-tree version 1).
The checksums of all structures that are read are verified.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from itertools import chain
from typing import TypeAlias, TypeVar

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import hdf5_messages as messages
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.hdf5_chunks import GlobalHeap, StoredValues
from kfm_dagster.readers.hdf5_forms import check_datatype, element_size, unreadable, verified
from kfm_dagster.readers.hdf5_index import dense_storage, symbol_table
from kfm_dagster.readers.hdf5_messages import UNDEFINED, Datatype, FileBytes
from kfm_dagster.readers.ranges import BlockCache

T = TypeVar("T")
AttributeValue: TypeAlias = str | int | float | list[int | float]

TAIL_BLOCKS = 3
"""Last blocks of an object, requested together. NetCDF-4 writes headers before and after the pixels; readers need two
or three of the blocks after the pixels, in any order, and would otherwise request each of them separately."""
MAX_TEXT_BYTES = 4096
"""Longest text attribute that is read; the texts in Items have at most 500 bytes."""
MAX_NUMBERS = 256
"""Maximum numbers read from an attribute; a list of flags has 32."""
MAX_MEMBERS = 512
"""Maximum variables of a group, and maximum attributes of an object; real files have at most 150."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK_BYTES = 96
_CHECKED_VERSION, _CHECKED_BYTES = 2, 48
"""From version 2 on, a superblock has 48 bytes; the last four are its checksum."""
_NOWHERE = b"\xff" * 8
_SMALL = 1024
"""Maximum rank of an index (half of the entries of a node); NetCDF-4 writes at most 32."""
# An attribute's reference to a value in the global heap (IV.B): length, address of the collection, index.
_IN_HEAP = struct.Struct("<IQI")
_PADDING = (b"\0", b"\0", b"\0 ")
"""Bytes to strip from a text's end, by code of its padding: one null, nulls, blanks (IV.A.2.d, class 3)."""
# Errors from impossible values: each means that the bytes are not HDF5 as NetCDF-4 writes it.
_DECODING_ERRORS = (struct.error, IndexError, ValueError, OverflowError, zlib.error)


def read_hdf5(source: ByteSource, read: Callable[[Hdf5Group], T], *, cache: BlockCache | None = None) -> T:
    """Return the result of `read` with the root group; blocks are requested as needed.

    Pass `cache` to inspect it afterwards. Raises ReadError(TRUNCATED_OBJECT, UNREADABLE_FORMAT, RESOURCE_LIMIT) and
    `source`'s errors.
    """
    blocks = cache or BlockCache(source, tail_blocks=TAIL_BLOCKS)
    try:
        file = FileBytes(blocks)
        return read(Hdf5Group(file, _root(file, blocks), GlobalHeap(file)))
    except _DECODING_ERRORS as error:
        raise unreadable(str(error)) from error


def _root(file: FileBytes, blocks: BlockCache) -> int:
    """Return the address of the root group's header; set the superblock's index ranks on `file`.

    Raises ReadError when the bytes are not HDF5, or when the file does not end where its superblock states (II.A).
    """
    head = blocks.read(0, _SUPERBLOCK_BYTES)
    if not head.startswith(_SIGNATURE):
        code = MetadataIssue.TRUNCATED_OBJECT if _SIGNATURE.startswith(head) else MetadataIssue.UNREADABLE_FORMAT
        raise ReadError(code, f"no HDF5 signature in the first {len(head)} bytes")
    if len(head) < _SUPERBLOCK_BYTES:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{len(head)} bytes are less than an HDF5 superblock")
    version = head[8]
    # Offsets by version: size of offsets, size of lengths, base address, end-of-file address, root header's address.
    layouts = {0: (13, 14, 24, 40, 64), 1: (13, 14, 28, 44, 68), 2: (9, 10, 12, 28, 36), 3: (9, 10, 12, 28, 36)}
    if version not in layouts:
        raise unreadable(f"superblock version {version}; expected 0 to 3")
    offset_size, length_size, base, end, root = layouts[version]
    # NetCDF-4 writes 8-byte offsets and lengths and no user block.
    if head[offset_size] != 8 or head[length_size] != 8 or any(head[base : base + 8]):
        raise unreadable("NetCDF-4 writes no such superblock")
    stated = int.from_bytes(head[end : end + 8], "little")
    if version >= _CHECKED_VERSION:
        verified(head[:_CHECKED_BYTES], "the superblock")
        # NetCDF-4 leaves no flag of a program that has the file open, and no extension: its address is undefined.
        sound = not head[11] and head[20:28] == _NOWHERE
    else:
        leaves, groups = (int.from_bytes(head[at : at + 2], "little") for at in (16, 18))
        chunks = int.from_bytes(head[24:26], "little") if version else FileBytes.tree_ranks[1]
        file.leaf_rank, file.tree_ranks = leaves, (groups, chunks)
        # Also checked: versions of parts, flags, addresses of free space and of a driver, the kind of the root's entry.
        sound = not any(head[9:13]) and not head[15] and not any(head[20:24])
        sound = sound and all(0 < rank <= _SMALL for rank in (leaves, groups, chunks))
        sound = sound and head[base + 8 : base + 16] == _NOWHERE == head[end + 8 : end + 16]
        sound = sound and int.from_bytes(head[root + 8 : root + 12], "little") <= 1
    if not sound:
        raise unreadable("NetCDF-4 writes no such superblock")
    if stated != blocks.size:
        code = MetadataIssue.TRUNCATED_OBJECT if stated > blocks.size else MetadataIssue.UNREADABLE_FORMAT
        raise ReadError(code, f"{blocks.size} bytes; the superblock states {stated}")
    return int.from_bytes(head[root : root + 8], "little")


class Hdf5Object:
    """A group or variable with attributes."""

    def __init__(self, file: FileBytes, address: int, heap: GlobalHeap) -> None:
        self._file = file
        self._heap = heap
        self._messages = messages.read_messages(file, address)
        # functools.cached_property is not used: up to Python 3.11 all objects share its lock, which would be held while
        # blocks are requested, so threads would wait for each other.
        self._compact_attributes: dict[bytes, messages.Attribute] | None = None
        self._dense_attributes = self._dense(messages.ATTRIBUTE_INFO, messages.attribute_name, optional_bytes=2)
        if self._dense_attributes is not None and messages.ATTRIBUTE in self._messages:
            raise unreadable("an object has attributes both in its header and outside of it")

    def text(self, name: str) -> str | None:
        """Return a text attribute without its padding; None if the attribute does not exist."""
        attribute = self._attribute(name)
        if attribute is None:
            return None
        datatype = messages.datatype(attribute.datatype)
        count = messages.element_count(attribute.dataspace)
        if count == 0:
            return ""
        if datatype.struct_code is not None or count != 1:
            raise unreadable(f"attribute {name} is not a single text")
        length = _text_bytes(datatype, attribute)
        if length > MAX_TEXT_BYTES:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"attribute {name} has {length} bytes")
        return self._text(datatype, attribute).decode("utf-8")

    def number(self, name: str) -> float | None:
        """Return a numeric attribute of one element; None if the attribute does not exist."""
        attribute = self._attribute(name)
        if attribute is None:
            return None
        value = self._value(attribute)
        if not isinstance(value, int | float):
            raise unreadable(f"attribute {name} is not a single number")
        return float(value)

    def attributes(self) -> dict[str, AttributeValue]:
        """Return texts, numbers and lists of numbers by name, sorted by name.

        A list with a single number is returned as that number. Values larger than MAX_TEXT_BYTES or MAX_NUMBERS, and
        other kinds of value, are left out. Invalid UTF-8 in a text is replaced, as by the netCDF4 library for Python.
        """
        values: dict[str, AttributeValue] = {}
        dense = self._dense_attributes() if self._dense_attributes else {}
        items = chain(self._compact().items(), ((name, messages.attribute(body)) for name, body in dense.items()))
        for number, (encoded, attribute) in enumerate(items):
            if number == MAX_MEMBERS:
                raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"an object has more than {MAX_MEMBERS} attributes")
            name = encoded.decode("utf-8")
            if name in values:
                raise unreadable(f"an object has two attributes {name[:80]!r}")
            value = self._value(attribute)
            if value is not None:
                values[name] = value
        return dict(sorted(values.items()))

    def _compact(self) -> dict[bytes, messages.Attribute]:
        """Return the attributes in the header. Raises ReadError for a name that occurs twice."""
        if self._compact_attributes is None:
            bodies = self._messages.get(messages.ATTRIBUTE, ())
            self._compact_attributes = {messages.attribute_name(body): messages.attribute(body) for body in bodies}
            if len(self._compact_attributes) < len(bodies):
                raise unreadable("an object has two attributes of the same name")
        return self._compact_attributes

    def _value(self, attribute: messages.Attribute) -> AttributeValue | None:
        datatype = messages.known_datatype(attribute.datatype)
        count = messages.element_count(attribute.dataspace)
        if datatype is None:
            return None
        if datatype.struct_code is None:
            if count == 0:
                return ""
            if count > 1 or _text_bytes(datatype, attribute) > MAX_TEXT_BYTES:
                return None
            return self._text(datatype, attribute).decode("utf-8", errors="replace")
        if not 0 < count <= MAX_NUMBERS:
            return None
        order, code = datatype.struct_code[0], datatype.struct_code[1]
        numbers = list(struct.unpack_from(f"{order}{count}{code}", attribute.data))
        return numbers[0] if count == 1 else numbers

    def _text(self, datatype: Datatype, attribute: messages.Attribute) -> bytes:
        """Return the bytes of a single text without its padding, from the attribute or the heap."""
        if datatype.in_heap:
            length, address, index = _IN_HEAP.unpack_from(attribute.data)
            # The heap has no object for an empty text.
            data = self._heap.read(address, index, length) if length else b""
        else:
            data = attribute.data[: datatype.size]
        text = data.rstrip(_PADDING[datatype.pad])
        if b"\0" in text:
            raise unreadable(f"a text with a NUL in it: {text[:80]!r}")
        return text

    def _attribute(self, name: str) -> messages.Attribute | None:
        if self._dense_attributes is None:
            return self._compact().get(name.encode())
        body = self._dense_attributes().get(name.encode())
        return None if body is None else messages.attribute(body)

    def _dense(
        self, kind: int, name_of: Callable[[bytes], bytes], *, optional_bytes: int
    ) -> Callable[[], dict[bytes, bytes]] | None:
        """Return a function that reads the dense storage of a message; None without dense storage."""
        # If flag 1 is set, `optional_bytes` precede the addresses.
        for body in self._messages.get(kind, ()):
            heap, tree = struct.unpack_from("<QQ", body, 2 + (optional_bytes if body[1] & 0x01 else 0))
            if heap != UNDEFINED:
                return cache(partial(dense_storage, self._file, heap, tree, name_of))
        return None


class Hdf5Group(Hdf5Object):
    """The root group."""

    def __init__(self, file: FileBytes, address: int, heap: GlobalHeap) -> None:
        super().__init__(file, address, heap)
        kinds = self._messages.keys() & {messages.SYMBOL_TABLE, messages.LINK_INFO}
        self._dense_links = self._dense(messages.LINK_INFO, lambda body: messages.hard_link(body)[0], optional_bytes=8)
        if len(kinds) != 1 or (self._dense_links is not None and messages.LINK in self._messages):
            raise unreadable(f"the root is not a group, or has {len(kinds)} kinds of indexes")
        links = self._messages.get(messages.LINK, ())
        self._members = dict(messages.hard_link(body) for body in links)
        if len(self._members) < len(links):
            raise unreadable("a group has two members of the same name")
        for body in self._messages.get(messages.SYMBOL_TABLE, ()):
            self._members.update(symbol_table(file, *struct.unpack_from("<QQ", body)))

    def dataset(self, name: str) -> Hdf5Dataset | None:
        """Return the variable of a name; None if the group has no such member."""
        encoded = name.encode()
        address = self._members.get(encoded)
        if address is None and self._dense_links is not None:
            body = self._dense_links().get(encoded)
            address = None if body is None else messages.hard_link(body)[1]
        if address is None:
            return None
        dataset = Hdf5Dataset(self._file, address, self._heap, name=name)
        if not dataset.has_values:
            raise unreadable(f"{name} is not a variable")
        return dataset

    def datasets(self) -> dict[str, Hdf5Dataset]:
        """Return every variable by name, sorted by name; groups and types are left out."""
        members = dict(self._members)
        if self._dense_links is not None:
            members.update(messages.hard_link(body) for body in self._dense_links().values())
        if len(members) > MAX_MEMBERS:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a group has {len(members)} members, {MAX_MEMBERS} at most")
        addresses = sorted((encoded.decode("utf-8"), address) for encoded, address in members.items())
        objects = {name: Hdf5Dataset(self._file, address, self._heap, name=name) for name, address in addresses}
        return {name: member for name, member in objects.items() if member.has_values}


class Hdf5Dataset(Hdf5Object):
    """A variable: its type, shape and layout, and access to its stored values."""

    def __init__(self, file: FileBytes, address: int, heap: GlobalHeap, *, name: str) -> None:
        super().__init__(file, address, heap)
        self.name = name
        self.address = address
        if self.has_values:
            datatype, layout = self._one(messages.DATATYPE), self._one(messages.LAYOUT)
            check_datatype(datatype)
            size = element_size(datatype)
            self._layout = messages.layout(layout, self.shape, size, file_bytes=file.size)
            self._fill = messages.fill_value(self._messages, size)
            for kind in (messages.OLD_FILL_VALUE, messages.FILL_VALUE, messages.FILTERS):
                if len(self._messages.get(kind, ())) > 1:
                    raise unreadable(f"a variable with several messages of type {kind:#x}")
        elif messages.DATATYPE in self._messages:
            check_datatype(self._one(messages.DATATYPE))

    @property
    def has_values(self) -> bool:
        """Whether libhdf5 opens the object as a variable. Raises ReadError for an unknown kind."""
        kinds = self._messages.keys()
        if not kinds & {messages.DATATYPE, messages.SYMBOL_TABLE, messages.LINK_INFO}:
            raise unreadable(f"{self.name} is neither a variable, nor a group, nor a type")
        is_group = kinds & {messages.SYMBOL_TABLE, messages.LINK_INFO}
        return {messages.DATATYPE, messages.DATASPACE} <= kinds and not is_group

    @property
    def data_type(self) -> str | None:
        """Common name of the values' type, such as `int16`; None unless the values are numbers."""
        datatype = messages.known_datatype(self._one(messages.DATATYPE))
        return datatype.name if datatype else None

    @property
    def scales(self) -> tuple[int | None, ...] | None:
        """Address of each dimension's first scale; None when no dimension has a scale.

        DIMENSION_LIST is a list of scales for each dimension (HDF5 dimension scale specification 1.0, section 3).
        """
        attribute = self._attribute("DIMENSION_LIST")
        if attribute is None or not messages.is_reference_lists(attribute.datatype):
            return None
        if messages.element_count(attribute.dataspace) != len(self.shape):
            raise unreadable(f"variable {self.name} of shape {self.shape} lacks a list of scales for each dimension")
        lists = [_IN_HEAP.unpack_from(attribute.data, _IN_HEAP.size * place) for place in range(len(self.shape))]
        return tuple(
            int.from_bytes(self._heap.read(address, index, 8 * length)[:8], "little") if length else None
            for length, address, index in lists
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the variable; () for a scalar."""
        return messages.shape(self._one(messages.DATASPACE))

    @property
    def storage(self) -> StoredValues:
        """Storage of the values. Raises ReadError unless they are numbers or texts."""
        datatype = messages.datatype(self._one(messages.DATATYPE))
        if self._layout is None:
            raise unreadable(f"the chunks of variable {self.name} are not in a B-tree of version 1")
        return StoredValues(
            file=self._file,
            name=self.name,
            shape=self.shape,
            datatype=datatype,
            layout=self._layout,
            filters=messages.filters(self._messages, datatype.size),
            fill=self._fill,
        )

    def _one(self, kind: int) -> bytes:
        bodies = self._messages.get(kind, ())
        if len(bodies) != 1:
            raise unreadable(f"variable {self.name} has {len(bodies)} messages of type {kind:#x}")
        return bodies[0]


def _text_bytes(datatype: Datatype, attribute: messages.Attribute) -> int:
    return int(_IN_HEAP.unpack_from(attribute.data)[0]) if datatype.in_heap else datatype.size
