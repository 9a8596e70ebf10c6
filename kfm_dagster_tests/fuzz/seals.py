"""Checksums of an HDF5 file's structures, made to hold again after a mutation, so that what they would catch is read.

Belongs here: finding and renewing them. Does not belong here: other mutations (`mutations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

from kfm_dagster.readers import hdf5, hdf5_index, hdf5_messages
from kfm_dagster.readers.base import READERS, ReadRequest
from kfm_dagster.readers.hdf5_forms import CHECKSUM_BYTES, lookup3, verified
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.fuzz.specimens import CONTRACTS, Specimen


class Seal(NamedTuple):
    """A structure with a checksum of all its other bytes, `at` bytes from its start."""

    start: int
    length: int
    at: int


@cache
def seals(specimen: Specimen) -> tuple[Seal, ...]:
    """Those that its reader looks at; none where the file is of a version without, or no HDF5."""
    content = specimen.content
    found: list[Seal] = []
    if not content.startswith(b"\x89HDF"):
        return ()

    def recorded(data: bytes, what: str) -> bytes:
        found.append(Seal(content.index(data), len(data), len(data) - CHECKSUM_BYTES))
        return verified(data, what)

    direct: Callable[..., bytes] = hdf5_index._FractalHeap._direct

    def block(heap: Any, address: int, offset: int, size: int) -> bytes:
        found.append(Seal(address, size, heap._begin))
        return direct(heap, address, offset, size)

    with (
        patch.object(hdf5, "verified", recorded),
        patch.object(hdf5_messages, "verified", recorded),
        patch.object(hdf5_index, "verified", recorded),
        patch.object(hdf5_index._FractalHeap, "_direct", block),
    ):
        request = ReadRequest(
            key=specimen.key, groups=specimen.groups, source=BytesSource(content), sidecar=lambda _: None
        )
        READERS[CONTRACTS[specimen.dataset].metadata_extract.reader](request)
    return tuple(dict.fromkeys(found))


def renewed(specimen: Specimen, mutated: bytes) -> bytes:
    """The mutated bytes with the checksums of the structures that changed made to hold, where these stand still."""
    found = bytearray(mutated)
    for start, length, at in seals(specimen):
        piece = found[start : start + length]
        if len(piece) == length and piece != specimen.content[start : start + length]:
            # Fractal heaps' blocks have theirs in the middle, and count it as zeros; all others at their end.
            ended = piece[:at] if at + CHECKSUM_BYTES == length else _without(piece, at)
            found[start + at : start + at + CHECKSUM_BYTES] = lookup3(bytes(ended)).to_bytes(CHECKSUM_BYTES, "little")
    return bytes(found)


def _without(piece: bytearray, at: int) -> bytearray:
    return piece[:at] + bytes(CHECKSUM_BYTES) + piece[at + CHECKSUM_BYTES :]
