"""Mutate an object from a seed: bits, words, slices, lengths, also in its unpacked content.

Mostly the checksums of changed HDF5 structures are renewed. An input is a function of subject, seed and number, so
an input can be examined again alone.
"""

from __future__ import annotations

import bz2
import gzip
import random
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

from kfm_dagster.readers import hdf5, hdf5_index, hdf5_messages
from kfm_dagster.readers.hdf5_forms import CHECKSUM_BYTES, lookup3, verified
from kfm_dagster_tests.fuzz.specimens import Specimen, Subject, chosen, structure_offsets
from kfm_dagster_tests.readers.nexrad_bytes import record_ends
from kfm_dagster_tests.readers.reading import CONTRACTS, header_of, patched

MAX_CHANGES = 8
LONGEST_SLICE = 4096
LARGEST_GROWTH = 1 << 20
_LDM_HEADER, _L3_DESCRIPTION_END = 24, 120
_VALUES = (0, 1, 2, 0x7F, 0x80, 0xFF)

Change = Callable[[bytearray, random.Random, Sequence[int]], None]


@dataclass(frozen=True, kw_only=True)
class Input:
    """An object of `size` bytes for a reader; the bytes after `content` are zeros or missing."""

    specimen: Specimen
    content: bytes
    index: bytes | None
    size: int
    zeros: bool = False
    is_cut: bool = False
    """Whether the object is truncated and otherwise unchanged."""


def draw(subject: Subject, seed: int, number: int, *, specimens: Sequence[Specimen] | None = None) -> Input:
    """Create the input of a number; `specimens` replace the subject's specimens."""
    rng = random.Random(f"{subject.reader}/{subject.of_index}/{seed}/{number}")
    specimen = rng.choice(specimens) if specimens else chosen(subject, rng)
    content, index = specimen.content, specimen.index
    if subject.of_index:
        return _whole(specimen, content, _mutated(index or b"", rng, subject, specimens))
    if rng.random() < 0.3:
        index = None
    if rng.random() < 0.03:
        # Only truncated: the reader must detect the truncation.
        cut = _offset(rng, len(content), structure_offsets(content))
        return Input(specimen=specimen, content=content[:cut], index=index, size=cut, is_cut=cut < len(content))
    mutated = _mutated(content, rng, subject, specimens)
    if subject.is_hdf5 and rng.random() < 0.7:
        mutated = renewed(specimen, mutated)
    if rng.random() < 0.02:
        size = len(mutated) + rng.choice((1, 100, 70_000, 1 << 24, 1 << 34, 1 << 62))
        return Input(specimen=specimen, content=mutated, index=index, size=size, zeros=rng.random() < 0.7)
    return _whole(specimen, mutated, index)


def _whole(specimen: Specimen, content: bytes, index: bytes | None) -> Input:
    return Input(specimen=specimen, content=content, index=index, size=len(content))


def _mutated(content: bytes, rng: random.Random, subject: Subject, specimens: Sequence[Specimen] | None) -> bytes:
    # Mostly mutate the unpacked content: mutations of packed bytes mostly fail at the unpacking.
    shells = (*SHELLS, plain) if rng.random() < 0.8 else (plain,)
    inner, close = next(opened for shell in shells if (opened := shell(content, rng)) is not None)
    return close(_changed(inner, rng, lambda: _other(subject, rng, specimens)))


def _other(subject: Subject, rng: random.Random, specimens: Sequence[Specimen] | None) -> bytes:
    other = rng.choice(specimens) if specimens else chosen(subject, rng)
    return (other.index or b"") if subject.of_index else other.content


def _changed(inner: bytes, rng: random.Random, other: Callable[[], bytes]) -> bytes:
    data, near = bytearray(inner), structure_offsets(inner)
    if rng.random() < 0.04:
        donor = other()
        return (
            bytes(data[: _offset(rng, len(data), near)]) + donor[_offset(rng, len(donor), structure_offsets(donor)) :]
        )
    changes = min(MAX_CHANGES, 1 + int(rng.expovariate(0.7)))
    for change in rng.choices(CHANGES, weights=_WEIGHTS, k=changes):
        change(data, rng, near)
    return bytes(data)


