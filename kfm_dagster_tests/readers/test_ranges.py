"""Byte sources: what is asked of an object, and how much at most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.ranges import BlockCache
from kfm_dagster_tests.readers.reading import Claiming, code_of
from kfm_dagster_tests.readers.truth.comparison import CountingSource

DATA = bytes(range(251)) * 4


@given(st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 300)), max_size=8), st.integers(1, 90))
def test_a_cached_read_equals_a_direct_one_and_no_block_is_requested_twice(
    reads: list[tuple[int, int]], block_bytes: int
) -> None:
    source = CountingSource(DATA)
    cache = BlockCache(source, block_bytes=block_bytes, max_blocks=len(DATA))
    for start, length in reads:
        assert cache.read(start, length) == DATA[start : start + length]
    asked = [offset for start, length in source.asked for offset in range(start, start + length, block_bytes)]
    assert len(asked) == len(set(asked))


def test_adjacent_blocks_come_in_one_request_and_known_ones_are_left_out() -> None:
    source = CountingSource(DATA)
    cache = BlockCache(source, block_bytes=100)
    cache.read(250, 10)
    source.asked.clear()
    cache.read(50, 500)
    assert source.asked == [(0, 200), (300, 300)]
    # The first block of a small object comes alone.
    source = CountingSource(DATA[:250])
    cache = BlockCache(source, block_bytes=100, tail_blocks=3)
    assert [cache.read(start, 1) for start in (0, 240, 100)] == [DATA[:1], DATA[240:241], DATA[100:101]]
    assert source.asked == [(0, 100), (100, 200)]


def test_the_last_blocks_come_in_one_request() -> None:
    for reads, requests in (
        ([(0, 10), (950, 1), (850, 1)], [(0, 100), (800, 300)]),
        ([(0, 10), (850, 100), (1000, 1)], [(0, 100), (800, 300)]),
        ([(0, 10), (690, 20), (850, 1)], [(0, 100), (600, 200), (800, 300)]),
        ([(790, 20)], [(700, 400)]),
    ):
        source = CountingSource(DATA)
        cache = BlockCache(source, block_bytes=100, tail_blocks=3)
        for start, length in reads:
            assert cache.read(start, length) == DATA[start : start + length]
        assert source.asked == requests


def test_too_many_blocks_are_refused_before_they_are_requested() -> None:
    for start, length in ((0, 401), (0, 1 << 62)):
        source = CountingSource(DATA)
        cache = BlockCache(source, block_bytes=100, max_blocks=4)
        assert code_of(cache.read, start, length) is MetadataIssue.RESOURCE_LIMIT
        assert source.asked == []
    # Scattered reads.
    source = CountingSource(DATA)
    cache = BlockCache(source, block_bytes=100, max_blocks=3)
    for start in (0, 300, 600):
        cache.read(start, 1)
    assert code_of(cache.read, 900, 1) is MetadataIssue.RESOURCE_LIMIT
    assert source.asked == [(0, 100), (300, 100), (600, 100)]


def test_a_source_that_ends_before_its_announced_size_is_truncated() -> None:
    assert code_of(BlockCache(Claiming(DATA, len(DATA) + 1)).read, 0, 10) is MetadataIssue.TRUNCATED_OBJECT
