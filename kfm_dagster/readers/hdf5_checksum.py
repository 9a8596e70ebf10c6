"""The checksums of HDF5: lookup3 of its structures, Fletcher's of chunks that are stored with one.

Belongs here: computing and comparing. Does not belong here: where a structure has its checksum (`hdf5_messages.py`,
`hdf5_index.py`). Structures of the format's first versions have none.

lookup3 in Python takes 0.13 microseconds a byte, and the headers of a GOES-R file are 10 to 30 KB.
"""

from __future__ import annotations

from functools import lru_cache
from struct import unpack

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

CHECKSUM_BYTES = 4
_MASK = 0xFFFF_FFFF


def verified(data: bytes, what: str) -> bytes:
    """Return the structure without its checksum, the last four bytes. Raises ReadError(UNREADABLE_FORMAT)."""
    body = data[:-CHECKSUM_BYTES]
    if lookup3(body) != int.from_bytes(data[-CHECKSUM_BYTES:], "little"):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"HDF5: the checksum of {what} is another one")
    return body


def lookup3(data: bytes) -> int:
    """Hash bytes as HDF5 does: `hashlittle` of Bob Jenkins's lookup3 (public domain, 2006), initial value 0."""
    mask = _MASK
    a = b = c = (0xDEAD_BEEF + len(data)) & mask
    if not data:
        return c
    blocks = (len(data) - 1) // 12
    words = iter(unpack(f"<{3 * blocks}I", data[: 12 * blocks]))
    # Written out, because a function for each turn would take four times as long.
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


@lru_cache(maxsize=1024)
def name_hash(name: bytes) -> int:
    """Hash a name, under which an index has it."""
    return lookup3(name)


def fletcher32(data: bytes) -> int:
    """Fletcher's checksum of a chunk, of 16-bit words with the high byte first (IV.A.2.l, filter 3)."""
    words = np.frombuffer(data.ljust(len(data) + len(data) % 2, b"\0"), ">u2").astype(np.uint64)
    # Each word counts once in the first sum, and in the second as often as there are words from it on.
    first = int(words.sum())
    second = int((words * np.arange(len(words), 0, -1, dtype=np.uint64)).sum())
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    """Reduce a sum modulo 65,535, where 0 stands for no sum at all, and 65,535 for its multiples."""
    return total and (total - 1) % 0xFFFF + 1