def _offset(rng: random.Random, size: int, near: Sequence[int]) -> int:
    """Draw an offset: anywhere, near the beginning, or near a structure."""
    kind = rng.random()
    if kind < 0.2 or not near:
        return rng.randrange(size + 1)
    if kind < 0.4:
        return min(size, int(rng.expovariate(1 / 96)))
    return max(0, min(size, rng.choice(near) + rng.choice((-1, 1)) * int(rng.expovariate(1 / 24))))


def _flip(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at = _offset(rng, len(data), near)
    if at < len(data):
        data[at] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at = _offset(rng, len(data), near)
    if at < len(data):
        data[at] = rng.choice((*_VALUES, rng.randrange(256)))


def _word(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    """Overwrite a word, in either byte order, by an edge value or a random number."""
    at, width = _offset(rng, len(data), near), rng.choice((1, 2, 4, 8))
    if at + width > len(data):
        return
    highest, order = (1 << 8 * width) - 1, rng.choice(("little", "big"))
    values = (
        0,
        1,
        highest,
        highest - 1,
        highest >> 1,
        (highest >> 1) + 1,
        len(data),
        len(data) - at,
        at,
        rng.randrange(highest),
    )
    data[at : at + width] = (rng.choice(values) & highest).to_bytes(width, order)  # type: ignore[arg-type]


def _add(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, width = _offset(rng, len(data), near), rng.choice((1, 2, 4, 8))
    if at + width > len(data):
        return
    order = rng.choice(("little", "big"))
    value = int.from_bytes(data[at : at + width], order) + rng.choice((-1, 1)) * rng.randint(1, 16)  # type: ignore[arg-type]
    data[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, order)  # type: ignore[arg-type]


def _span(data: bytearray, rng: random.Random, near: Sequence[int]) -> tuple[int, int]:
    at = _offset(rng, len(data), near)
    return at, min(len(data), at + min(LONGEST_SLICE, 1 + int(rng.expovariate(1 / 32))))


def _remove(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(data, rng, near)
    del data[at:end]


def _insert(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(data, rng, near)
    data[at:at] = rng.randbytes(end - at) if rng.random() < 0.5 else bytes(end - at)


def _repeat(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(data, rng, near)
    times = rng.choice((1, 1, 2, 16, 256))
    data[at:at] = data[at:end] * min(times, LARGEST_GROWTH // max(end - at, 1))


def _copy(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    """Copy a slice over another."""
    at, end = _span(data, rng, near)
    to = _offset(rng, len(data), near)
    piece = data[at:end]
    data[to : to + len(piece)] = piece


def _fill(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(data, rng, near)
    data[at:end] = bytes([rng.choice((0, 0xFF, 0x20))]) * (end - at)


def _text(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    """Replace a character of a text."""
    at = _offset(rng, len(data), near)
    for offset in range(at, min(len(data), at + 64)):
        if 0x20 < data[offset] < 0x7F:
            data[offset] = rng.choice(b'\0\x01\n\x1f "%-.09:AZ\\z\x7f\x80\xc3\xed\xff')
            return


def _cut(data: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    del data[_offset(rng, len(data), near) :]


CHANGES: tuple[Change, ...] = (_flip, _set, _word, _add, _remove, _insert, _repeat, _copy, _fill, _text, _cut)
_WEIGHTS = (18, 14, 26, 14, 3, 3, 3, 6, 4, 8, 1)

Opened = tuple[bytes, Callable[[bytes], bytes]]


def plain(content: bytes, _rng: random.Random) -> Opened:
    """Return the bytes unchanged."""
    return content, lambda inner: inner


def gzipped(content: bytes, rng: random.Random) -> Opened | None:
    """Unpack a gzip stream; closing it renews checksum and length."""
    if not content.startswith(b"\x1f\x8b"):
        return None
    return gzip.decompress(content), lambda inner: gzip.compress(inner, rng.choice((0, 1, 1)), mtime=0)


def ldm_record(content: bytes, rng: random.Random) -> Opened | None:
    """Unpack an LDM record of a volume or chunk; closing it renews the record's size."""
    first = _LDM_HEADER if content.startswith((b"AR2V", b"ARCHIVE2")) else 0
    if content[first + 4 : first + 7] != b"BZh":
        return None
    records = list(pairwise([first, *record_ends(content, first)]))
    start, end = rng.choice((records[0], records[-1], rng.choice(records)))
    with suppress(OSError, ValueError):
        inner = bz2.decompress(content[start + 4 : end])
        last = content[start] & 0x80

        def close(changed: bytes) -> bytes:
            packed = bz2.compress(changed, 1)
            size = -len(packed) if last else len(packed)
            return content[:start] + struct.pack(">i", size) + packed + content[end:]

        return inner, close
    return None


def level_3_blocks(content: bytes, rng: random.Random) -> Opened | None:
    """Unpack the blocks of a Level III message; closing it renews the sizes."""
    at = content.find(b"BZh")
    start = at - _L3_DESCRIPTION_END
    if not 20 <= start <= 60 or content[start + 18 : start + 20] != b"\xff\xff":
        return None
    with suppress(OSError, ValueError):
        inner = bz2.decompress(content[at:])

        def close(changed: bytes) -> bytes:
            whole = bytearray(content[:at] + bz2.compress(changed, 1))
            whole[start + 8 : start + 12] = struct.pack(">i", len(whole) - start)
            whole[start + 102 : start + 106] = struct.pack(">I", len(changed))
            return bytes(whole)

        return inner, close
    return None


SHELLS = (gzipped, ldm_record, level_3_blocks)


class Seal(NamedTuple):
    """A structure that has, `at` bytes from its start, a checksum of all its other bytes."""

    start: int
    length: int
    at: int


@cache
def seals(specimen: Specimen) -> tuple[Seal, ...]:
    """Return the checksummed HDF5 structures that the reader reads; old versions have none."""
    content = specimen.content
    structures: list[Seal] = []
    if not content.startswith(b"\x89HDF"):
        return ()

    def recorded(data: bytes, structure: str) -> bytes:
        structures.append(Seal(content.index(data), len(data), len(data) - CHECKSUM_BYTES))
        return verified(data, structure)

    direct: Callable[..., bytes] = hdf5_index._FractalHeap._direct

    def block(heap: Any, address: int, offset: int, size: int) -> bytes:
        structures.append(Seal(address, size, heap._begin))
        return direct(heap, address, offset, size)

    with (
        patch.object(hdf5, "verified", recorded),
        patch.object(hdf5_messages, "verified", recorded),
        patch.object(hdf5_index, "verified", recorded),
        patch.object(hdf5_index._FractalHeap, "_direct", block),
    ):
        reader = CONTRACTS[specimen.dataset].metadata_extract.reader
        header_of(reader, content, key=specimen.key, groups=specimen.groups)
    return tuple(dict.fromkeys(structures))


def renewed(specimen: Specimen, mutated: bytes) -> bytes:
    """Return the mutated bytes with renewed checksums of structures that changed in place."""
    data = bytearray(mutated)
    for start, length, at in seals(specimen):
        piece = data[start : start + length]
        if len(piece) == length and piece != specimen.content[start : start + length]:
            # A fractal heap's block has its checksum within, counted as zeros; other structures have it at the end.
            ended = piece[:at] if at + CHECKSUM_BYTES == length else patched(piece, at, bytes(CHECKSUM_BYTES))
            data[start + at : start + at + CHECKSUM_BYTES] = lookup3(bytes(ended)).to_bytes(CHECKSUM_BYTES, "little")
    return bytes(data)
