"""Forms of HDF5's header messages: libhdf5's checks of each object that it opens.

The checks also cover parts that the readers do not need: users open the asset with libhdf5, so an object that libhdf5
refuses is not sound. Only the forms that NetCDF-4 writes are accepted, fewer than libhdf5 accepts. So a file that
libhdf5 refuses never passes, and numbers and texts are read as libhdf5 reads them (HDF5 file format specification 3.0,
IV.A).

Belongs here: the checks of messages; the checksums lookup3 (of structures, except those of the format's first versions)
and Fletcher's (of chunks). Does not belong here: values (`hdf5_messages.py`), the position of a structure's checksum.

lookup3 in Python takes 0.13 microseconds per byte; the headers of a GOES-R file have 10 to 30 KB.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, unpack

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

MAX_RANK = 32
MAX_FILTERS = 32
MAX_MEMBERS = 16
"""Maximum members of a compound type; NetCDF-4's own, REFERENCE_LIST, has 2."""
MAX_DEPTH = 4
"""Maximum levels of nested types; a list of references has 2."""
KEPT = 256
"""Maximum cached datatypes, and dataspaces. A dataset's files have some dozen distinct messages of each kind, each a
hundred times."""

_U32 = Struct("<I")
_FLOATS = {4: (31, 0, 32, 23, 8, 0, 23, 127), 8: (63, 0, 64, 52, 11, 0, 52, 1023)}
"""IEEE 754 formats by size in bytes: position of the sign bit, then the properties (IV.A.2.d, class 1)."""
_FLOAT = Struct("<HHBBBBI")
_PADS, _CHARACTER_SETS = 3, 2
_INTEGER, _REAL, _TEXT, _COMPOUND, _REFERENCE, _SEQUENCE = 0, 1, 3, 6, 7, 9
_REFERENCE_SIZES = {0: 8, 1: 12}
_LINK_INFO = 0x02
_INFORMATION = {_LINK_INFO: (18, 8, 8), 0x0A: (2, 4, 4), 0x15: (18, 2, 8)}
"""For links, groups and attributes: least bytes of the information message, then the bytes that flag 1 and flag 2 add
(IV.A.2.c, k, v)."""
_FILTERS = 0x0B
"""Type of the message with the filters of a variable, or of a group's links and attributes."""
_WRITTEN = frozenset({*range(0x07), 0x08, 0x0A, 0x0B, 0x0C, 0x11, 0x12, 0x15, 0x16})
"""Types of the messages that NetCDF-4 writes, except continuations (IV.A.2)."""


def unreadable(what: str) -> ReadError:
    """Return the error for bytes that are not HDF5 as NetCDF-4 writes it."""
    return ReadError(MetadataIssue.UNREADABLE_FORMAT, f"HDF5: {what}")


def check_message(kind: int, body: bytes, *, version: int) -> None:
    """Check a message of an object header of a version, as libhdf5 does. Raises ReadError."""
    if kind in _INFORMATION:
        least, first, second = _INFORMATION[kind]
        flags = body[1]
        if body[0] or flags & ~0x03 or len(body) < least + first * (flags & 1) + second * (flags >> 1):
            raise unreadable(f"an information message of {len(body)} bytes with flags {flags:#x}")
        if kind == _LINK_INFO and flags & 1 and body[9] & 0x80:
            # The highest creation order is a signed number for links, and unsigned for attributes.
            raise unreadable("a negative highest creation order of links")
    if kind == 0x16 and (version == 1 or body[0] or len(body) < 5):
        raise unreadable("an invalid reference count")
    if kind == 0x12 and (body[0] != 1 or len(body) < 8):
        raise unreadable("an invalid time of modification")
    if kind == _FILTERS:
        filters(body)
    if kind not in _WRITTEN:
        raise unreadable(f"a message of type {kind:#x}")


@lru_cache(maxsize=KEPT)
def check_datatype(body: bytes) -> None:
    """Check a datatype message and the types within it. Raises ReadError."""
    _datatype(body, 0, MAX_DEPTH)


def element_size(body: bytes) -> int:
    """Return the bytes of an element, from its datatype message."""
    return int(_U32.unpack_from(body, 4)[0])


