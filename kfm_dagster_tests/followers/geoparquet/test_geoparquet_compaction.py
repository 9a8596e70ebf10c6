"""A day that is over is one GeoParquet file in the end, whatever parts it was filled by."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.geoparquet.follower import GeoParquet
from kfm_dagster_tests.catalog.envelopes import DAY
from kfm_dagster_tests.followers.geoparquet.test_geoparquet import (
    ABI,
    UPDATED,
    changes,
    every_file,
    published,
    small_parts,
)
from kfm_dagster_tests.moments import dying

OVER, AFTER, LATER = (DAY + timedelta(days=number) for number in range(3))


def files(root: Path) -> list[Path]:
    return sorted(root.glob(f"{ABI}/items/2025/{OVER:%Y-%m-%d}-*.parquet"))


@pytest.fixture
def follower(contracts: ContractRegistry, root: Path) -> GeoParquet:
    """One whose first day has 9 Items in several parts, after change 9."""
    found = GeoParquet(FolderPublisher(root))
    with small_parts():
        found.follow(contracts[ABI], changes(contracts, 1, range(6), day=OVER))
        # Columns that the others do not have.
        found.follow(contracts[ABI], changes(contracts, 7, range(6, 9), day=OVER, **{"proj:code": None}))
    assert len(files(root)) > 1
    return found


@pytest.mark.clause("OPR-10")
def test_a_day_is_one_file_once_later_days_have_brought_as_many_changes(
    follower: GeoParquet, contracts: ContractRegistry, root: Path
) -> None:
    def day() -> dict[str, dict[str, object]]:
        return published(FolderPublisher(root))[f"{OVER:%Y-%m-%d}"]

    filled, several = day(), len(files(root))
    with small_parts():
        # The day after may still bring something of it, and one change is too few.
        follower.follow(contracts[ABI], changes(contracts, 100, range(1), day=AFTER))
        assert len(files(root)) == several
        follower.follow(contracts[ABI], changes(contracts, 17, range(1), day=LATER))
        assert len(files(root)) == several
        follower.follow(contracts[ABI], changes(contracts, 101, range(1, 2), day=LATER))
    [file] = files(root)
    assert day() == filled
    assert pq.ParquetFile(file).num_row_groups > 1
    assert len(every_file(root)) == 9 + 1 + 2
    # It goes on as any other day.
    follower.follow(contracts[ABI], changes(contracts, 102, range(2), UPDATED, day=OVER, platform="goes-18"))
    follower.follow(contracts[ABI], changes(contracts, 104, [20], day=OVER))
    assert len(day()) == 10
    assert [item["properties"]["platform"] for item in day().values()].count("goes-18") == 2  # type: ignore[index]


@pytest.mark.clause("OPR-10")
def test_a_crash_while_a_day_becomes_one_file_loses_none_of_it(
    follower: GeoParquet, contracts: ContractRegistry, root: Path
) -> None:
    publisher = FolderPublisher(root)
    filled = published(publisher)[f"{OVER:%Y-%m-%d}"]
    for at in count(1):
        with small_parts(), dying(at=at, only="catalog.") as death:
            GeoParquet(publisher).follow(contracts[ABI], changes(contracts, 100 + at, [at], day=LATER))
        assert published(publisher)[f"{OVER:%Y-%m-%d}"] == filled
        if not death.died:
            break
    assert at > 1
    assert len(files(root)) == 1
    assert published(publisher)[f"{OVER:%Y-%m-%d}"] == filled
