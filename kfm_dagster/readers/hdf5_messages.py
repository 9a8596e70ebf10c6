"""HDF5 object headers: their messages, with attributes, types, shapes and layouts.

Belongs here: section IV of the HDF5 file format specification 3.0, as far as NetCDF-4 headers need it. Does not belong
here: the search of objects by name (`hdf5_index.py`), the interface for readers (`hdf5.py`).

All integers are little-endian. Addresses and lengths have 8 bytes, as `hdf5.py` has checked in the superblock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import hdf5_forms as forms
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5_forms import (
    CHECKSUM_BYTES,
    KEPT,
    MAX_RANK,
    check_datatype,
    check_message,
    element_size,
    unreadable,
    verified,
)
from kfm_dagster.readers.ranges import BlockCache

UNDEFINED = 0xFFFF_FFFF_FFFF_FFFF
"""The undefined address: no space was allocated."""

DATASPACE, LINK_INFO, DATATYPE, LINK, LAYOUT, FILTERS, ATTRIBUTE = 0x01, 0x02, 0x03, 0x06, 0x08, 0x0B, 0x0C
OLD_FILL_VALUE, FILL_VALUE = 0x04, 0x05
SYMBOL_TABLE, ATTRIBUTE_INFO = 0x11, 0x15
DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
"""Identifiers of the filters that HDF5 itself defines (IV.A.2.l)."""
MAX_DEFLATE_LEVEL = 9
_CONTINUATION = 0x10

MAX_HEADER_BYTES = 1 << 16
"""Maximum bytes of an object header with its continuations; a GOES-R root header has up to 16 KiB."""

MAX_EXTENT = 1 << 48
"""Maximum elements along a dimension, more than any store holds. libhdf5 rounds the number of chunks along a dimension
up to a power of 2, which fails above 2**63."""

_MOST_CHUNKED = 0xFFFF_FFFF
"""Maximum bytes of a chunk, because a key of the B-tree of chunks stores the number of bytes in 32 bits."""

Messages = Mapping[int, list[bytes]]
"""Bodies of an object header's messages by type."""

_U64 = Struct("<Q")
_U64_PAIR = Struct("<QQ")
_PREFIX_1 = Struct("<BxHII4x")
_WRITTEN_FLAGS = 0x05
"""Flags that NetCDF-4 sets on a message: constant (0x01), not to be shared (0x04). It sets 0x02 (the body is stored
elsewhere) only for user-defined types. The other flags are for libraries that do not know the type of a message."""
_MESSAGE_1 = Struct("<HHB3x")
_MESSAGE_2 = Struct("<BHB")
_ATTRIBUTE = Struct("<BBHHH")


