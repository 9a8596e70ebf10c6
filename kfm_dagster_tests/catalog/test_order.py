"""Which of two re-issues of an object is the older one: the order of S3's sequencers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kfm_dagster.catalog.item import Candidate
from kfm_dagster.catalog.outcomes import is_older, select_latest
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster_tests.catalog.envelopes import DAY

BASE = Candidate(
    dataset="goes-abi",
    collection_id="c",
    item_id="i",
    partition=f"{DAY:%Y-%m-%d}",
    content=b"{}",
    content_sha256="0" * 64,
    bbox=None,
    properties={},
    object_uri="s3://bucket/key",
    wal_id=WalId("w"),
    attempt=1,
    run_id=None,
    precedence="",
    sequencer="",
    event_time=DAY,
)


@pytest.mark.clause("BEY-01")
def test_sequencers_are_padded_on_the_right() -> None:
    for one, other, older in [
        ("0A", "0B", True),
        ("0B", "0A", False),
        ("0A", "0A", False),
        # Padded with zeros on the right, these are one sequencer; unpadded, the shorter one would sort first.
        ("0A", "0A00", False),
        ("0A00", "0A", False),
        ("0A", "0A01", True),
        # Padded on the left, the longer one would always be the newer one.
        ("0B", "0A01", False),
        ("0A01", "0B", True),
    ]:
        assert is_older(replace(BASE, sequencer=one), replace(BASE, sequencer=other)) is older


def test_of_two_that_nothing_tells_apart_the_last_one_stands() -> None:
    first, last = replace(BASE, wal_id=WalId("first")), replace(BASE, wal_id=WalId("last"))
    assert select_latest([first, last]) == {"i": last}
