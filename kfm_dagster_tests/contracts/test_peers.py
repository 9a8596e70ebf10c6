"""Peers: which sizes are far from theirs, and that no real object's is."""

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

pytestmark = pytest.mark.clause("BEY-04")

SIZES = st.lists(st.integers(1, 2**40), min_size=1, max_size=PEERS_KEPT)


def test_what_peers_say_is_their_middle_half() -> None:
    for sizes, quartiles in [
        ([], None),
        ([5], (1, 5, 5)),
        ([9, 1], (2, 1, 9)),
        (range(1, 9), (8, 2, 7)),
        (range(1, 25), (24, 6, 19)),
        # A quarter of them may be cut, and it changes nothing; one more does.
        ([1] * 5 + [1000] * 19, (24, 1000, 1000)),
        ([1] * 6 + [1000] * 18, (24, 1, 1000)),
    ]:
        assert PeerSizes.of(sizes) == quartiles


def test_a_size_is_expected_within_the_factor_and_further_where_the_peers_vary() -> None:
    for peers, factor, expected in [
        (PeerSizes(8, 1000, 1000), 2, (500, 2000)),
        (PeerSizes(8, 1001, 1001), 2, (501, 2002)),  # half a byte is no size
        (PeerSizes(8, 1000, 1100), 1.5, (667, 1650)),
        # Peers that vary allow more than the factor: 3 interquartile ranges, in logarithms.
        (PeerSizes(8, 1000, 2000), 2, (125, 16_000)),
        (PeerSizes(8, 1000, 2000), 10, (100, 20_000)),
    ]:
        assert peers.expected(factor) == expected


@given(SIZES, st.floats(1.01, 1000))
def test_the_middle_half_is_never_far_from_itself(sizes: list[int], factor: float) -> None:
    peers = PeerSizes.of(sizes)
    low, high = peers.expected(factor)
    assert low <= peers.lower <= peers.upper <= high
    assert {peers.lower, peers.upper} <= set(sizes)


def test_no_real_object_is_far_from_another_one_of_its_product(
    contracts: ContractRegistry, shared_data: Path, reference: dict[str, Any]
) -> None:
    sizes = _of_whole_objects(contracts, reference) | _of_indexed_objects(shared_data)
    compared = 0
    for (dataset, product), found in sizes.items():
        rules = contracts[dataset].integrity.peers
        for size in found:
            # Whatever it comes after: all its peers may have been like any one of the others.
            for other in found:
                low, high = PeerSizes(rules.minimum, other, other).expected(rules.factor)
                assert low <= size <= high, (dataset, product, size, other)
                compared += size != other
    assert compared > 50


Sizes = dict[tuple[str, str], list[int]]


def _of_whole_objects(contracts: ContractRegistry, reference: dict[str, Any]) -> Sizes:
    """Sizes of real objects under their own keys, by what the contract says is one product."""
    found: Sizes = defaultdict(list)
    for path, entry in reference.items():
        bucket, _, key = path.removeprefix("objects/").partition("/")
        contract = contracts.route(bucket=bucket, key=key).contract
        if contract is None or contract.integrity.peers is None or "subset" in (entry.get("note") or ""):
            continue
        match = contracts.grammars[contract.id].match(key)
        if match is not None and entry.get("size"):
            groups = {name: match.groups.get(name) for name in contract.integrity.peers.groups}
            if contract.id in {"goes-glm", "nexrad-l2"}:
                # A satellite or a radar has one or two files here: all of them, as if they were of one.
                groups = {name: value for name, value in groups.items() if name not in {"satellite", "site", "version"}}
            found[contract.id, str(groups)].append(entry["size"])
    return found


def _of_indexed_objects(shared_data: Path) -> Sizes:
    """Where the last message begins, by real indexes: sizes of whole objects but for one message of hundreds."""
    found: Sizes = defaultdict(list)
    for path in sorted((shared_data / "files" / "idx").iterdir()):
        name = path.name.rpartition("__")[2].removesuffix(".idx")
        dataset = {"hrrr": "hrrr", "gfs": "gfs"}.get(name.partition(".")[0])
        if dataset is not None:
            product = ".".join(name.split(".")[2:])
            found[dataset, product].append(read_index(BytesSource(path.read_bytes()))[-1].offset)
    return found
