"""Followers get what was read back to verify it, without a request; what was not, they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kfm_dagster.catalog.following import Following
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.catalog.read_back import ReadBackItems
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.envelopes import goes
from kfm_dagster_tests.catalog.test_following import Mirror
from kfm_dagster_tests.catalog.test_undo import of_run
from kfm_dagster_tests.ledger.bench import Clock


class Counting(FolderPublisher):
    """Remembers which Items were read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        self.asked += paths
        return super().read(paths)


def test_what_was_verified_is_followed_without_reading_it_again(
    database: Database, contracts: ContractRegistry, root: Path
) -> None:
    read_back, publisher, mirror = ReadBackItems(), Counting(root), Mirror()
    catalog = Catalog(database, FolderPublisher(root), contracts, read_back=read_back)
    following = Following(database, contracts, publisher, clock=Clock(), read_back=read_back)

    first = catalog.register(of_run(contracts, "first", [goes(1), goes(2)]), fence=open_fence)
    catalog.verify("goes-abi", first)
    assert following.catch_up([mirror]) == 2
    assert publisher.asked == []
    assert {item["id"] for item in mirror.items.values()} == {result.item_id for result in first}

    # Nobody has read this one back: it is read.
    [second] = catalog.register(of_run(contracts, "second", [goes(3)]), fence=open_fence)
    assert following.catch_up([mirror]) == 1
    assert publisher.asked == [second.item_href]
    # Nor what another process has verified.
    other = Mirror()
    assert Following(database, contracts, publisher, clock=Clock()).catch_up([other]) == 3
    assert other.items == mirror.items


def test_what_is_kept_is_bounded_and_of_one_content() -> None:
    kept = ReadBackItems(kept_bytes=10)
    kept.keep("a", "1", b"x" * 6)
    kept.keep("a", "1", b"x" * 6)
    kept.keep("b", "1", b"x" * 4)
    assert kept.found({"a": "2", "c": "1"}) == {}
    assert set(kept.found({"a": "1", "b": "1"})) == {"a", "b"}
    kept.keep("c", "1", b"x")
    assert set(kept.found({"a": "1", "b": "1", "c": "1"})) == {"b", "c"}
    kept.keep("d", "1", b"x" * 11)
    assert kept.found({"b": "1", "c": "1", "d": "1"}) == {}