def _datatype(body: bytes, at: int, depth: int) -> int:
    """Check the type that begins at byte `at`, and return its end."""
    version, kind = body[at] >> 4, body[at] & 0x0F
    check = _CLASSES.get(kind)
    if check is None or not 1 <= version <= 3 or not depth or not element_size(body[at : at + 8]):
        raise unreadable(f"values of datatype class {kind}, version {version}")
    return check(body, at, depth)


def _integer(body: bytes, at: int, _depth: int) -> int:
    bits, size = body[at + 1 : at + 4], element_size(body[at:])
    offset, precision = (
        int.from_bytes(body[at + 8 : at + 10], "little"),
        int.from_bytes(body[at + 10 : at + 12], "little"),
    )
    if bits[0] & ~0x09 or bits[1] or bits[2] or size not in {1, 2, 4, 8} or (offset, precision) != (0, 8 * size):
        raise unreadable(f"integers of {precision} bits at {offset} in {size} bytes")
    return at + 12


def _real(body: bytes, at: int, _depth: int) -> int:
    bits, size = body[at + 1 : at + 4], element_size(body[at:])
    properties = (bits[1], *_FLOAT.unpack_from(body, at + 8))
    if bits[0] & ~0x01 != 0x20 or bits[2] or _FLOATS.get(size) != properties:
        raise unreadable(f"numbers of {size} bytes in a format other than IEEE 754")
    return at + 20


def _fixed_text(body: bytes, at: int, _depth: int) -> int:
    if body[at + 1] & 0x0F >= _PADS or body[at + 1] >> 4 >= _CHARACTER_SETS or body[at + 2] or body[at + 3]:
        raise unreadable(f"texts of kind {body[at + 1]:#x}")
    return at + 8


def _compound(body: bytes, at: int, depth: int) -> int:
    version, size = body[at] >> 4, element_size(body[at:])
    count, place = int.from_bytes(body[at + 1 : at + 3], "little"), at + 8
    if not 0 < count <= MAX_MEMBERS or body[at + 3]:
        raise unreadable(f"a compound type of {count} members")
    end, names = 0, set()
    for _ in range(count):
        name = body[place : body.index(b"\0", place)]
        names.add(name)
        # Versions 1 and 2 pad names to a multiple of 8 bytes. In version 3 an offset has the bytes that `size` needs.
        place += len(name) + 1 if version == 3 else len(name) + 8 & ~7
        width = (size.bit_length() + 7) // 8 if version == 3 else 4
        offset = int.from_bytes(body[place : place + width], "little")
        # In version 1 the member's own dimensions follow; members with dimensions are refused.
        if version == 1 and body[place + 4]:
            raise unreadable("a compound type's member with dimensions")
        place += width + (28 if version == 1 else 0)
        if offset < end or offset + element_size(body[place:]) > size:
            raise unreadable("members of a compound type that overlap")
        end = offset + element_size(body[place:])
        place = _datatype(body, place, depth - 1)
    if len(names) < count:
        raise unreadable("two members of a compound type with the same name")
    return place


def _reference(body: bytes, at: int, _depth: int) -> int:
    if body[at + 2] or body[at + 3] or _REFERENCE_SIZES.get(body[at + 1]) != element_size(body[at:]):
        raise unreadable(f"references of kind {body[at + 1]:#x}")
    return at + 8


def _sequence(body: bytes, at: int, depth: int) -> int:
    """Check the type of sequences (kind 0) or texts (kind 1) of any length; return its end."""
    kind, pad, characters = body[at + 1] & 0x0F, body[at + 1] >> 4, body[at + 2]
    is_text = kind == 1
    if kind > 1 or characters >= _CHARACTER_SETS or pad >= _PADS or body[at + 3] or element_size(body[at:]) != 16:
        raise unreadable(f"sequences of kind {body[at + 1]:#x}")
    end = _datatype(body, at + 8, depth - 1)
    if is_text and (body[at + 8] & 0x0F not in {_INTEGER, _TEXT} or element_size(body[at + 8 :]) != 1):
        raise unreadable("texts of any length whose elements are not bytes")
    return end


_CLASSES = {
    _INTEGER: _integer,
    _REAL: _real,
    _TEXT: _fixed_text,
    _COMPOUND: _compound,
    _REFERENCE: _reference,
    _SEQUENCE: _sequence,
}


