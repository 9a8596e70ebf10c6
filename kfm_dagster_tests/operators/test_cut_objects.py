"""Objects of every size that are cut, with and without their sidecar: never `ok`."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import CheckStatus, Integrity, Metadata
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.readers.base import READERS, ByteSource
from kfm_dagster.readers.grib2 import WALK_MESSAGES
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import unit_of

pytestmark = pytest.mark.clause("OPR-20", "BEY-04")

REGISTRY = ContractRegistry.load()
RUN = datetime(2025, 12, 3, 6, tzinfo=UTC)
HRRR_KEY, HRRR, HRRR_INDEX = make_hrrr(run=RUN, lead=7)
MESSAGE = HRRR[:188]
GIB = 1 << 30


class Spread:
    """An object of any size: some pieces at their offsets, and zeros between them."""

    def __init__(self, size: int, pieces: Mapping[int, bytes]) -> None:
        self.size = size
        self.requests = 0
        self._pieces = sorted(pieces.items())

    def read(self, start: int, length: int) -> bytes:
        self.requests += 1
        found = bytearray(max(0, min(length, self.size - start)))
        first = max(0, bisect.bisect(self._pieces, start, key=lambda piece: piece[0]) - 1)
        for at, piece in self._pieces[first:]:
            if at >= start + len(found):
                break
            low, high = max(at, start), min(at + len(piece), start + len(found))
            if low < high:
                found[low - start : high - start] = piece[low - at : high - at]
        return bytes(found)


def extract(dataset: str, key: str, source: ByteSource, index: bytes | None = None, **changes: Any) -> Metadata:
    """What metadata-extract says of an object that was announced, and stored, with just these bytes."""
    return metadata_extract(
        unit_of(dataset, key, integrity=Integrity(status=CheckStatus.OK)),
        contract=REGISTRY[dataset].model_copy(update=changes),
        grammar=REGISTRY.grammars[dataset],
        source=source,
        open_sidecar=lambda _: None if index is None else BytesSource(index),
        readers=READERS,
    )


def codes(found: Metadata) -> set[str]:
    return {issue.code for issue in found.issues}


def spread(lengths: list[int], *, cut: int = 0) -> Spread:
    """A GRIB2 object of messages that are as long as given, cut by so many bytes."""
    pieces, at = {}, 0
    for length in lengths:
        pieces[at] = MESSAGE[:8] + struct.pack(">Q", length) + MESSAGE[16:-4]
        pieces[at + length - 4] = b"7777"
        at += length
    return Spread(at - cut, pieces)


def test_lengths_are_followed_at_any_size() -> None:
    lengths = [9_000_000, 3 * GIB, GIB, 2 * GIB, 3 * GIB]
    whole = spread(lengths)
    found = extract("hrrr", HRRR_KEY, whole)
    assert codes(found) == {"sidecar_missing"}
    assert found.stac_properties["grib:message-count"] == 5
    assert whole.requests <= 2 + len(lengths)
    for cut in (1, 3, 4, 1000, GIB, 3 * GIB - 100, 3 * GIB, 3 * GIB + 1, 8 * GIB):
        found = extract("hrrr", HRRR_KEY, spread(lengths, cut=cut))
        if cut == 3 * GIB:
            assert (found.status, codes(found)) == (CheckStatus.SUSPECT, {"sidecar_missing"})
        else:
            assert (found.status, codes(found)) == (CheckStatus.FAILED, {"truncated_object"})


def test_whole_messages_without_the_others_of_their_index_fail() -> None:
    found = extract("hrrr", HRRR_KEY, BytesSource(HRRR[:376]), HRRR_INDEX.encode())
    assert (found.status, codes(found)) == (CheckStatus.FAILED, {"sidecar_mismatch"})


def test_more_messages_than_are_followed_are_suspect_at_best() -> None:
    for cut, expected in (
        (0, {"sidecar_missing", "completeness_unchecked"}),
        (5_000, {"sidecar_missing", "completeness_unchecked"}),
        (1, {"truncated_object"}),
        (4_999, {"sidecar_missing", "completeness_unchecked"}),
        (4_991, {"truncated_object"}),
        (2_500, {"truncated_object"}),
        (5_001, {"truncated_object"}),
    ):
        source = spread([5_000] * (WALK_MESSAGES + 2), cut=cut)
        found = extract("hrrr", HRRR_KEY, source)
        assert codes(found) == expected
        assert found.status in {CheckStatus.SUSPECT, CheckStatus.FAILED}
        assert source.requests <= WALK_MESSAGES + 3
    # As many messages as are followed are counted.
    found = extract("hrrr", HRRR_KEY, spread([5_000] * WALK_MESSAGES))
    assert codes(found) == {"sidecar_missing"}
    assert found.stac_properties["grib:message-count"] == WALK_MESSAGES


def test_without_a_sidecar_in_its_contract_an_object_is_suspect_for_what_nothing_lists() -> None:
    storage = REGISTRY["hrrr"].storage.model_copy(update={"sidecars": []})
    rules = REGISTRY["hrrr"].metadata_extract.model_copy(update={"severities": {}})
    found = extract("hrrr", HRRR_KEY, BytesSource(HRRR), storage=storage, metadata_extract=rules)
    assert (found.status, codes(found)) == (CheckStatus.SUSPECT, {"completeness_unchecked"})
