"""Mutations of an object from a seed: bits, words, slices and lengths, within its compression where it has one.

Belongs here: drawing an input from a specimen, with the checksums of HDF5 structures made to hold again. Does not
belong here: what a reader is held to (`trial.py`).

An input is a function of subject, seed and number, so that it can be run again alone.
"""

from __future__ import annotations

import bz2
import gzip
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

from kfm_dagster.readers import hdf5, hdf5_index, hdf5_messages
from kfm_dagster.readers.hdf5_forms import CHECKSUM_BYTES, lookup3, verified
from kfm_dagster_tests.fuzz.specimens import CONTRACTS, Specimen, Subject, chosen, places
from kfm_dagster_tests.readers.reading import header_of

MOST_CHANGES = 8
LONGEST_SLICE = 4096
LARGEST_GROWTH = 1 << 20
_LDM_HEADER, _L3_DESCRIPTION_END = 24, 120
_VALUES = (0, 1, 2, 0x7F, 0x80, 0xFF)

Change = Callable[[bytearray, random.Random, Sequence[int]], None]


@dataclass(frozen=True, kw_only=True)
class Input:
    """An object as a reader is to see it: `size` bytes of which those past `content` are zeros, or do not come."""

    specimen: Specimen
    content: bytes
    index: bytes | None
    size: int
    zeros: bool = False
    is_cut: bool = False
    """Whether it is a whole object without its end, and nothing else."""


def draw(subject: Subject, seed: int, number: int, *, specimens: Sequence[Specimen] | None = None) -> Input:
    """Make the input of a number; `specimens` instead of the subject's own."""
    rng = random.Random(f"{subject.reader}/{subject.of_index}/{seed}/{number}")
    specimen = rng.choice(specimens) if specimens else chosen(subject, rng)
    content, index = specimen.content, specimen.index
    if subject.of_index:
        return _whole(specimen, content, _mutated(index or b"", rng, subject, specimens))
    if rng.random() < 0.3:
        index = None
    if rng.random() < 0.03:
        # A cut at any place must be noticed, whatever else is.
        cut = _place(rng, len(content), places(content))
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
    # Of what is packed mostly the inside: of what is not, all that the packing would catch.
    shells = (*SHELLS, plain) if rng.random() < 0.8 else (plain,)
    inner, close = next(opened for shell in shells if (opened := shell(content, rng)) is not None)
    return close(_changed(inner, rng, lambda: _other(subject, rng, specimens)))


def _other(subject: Subject, rng: random.Random, specimens: Sequence[Specimen] | None) -> bytes:
    other = rng.choice(specimens) if specimens else chosen(subject, rng)
    return (other.index or b"") if subject.of_index else other.content


def _changed(inner: bytes, rng: random.Random, other: Callable[[], bytes]) -> bytes:
    found, near = bytearray(inner), places(inner)
    if rng.random() < 0.04:
        donor = other()
        return bytes(found[: _place(rng, len(found), near)]) + donor[_place(rng, len(donor), places(donor)) :]
    changes = min(MOST_CHANGES, 1 + int(rng.expovariate(0.7)))
    for change in rng.choices(CHANGES, weights=_WEIGHTS, k=changes):
        change(found, rng, near)
    return bytes(found)


def _place(rng: random.Random, size: int, near: Sequence[int]) -> int:
    """An offset: anywhere, near the beginning, or near a structure."""
    kind = rng.random()
    if kind < 0.2 or not near:
        return rng.randrange(size + 1)
    if kind < 0.4:
        return min(size, int(rng.expovariate(1 / 96)))
    return max(0, min(size, rng.choice(near) + rng.choice((-1, 1)) * int(rng.expovariate(1 / 24))))


