"""Peers: the expected range of sizes, and real objects within it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import PEERS_KEPT, PeerSizes
from kfm_dagster.readers.grib_index import read_index
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.truth.comparison import real_objects

pytestmark = pytest.mark.clause("BEY-04")

SIZES = st.lists(st.integers(1, 2**40), min_size=1, max_size=PEERS_KEPT)


def test_peers_are_summarised_by_their_quartiles() -> None:
    for sizes, quartiles in [
        ([], None),
        ([5], (1, 5, 5)),
        ([9, 1], (2, 1, 9)),
        (range(1, 9), (8, 2, 7)),
        (range(1, 25), (24, 6, 19)),
        # The quartiles stay if five of 24 peers are truncated; the lower one changes if six are.
        ([1] * 5 + [1000] * 19, (24, 1000, 1000)),
        ([1] * 6 + [1000] * 18, (24, 1, 1000)),
    ]:
        assert PeerSizes.of(sizes) == quartiles


def test_the_expected_range_follows_from_the_factor_and_is_wider_if_peers_vary() -> None:
    for peers, factor, expected in [
        (PeerSizes(8, 1000, 1000), 2, (500, 2000)),
        (PeerSizes(8, 1001, 1001), 2, (501, 2002)),  # 500.5 is outside of the factor
        (PeerSizes(8, 1000, 1100), 1.5, (667, 1650)),
        # Peers that vary allow more than the factor: 3 interquartile ranges, in logarithms.
        (PeerSizes(8, 1000, 2000), 2, (125, 16_000)),
        (PeerSizes(8, 1000, 2000), 10, (100, 20_000)),
    ]:
        assert peers.expected(factor) == expected


@given(SIZES, st.floats(1.01, 1000))
def test_the_quartiles_are_within_the_expected_range(sizes: list[int], factor: float) -> None:
    peers = PeerSizes.of(sizes)
    low, high = peers.expected(factor)
    assert low <= peers.lower <= peers.upper <= high
    assert {peers.lower, peers.upper} <= set(sizes)


def test_real_objects_of_a_product_are_within_each_other_s_range(
    contracts: ContractRegistry, shared_data: Path, reference: dict[str, Any]
) -> None:
    sizes = _of_whole_objects(shared_data, reference) | _of_indexed_objects(shared_data)
    compared = 0
    for (dataset, product), of_product in sizes.items():
        rules = contracts[dataset].integrity.peers
        for size in of_product:
            # For each pair: the size of one object must be possible if all peers had the size of the other.
            for other in of_product:
                low, high = PeerSizes(rules.minimum, other, other).expected(rules.factor)
                assert low <= size <= high, (dataset, product, size, other)
                compared += size != other
    assert compared > 50


Sizes = dict[tuple[str, str], list[int]]


def _of_whole_objects(shared_data: Path, reference: dict[str, Any]) -> Sizes:
    """Return the sizes of real objects by product of the contract."""
    sizes: Sizes = defaultdict(list)
    for real in real_objects(shared_data, reference):
        peers = real.contract and real.contract.integrity.peers
        if not peers or "subset" in (reference[real.path].get("note") or ""):
            continue
        # All objects are taken as peers, since there are only one or two files of each satellite or radar.
        few = {"satellite", "site", "version"} if real.contract.id in {"goes-glm", "nexrad-l2"} else set()
        groups = {name: real.groups.get(name) for name in peers.groups if name not in few}
        sizes[real.contract.id, str(groups)].append(len(real.content))
    return sizes


def _of_indexed_objects(shared_data: Path) -> Sizes:
    """Return object sizes as real indexes give them: without the last of hundreds of messages."""
    sizes: Sizes = defaultdict(list)
    for path in sorted((shared_data / "files" / "idx").iterdir()):
        name = path.name.rpartition("__")[2].removesuffix(".idx")
        dataset = {"hrrr": "hrrr", "gfs": "gfs"}.get(name.partition(".")[0])
        if dataset is not None:
            product = ".".join(name.split(".")[2:])
            sizes[dataset, product].append(read_index(BytesSource(path.read_bytes()))[-1].offset)
    return sizes
