"""Byte sources: bounded requests for an object, and gzipped objects in bounded memory."""

from __future__ import annotations

import gzip
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import BLOCK_BYTES, ReadError
from kfm_dagster.readers.ranges import BlockCache, BytesSource
from kfm_dagster.readers.unpacked import gunzipped
from kfm_dagster_tests.readers.reading import Oversized, allocating_at_most, code_of
from kfm_dagster_tests.readers.truth.comparison import CountingSource

DATA = bytes(range(251)) * 4


@given(st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 300)), max_size=8), st.integers(1, 90))
def test_a_cached_read_equals_a_direct_read_and_no_block_is_requested_twice(
    reads: list[tuple[int, int]], block_bytes: int
) -> None:
    source = CountingSource(DATA)
    cache = BlockCache(source, block_bytes=block_bytes, max_blocks=len(DATA))
    for start, length in reads:
        assert cache.read(start, length) == DATA[start : start + length]
    offsets = [offset for start, length in source.ranges for offset in range(start, start + length, block_bytes)]
    assert len(offsets) == len(set(offsets))


def test_adjacent_and_last_blocks_are_read_in_one_request_without_blocks_that_were_read_before() -> None:
    for content, tail_blocks, reads, requests in (
        (DATA, 0, [(250, 10), (50, 500)], [(200, 100), (0, 200), (300, 300)]),
        (DATA, 3, [(0, 10), (950, 1), (850, 1)], [(0, 100), (800, 300)]),
        (DATA, 3, [(0, 10), (850, 100), (1000, 1)], [(0, 100), (800, 300)]),
        (DATA, 3, [(0, 10), (690, 20), (850, 1)], [(0, 100), (600, 200), (800, 300)]),
        (DATA, 3, [(790, 20)], [(700, 400)]),
        # All blocks of a small object are among its last blocks, but the first is requested alone.
        (DATA[:250], 3, [(0, 1), (240, 1), (100, 1)], [(0, 100), (100, 200)]),
    ):
        source = CountingSource(content)
        cache = BlockCache(source, block_bytes=100, tail_blocks=tail_blocks)
        for start, length in reads:
            assert cache.read(start, length) == content[start : start + length]
        assert source.ranges == requests


def test_too_many_blocks_are_refused_before_they_are_requested() -> None:
    for start, length in ((0, 401), (0, 1 << 62)):
        source = CountingSource(DATA)
        cache = BlockCache(source, block_bytes=100, max_blocks=4)
        assert code_of(cache.read, start, length) is MetadataIssue.RESOURCE_LIMIT
        assert source.ranges == []
    # The limit also counts the blocks of scattered reads.
    source = CountingSource(DATA)
    cache = BlockCache(source, block_bytes=100, max_blocks=3)
    for start in (0, 300, 600):
        cache.read(start, 1)
    assert code_of(cache.read, 900, 1) is MetadataIssue.RESOURCE_LIMIT
    assert source.ranges == [(0, 100), (300, 100), (600, 100)]


LIMIT = 4 * 1024 * 1024
PLAIN = random.Random(1).randbytes(200_000) + bytes(100_000) + b"the end"
PACKED = gzip.compress(PLAIN, mtime=0)
BLOCK = b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * (BLOCK_BYTES - 22) + gzip.compress(b"x", mtime=0)[10:].rjust(12, b"\0")
"""A stream of exactly one block: the name in its header fills it (RFC 1952, 2.3)."""


def refusal(packed: bytes, *, limit: int = LIMIT) -> MetadataIssue:
    return code_of(gunzipped, BytesSource(packed), limit=limit)


@pytest.mark.clause("OPR-20", "OPR-07")
def test_a_gzip_stream_cut_at_any_byte_is_reported_as_truncated() -> None:
    small = gzip.compress(b"some text " * 20, mtime=0)
    for end in range(len(small)):
        assert refusal(small[:end]) is MetadataIssue.TRUNCATED_OBJECT, end
    for end in range(0, len(PACKED), 1009):
        assert refusal(PACKED[:end]) is MetadataIssue.TRUNCATED_OBJECT, end


@pytest.mark.clause("OPR-07")
def test_content_that_is_not_one_valid_gzip_stream_is_refused() -> None:
    for case, packed in {
        "no gzip": b"no gzip",
        "data": PACKED[:1000] + b"\xff" * 8 + PACKED[1008:],
        "checksum": PACKED[:-8] + struct.pack("<I", zlib.crc32(PLAIN) ^ 1) + PACKED[-4:],
        "length": PACKED[:-4] + struct.pack("<I", len(PLAIN) + 1),
        "a byte after the stream": PACKED + b"\0",
        "two streams": PACKED + PACKED,
        "zeros after the stream": gzip.compress(b"x", mtime=0) + bytes(99_999),
        "a byte after a full block": BLOCK + b"y",
    }.items():
        assert refusal(packed) is MetadataIssue.UNREADABLE_FORMAT, case


@pytest.mark.clause("OPR-07")
def test_unpacking_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(64 * LIMIT), mtime=0)
    with allocating_at_most(16 * BLOCK_BYTES):
        assert refusal(bomb) is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.parametrize("content", [PLAIN, b""], ids=["filled", "empty"])
def test_content_as_large_as_the_limit_is_unpacked(content: bytes) -> None:
    packed = gzip.compress(content, mtime=0)
    source = gunzipped(BytesSource(packed), limit=len(content))
    assert source.read(0, source.size) == content
    if content:
        assert refusal(packed, limit=len(content) - 1) is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.clause("OPR-07")
def test_a_source_that_ends_before_its_announced_size_is_truncated() -> None:
    plain, packed = (Oversized(content, len(content) + 1) for content in (DATA, PACKED))
    assert code_of(BlockCache(plain).read, 0, 10) is MetadataIssue.TRUNCATED_OBJECT
    assert code_of(gunzipped, packed, limit=LIMIT) is MetadataIssue.TRUNCATED_OBJECT


@pytest.mark.clause("OPR-07")
@given(st.binary(max_size=300), st.integers(0, len(PACKED) - 1), st.binary(min_size=1, max_size=4))
def test_any_bytes_give_a_source_or_a_read_error(tail: bytes, at: int, damage: bytes) -> None:
    for packed in (tail, b"\x1f\x8b\x08" + tail, PACKED[:at] + damage + PACKED[at + len(damage) :]):
        try:
            source = gunzipped(BytesSource(packed), limit=LIMIT)
        except ReadError:
            continue
        assert len(source.read(0, source.size)) == source.size