def _flip(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at = _place(rng, len(found), near)
    if at < len(found):
        found[at] ^= 1 << rng.randrange(8)


def _set(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at = _place(rng, len(found), near)
    if at < len(found):
        found[at] = rng.choice((*_VALUES, rng.randrange(256)))


def _word(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    """A length, count or address, of either order of bytes: nothing, one, the most, or just past what is there."""
    at, width = _place(rng, len(found), near), rng.choice((1, 2, 4, 8))
    if at + width > len(found):
        return
    most, order = (1 << 8 * width) - 1, rng.choice(("little", "big"))
    values = (0, 1, most, most - 1, most >> 1, (most >> 1) + 1, len(found), len(found) - at, at, rng.randrange(most))
    found[at : at + width] = (rng.choice(values) & most).to_bytes(width, order)  # type: ignore[arg-type]


def _add(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, width = _place(rng, len(found), near), rng.choice((1, 2, 4, 8))
    if at + width > len(found):
        return
    order = rng.choice(("little", "big"))
    value = int.from_bytes(found[at : at + width], order) + rng.choice((-1, 1)) * rng.randint(1, 16)  # type: ignore[arg-type]
    found[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, order)  # type: ignore[arg-type]


def _span(found: bytearray, rng: random.Random, near: Sequence[int]) -> tuple[int, int]:
    at = _place(rng, len(found), near)
    return at, min(len(found), at + min(LONGEST_SLICE, 1 + int(rng.expovariate(1 / 32))))


def _remove(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(found, rng, near)
    del found[at:end]


def _insert(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(found, rng, near)
    found[at:at] = rng.randbytes(end - at) if rng.random() < 0.5 else bytes(end - at)


def _repeat(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(found, rng, near)
    times = rng.choice((1, 1, 2, 16, 256))
    found[at:at] = found[at:end] * min(times, LARGEST_GROWTH // max(end - at, 1))


def _copy(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    """A structure of its own over another one."""
    at, end = _span(found, rng, near)
    to = _place(rng, len(found), near)
    piece = found[at:end]
    found[to : to + len(piece)] = piece


def _fill(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    at, end = _span(found, rng, near)
    found[at:end] = bytes([rng.choice((0, 0xFF, 0x20))]) * (end - at)


def _text(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    """Other characters where text stands."""
    at = _place(rng, len(found), near)
    for place in range(at, min(len(found), at + 64)):
        if 0x20 < found[place] < 0x7F:
            found[place] = rng.choice(b'\0\x01\n\x1f "%-.09:AZ\\z\x7f\x80\xc3\xed\xff')
            return


def _cut(found: bytearray, rng: random.Random, near: Sequence[int]) -> None:
    del found[_place(rng, len(found), near) :]


CHANGES: tuple[Change, ...] = (_flip, _set, _word, _add, _remove, _insert, _repeat, _copy, _fill, _text, _cut)
_WEIGHTS = (18, 14, 26, 14, 3, 3, 3, 6, 4, 8, 1)

Opened = tuple[bytes, Callable[[bytes], bytes]]


def plain(content: bytes, _rng: random.Random) -> Opened:
    """The bytes as they stand."""
    return content, lambda inner: inner


def gzipped(content: bytes, rng: random.Random) -> Opened | None:
    """What is in a gzip stream: checksum and length hold again afterwards."""
    if not content.startswith(b"\x1f\x8b"):
        return None
    return gzip.decompress(content), lambda inner: gzip.compress(inner, rng.choice((0, 1, 1)), mtime=0)


def ldm_record(content: bytes, rng: random.Random) -> Opened | None:
    """What is in one of a volume's LDM records, or in a chunk's; its size holds again afterwards."""
    records = list(_records(content))
    if not records:
        return None
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


def _records(content: bytes) -> Iterator[tuple[int, int]]:
    start = _LDM_HEADER if content.startswith((b"AR2V", b"ARCHIVE2")) else 0
    while content[start + 4 : start + 7] == b"BZh":
        end = start + 4 + abs(int.from_bytes(content[start : start + 4], "big", signed=True))
        if end > len(content):
            return
        yield start, end
        start = end


def level_3_blocks(content: bytes, rng: random.Random) -> Opened | None:
    """What is behind the description of a Level III message; sizes hold again afterwards."""
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
        reader = CONTRACTS[specimen.dataset].metadata_extract.reader
        header_of(reader, content, key=specimen.key, groups=specimen.groups)
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