def filters(body: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """Return identifier and values of a pipeline's filters (IV.A.2.l). Raises ReadError."""
    version, count = body[0], body[1]
    if version not in {1, 2} or not 0 < count <= MAX_FILTERS:
        raise unreadable(f"a filter pipeline of version {version} with {count} filters")
    pipeline = []
    at = 8 if version == 1 else 2
    for _ in range(count):
        identifier = int.from_bytes(body[at : at + 2], "little")
        # Version 2 leaves out the name of the filters that HDF5 itself defines.
        has_name = version == 1 or identifier >= 256
        name = int.from_bytes(body[at + 2 : at + 4], "little") if has_name else 0
        at += 8 if has_name else 6
        values = int.from_bytes(body[at - 2 : at], "little")
        if version == 1 and name % 8:
            raise unreadable(f"a filter's name of {name} bytes")
        if name and b"\0" not in body[at : at + name]:
            raise unreadable("a filter's name without end")
        pipeline.append((identifier, Struct(f"<{values}I").unpack_from(body, at + name)))
        at += name + 4 * (values + (values & 1 if version == 1 else 0))
        if at > len(body):
            raise unreadable("a filter that continues past its message")
    return pipeline


CHECKSUM_BYTES = 4
_MASK = 0xFFFF_FFFF


def verified(data: bytes, what: str) -> bytes:
    """Verify a structure's checksum, its last 4 bytes, and return the bytes before it.

    Raises ReadError(UNREADABLE_FORMAT).
    """
    body = data[:-CHECKSUM_BYTES]
    if lookup3(body) != int.from_bytes(data[-CHECKSUM_BYTES:], "little"):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"HDF5: the checksum of {what} does not match")
    return body


def lookup3(data: bytes) -> int:
    """Return HDF5's hash: Bob Jenkins's `hashlittle` (lookup3, 2006, public domain), seed 0."""
    mask = _MASK
    a = b = c = (0xDEAD_BEEF + len(data)) & mask
    if not data:
        return c
    blocks = (len(data) - 1) // 12
    words = iter(unpack(f"<{3 * blocks}I", data[: 12 * blocks]))
    # Inlined: a function call per round would take four times as long.
    for x, y, z in zip(words, words, words, strict=True):
        c = c + z & mask
        a = (a + x - c & mask) ^ (c << 4 & mask | c >> 28)
        c += b + y
        b = (b + y - a & mask) ^ (a << 6 & mask | a >> 26)
        a = a + c & mask
        c = (c - b & mask) ^ (b << 8 & mask | b >> 24)
        b = b + a & mask
        a = (a - c & mask) ^ (c << 16 & mask | c >> 16)
        c = c + b & mask
        b = (b - a & mask) ^ (a << 19 & mask | a >> 13)
        a = a + c & mask
        c = (c - b & mask) ^ (b << 4 & mask | b >> 28)
        b = b + a & mask
    x, y, z = unpack("<III", data[12 * blocks :].ljust(12, b"\0"))
    a, b, c = a + x & mask, b + y & mask, c + z & mask
    c = (c ^ b) - (b << 14 & mask | b >> 18) & mask
    a = (a ^ c) - (c << 11 & mask | c >> 21) & mask
    b = (b ^ a) - (a << 25 & mask | a >> 7) & mask
    c = (c ^ b) - (b << 16 & mask | b >> 16) & mask
    a = (a ^ c) - (c << 4 & mask | c >> 28) & mask
    b = (b ^ a) - (a << 14 & mask | a >> 18) & mask
    return int((c ^ b) - (b << 24 & mask | b >> 8) & mask)


name_hash = lru_cache(maxsize=1024)(lookup3)
"""Hash of a name in an index."""


def fletcher32(data: bytes) -> int:
    """Return Fletcher's checksum of 16-bit words, high byte first (IV.A.2.l, filter 3)."""
    words = np.frombuffer(data.ljust(len(data) + len(data) % 2, b"\0"), ">u2").astype(np.uint64)
    # The first sum adds each word once. The second adds the n-th word from the end n times.
    first = int(words.sum())
    second = int((words * np.arange(len(words), 0, -1, dtype=np.uint64)).sum())
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    """Reduce a sum modulo 65,535, but return 65,535 for a multiple other than 0."""
    return total and (total - 1) % 0xFFFF + 1