class FileBytes:
    """The object's bytes by address; every range is checked before it is read."""

    leaf_rank = 4
    """Half of the maximum entries of a symbol table's node; replaced by the superblock's value, if it states one."""
    tree_ranks = (16, 32)
    """Half of the maximum children of a node of a version-1 B-tree: first for symbol tables, then for chunks. Replaced
    by the superblock's values, too."""

    def __init__(self, blocks: BlockCache) -> None:
        self._blocks = blocks
        self.size = blocks.size

    def read(self, address: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises ReadError(UNREADABLE_FORMAT) beyond the end."""
        if address + length > self.size:
            raise unreadable(f"{length} bytes at address {address:#x} of {self.size}")
        return self._blocks.read(address, length)


def read_messages(file: FileBytes, address: int) -> Messages:
    """Read all messages of the object header at an address, continuations included."""
    start = file.read(address, 16)
    version = 2 if start.startswith(b"OHDR") else 1
    unwrap: Callable[[bytes], bytes]
    if version == 2:
        chunk, messages_of = _first_chunk_2(file, address, start), _each_message_2(start[5])
        unwrap = _continuation_2
    else:
        chunk, messages_of = _first_chunk_1(file, address, start), _each_message_1
        unwrap = bytes
    messages: dict[int, list[bytes]] = {}
    size = count = 0
    pending = [chunk]
    while pending:
        chunk = pending.pop()
        size += len(chunk)
        for kind, body in messages_of(chunk):
            count += 1
            if kind == _CONTINUATION:
                at, length = _U64_PAIR.unpack_from(body)
                if not length:
                    raise unreadable("an object header's continuation of no bytes")
                if size + length > MAX_HEADER_BYTES:
                    raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: an object header of {size + length} bytes")
                pending.append(unwrap(file.read(at, length)))
            else:
                check_message(kind, body, version=version)
                messages.setdefault(kind, []).append(body)
    # A header of version 1 states the number of its messages.
    if version == 1 and count > _PREFIX_1.unpack(start)[1]:
        raise unreadable(f"an object header of {count} messages, more than it states")
    return messages


def _first_chunk_1(file: FileBytes, address: int, start: bytes) -> bytes:
    version, count, _, length = _PREFIX_1.unpack(start)
    if version != 1 or bool(count) != bool(length):
        raise unreadable(f"no object header at address {address:#x}")
    _bound(length)
    return file.read(address + len(start), length)


def _first_chunk_2(file: FileBytes, address: int, start: bytes) -> bytes:
    version, flags = start[4], start[5]
    if version != 2 or flags & 0xC0:
        raise unreadable(f"an object header of version {version} with flags {flags:#x}")
    # After signature, version and flags: times (if bit 5 is set), limits of compact attributes (if bit 4 is set).
    offset = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 0x03)
    length = int.from_bytes(file.read(address + offset, width), "little")
    _bound(length)
    begin = offset + width
    return verified(file.read(address, begin + length + CHECKSUM_BYTES), "an object header")[begin:]


def _bound(length: int) -> None:
    if length > MAX_HEADER_BYTES:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: an object header of {length} bytes")


def _continuation_2(chunk: bytes) -> bytes:
    if not chunk.startswith(b"OCHK"):
        raise unreadable("an object header's continuation has no signature")
    return verified(chunk, "an object header's continuation")[4:]


def _each_message_1(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(chunk):
        kind, length, flags = _MESSAGE_1.unpack_from(chunk, offset)
        offset += _MESSAGE_1.size
        if length % 8:
            raise unreadable(f"a message of {length} bytes, not a multiple of 8")
        yield _message(kind, flags, chunk, offset, length)
        offset += length


def _each_message_2(flags: int) -> Callable[[bytes], Iterator[tuple[int, bytes]]]:
    # If bit 2 is set, each message has its creation order.
    prefix = _MESSAGE_2.size + (2 if flags & 0x04 else 0)

    def each(chunk: bytes) -> Iterator[tuple[int, bytes]]:
        offset, has_null = 0, False
        while offset + prefix <= len(chunk):
            kind, length, flags = _MESSAGE_2.unpack_from(chunk, offset)
            offset += prefix
            yield _message(kind, flags, chunk, offset, length)
            offset += length
            has_null = has_null or kind == 0
        if offset < len(chunk) and has_null:
            raise unreadable("an object header has both a gap and a null message")

    return each


def _message(kind: int, flags: int, chunk: bytes, offset: int, length: int) -> tuple[int, bytes]:
    if offset + length > len(chunk):
        raise unreadable(f"a message of {length} bytes continues past its header")
    if flags & ~_WRITTEN_FLAGS:
        raise unreadable(f"a message of type {kind:#x} with flags {flags:#x}")
    return kind, chunk[offset : offset + length]


@dataclass(frozen=True, slots=True)
class Datatype:
    """Type of numbers, or of texts (`struct_code` is None) of fixed length or in global heaps."""

    size: int
    struct_code: str | None
    in_heap: bool = False
    pad: int = 0
    """Code of the padding after a text: 0 for one terminating null, 1 for nulls up to the length, 2 for blanks."""

    @property
    def name(self) -> str | None:
        """Name of a number's type in STAC 1.1 (data types) and NumPy: `int16`; None for a text."""
        return None if self.struct_code is None else np.dtype(self.struct_code).name


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute, undecoded."""

    datatype: bytes
    dataspace: bytes
    data: bytes


def attribute_name(body: bytes) -> bytes:
    """Return the name in an attribute message. Raises ReadError unless its length is as stated."""
    version, _, length, _, _ = _ATTRIBUTE.unpack_from(body)
    start = _ATTRIBUTE.size + (1 if version == 3 else 0)
    name = body[start : start + length]
    if len(name) < 2 or name.find(b"\0") != length - 1:
        raise unreadable(f"an attribute's name of {length} bytes is {name[:80]!r}")
    return name[:-1]


def attribute(body: bytes) -> Attribute:
    """Split an attribute message of version 1 to 3 (IV.A.2.m), and check its parts."""
    version, flags, name, datatype, dataspace = _ATTRIBUTE.unpack_from(body)
    if version not in {1, 2, 3} or (version > 1 and flags) or (version == 3 and body[_ATTRIBUTE.size] > 1):
        raise unreadable(f"an attribute of version {version} with flags {flags:#x}")
    # Version 1 pads each part to 8 bytes; version 3 has a byte for the name's character set.
    pad = 7 if version == 1 else 0
    at = _ATTRIBUTE.size + (1 if version == 3 else 0) + (name + pad & ~pad)
    space_at = at + (datatype + pad & ~pad)
    data_at = space_at + (dataspace + pad & ~pad)
    if data_at > len(body):
        raise unreadable(f"attribute {attribute_name(body)!r} continues past its message")
    parsed = Attribute(body[at : at + datatype], body[space_at : space_at + dataspace], body[data_at:])
    check_datatype(parsed.datatype)
    if element_count(parsed.dataspace) * element_size(parsed.datatype) > len(parsed.data):
        raise unreadable(
            f"attribute {attribute_name(body)!r} has {len(parsed.data)} bytes, fewer than its elements take"
        )
    return parsed


_NUMBERS = {(0, 1): "b", (0, 2): "h", (0, 4): "i", (0, 8): "q", (1, 4): "f", (1, 8): "d"}
"""Code of `struct` for a class (0 integer, 1 IEEE float) and size in bytes."""


def datatype(body: bytes) -> Datatype:
    """Decode a checked integer, float or text type (IV.A.2.d). Raises ReadError for other types."""
    decoded = known_datatype(body)
    if decoded is None:
        raise unreadable(f"values of datatype class {body[0] & 0x0F} and {int.from_bytes(body[4:8], 'little')} bytes")
    return decoded


@lru_cache(maxsize=KEPT)
def known_datatype(body: bytes) -> Datatype | None:
    """Decode a checked integer, float or text type (IV.A.2.d); return None for other types."""
    kind, bits, size = body[0] & 0x0F, body[1], element_size(body)
    if kind == 3:
        return Datatype(size, None, pad=bits & 0x0F)
    if kind == 9 and bits & 0x0F == 1:
        return Datatype(size, None, in_heap=True)
    code = _NUMBERS.get((kind, size))
    if code is None:
        return None
    if kind == 0 and not bits & 0x08:
        code = code.upper()
    return Datatype(size, (">" if bits & 0x01 else "<") + code)


def is_reference_lists(body: bytes) -> bool:
    """Return whether values are lists of object references (class 9 of class 7, 8 bytes each)."""
    kind, base = body[0] & 0x0F, body[8] & 0x0F
    return kind == 9 and base == 7 and int.from_bytes(body[12:16], "little") == 8


@lru_cache(maxsize=KEPT)
def shape(body: bytes) -> tuple[int, ...]:
    """Return the extents of a dataspace message (IV.A.2.b); () for a scalar, (0,) for no value."""
    version, rank, flags = body[0], body[1], body[2]
    if version not in {1, 2} or rank > MAX_RANK or flags > 1:
        raise unreadable(f"a dataspace of version {version}, rank {rank}, flags {flags:#x}")
    # Types in version 2: 0 for a scalar, 1 for a shape, 2 for no value (an empty text has this type).
    if version == 2 and (body[3] > 2 or (body[3] == 1) != bool(rank)):
        raise unreadable(f"a dataspace of type {body[3]} and rank {rank}")
    if version == 2 and body[3] == 2:
        return (0,)
    start = 8 if version == 1 else 4
    extents = Struct(f"<{rank}Q").unpack_from(body, start)
    # If bit 0 is set, the maximum extents follow; the undefined address means no limit.
    most = Struct(f"<{rank}Q").unpack_from(body, start + 8 * rank) if flags else extents
    if any(extent > limit for extent, limit in zip(extents, most, strict=True)):
        raise unreadable(f"a shape of {extents}, above its own maximum {most}")
    if math.prod(extents) >= UNDEFINED or any(extent > MAX_EXTENT for extent in extents):
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"HDF5: shape {extents}")
    return extents


def element_count(body: bytes) -> int:
    """Return the number of elements of a dataspace message."""
    return math.prod(shape(body))


@dataclass(frozen=True, slots=True)
class Layout:
    """Location of values: `compact` in the header, or `address` of the values or chunks' index."""

    compact: bytes | None = None
    address: int = UNDEFINED
    chunk: tuple[int, ...] | None = None


def layout(body: bytes, extents: tuple[int, ...], size: int, *, file_bytes: int) -> Layout | None:
    """Decode the data layout message of a variable with elements of `size` bytes (IV.A.2.i).

    Returns None if the layout is valid, but the index of its chunks is not a B-tree of version 1. Raises ReadError if
    the layout does not fit the variable or the file.
    """
    version, kind = body[0], body[1]
    length = size * math.prod(extents)
    decoded: Layout | None = None
    if version == 4 and kind == 2:
        rank, width = body[3], body[4]
        sound = body[2] <= 3 and rank == len(extents) + 1 and 1 <= width <= 8 and 1 <= body[5 + rank * width] <= 5
    elif version not in {3, 4} or kind > 2:
        raise unreadable(f"a data layout of version {version} and class {kind}")
    elif kind == 0:
        sound = int.from_bytes(body[2:4], "little") == length <= len(body) - 4
        decoded = Layout(compact=body[4 : 4 + length])
    elif kind == 1:
        address, stored = _U64_PAIR.unpack_from(body, 2)
        sound = stored == length and (address == UNDEFINED or address + stored <= file_bytes)
        decoded = Layout(address=address)
    else:
        *chunk, element = Struct(f"<{body[2]}I").unpack_from(body, 11)
        sound = len(chunk) == len(extents) and element == size and 0 < math.prod(chunk) * size <= _MOST_CHUNKED
        decoded = Layout(address=int.from_bytes(body[3:11], "little"), chunk=tuple(chunk))
    if not sound:
        raise unreadable(f"a data layout of class {kind} that does not fit {extents} elements of {size} bytes")
    return decoded


def filters(messages: Messages, element_bytes: int) -> tuple[int, ...]:
    """Return the identifiers of a variable's filters, in the order of writing.

    Raises ReadError for an invalid level of deflate, and for a shuffle by a size that is not the element's size.
    """
    pipeline = [filter_ for body in messages.get(FILTERS, ()) for filter_ in forms.filters(body)]
    for identifier, values in pipeline:
        # libhdf5 refuses chunks with an invalid level, although inflating needs no level.
        if identifier == DEFLATE and (len(values) != 1 or values[0] > MAX_DEFLATE_LEVEL):
            raise unreadable(f"deflate with {values[:4]}; expected one level, up to {MAX_DEFLATE_LEVEL}")
        if identifier == SHUFFLE and values != (element_bytes,):
            raise unreadable(f"shuffle with {values[:4]}; expected the {element_bytes} bytes of an element")
    return tuple(identifier for identifier, _ in pipeline)


def fill_value(messages: Messages, size: int) -> bytes | None:
    """Return the fill value of `size` bytes; None for zeros.

    Reads fill value messages of version 1 to 3 and the older message (IV.A.2.e, f). The time of allocation, the time of
    writing, and whether a value exists are three bytes in versions 1 and 2, and bits of one byte in version 3. Raises
    ReadError.
    """
    old = [_sized(body, 0, size) for body in messages.get(OLD_FILL_VALUE, ())]
    for body in messages.get(FILL_VALUE, ()):
        version = body[0]
        if version == 3:
            flags, at = body[1], 2
            allocated, written, defined = flags & 0x03, flags >> 2 & 0x03, flags & 0x20
            sound = not flags & 0xC0 and flags & 0x30 != 0x30
        else:
            allocated, written, defined, at = body[1], body[2], body[3], 4
            sound = version in {1, 2} and defined <= 1
            defined = defined or version == 1
        if not (sound and 1 <= allocated <= 3 and written <= 2):
            raise unreadable(f"a fill value of version {version} with {body[1:4].hex()}")
        return _sized(body, at, size) if defined else None
    return next(iter(old), None)


def _sized(body: bytes, at: int, size: int) -> bytes | None:
    length = int.from_bytes(body[at : at + 4], "little", signed=True)
    if not (length in {0, size} and at + 4 + length <= len(body)):
        raise unreadable(f"a fill value of {length} bytes for elements of {size}")
    return body[at + 4 : at + 4 + length] or None


def hard_link(body: bytes) -> tuple[bytes, int]:
    """Return name and address of a hard link (IV.A.2.g). Raises ReadError for other links."""
    version, flags = body[0], body[1]
    at = 2
    kind = 0
    if flags & 0x08:
        kind, at = body[at], at + 1
    if version != 1 or kind != 0 or flags & ~0x1F:
        raise unreadable(f"a link of version {version} and type {kind}, flags {flags:#x}")
    # Before the name come the creation order (if bit 2 is set) and the name's character set (if bit 4 is set).
    at += (8 if flags & 0x04 else 0) + (1 if flags & 0x10 else 0)
    width = 1 << (flags & 0x03)
    length = int.from_bytes(body[at : at + width], "little")
    name = body[at + width : at + width + length]
    if not length or b"\0" in name:
        raise unreadable(f"a link's name of {length} bytes is {name[:80]!r}")
    (address,) = _U64.unpack_from(body, at + width + length)
    return name, int(address)
