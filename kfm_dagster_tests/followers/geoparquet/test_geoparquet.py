"""GeoParquet files of a day hold exactly the catalog's current Items, also after crashes."""

from __future__ import annotations

import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pystac
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from obstore.store import MemoryStore

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.following import LEASE, FollowerRunner
from kfm_dagster.catalog.index import Places
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.followers.geoparquet import days, parts
from kfm_dagster.followers.geoparquet.days import files_of, read_days
from kfm_dagster.followers.geoparquet.follower import PARSED, GeoParquet
from kfm_dagster.followers.geoparquet.rows import to_items
from kfm_dagster.outbox import LONGEST_PAUSE
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster.storage.publisher import FolderPublisher, ObjectStorePublisher, Publisher
from kfm_dagster_tests import databases
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.envelopes import DAY, candidates, goes
from kfm_dagster_tests.catalog.test_undo import NEXT_YEAR, unit
from kfm_dagster_tests.commands import state_of
from kfm_dagster_tests.followers.changes import change
from kfm_dagster_tests.ledger.bench import Clock
from kfm_dagster_tests.moments import deaths, dying, meanwhile
from kfm_dagster_tests.transactions import own_tx

CREATED, UPDATED, WITHDRAWN = ChangeKind.CREATED, ChangeKind.UPDATED, ChangeKind.WITHDRAWN
ABI = "goes-abi"
Items = dict[str, dict[str, Any]]


@contextmanager
def small_parts() -> Iterator[None]:
    """Set sizes small enough that a few Items need several parts and row groups."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("GROUP_ROWS", 2), ("PART_ROWS", 6), ("WHOLE_ROWS", 2)):
            patch.setattr(parts, name, value)
        yield


def published(publisher: Publisher, collection: str = ABI) -> dict[str, Items]:
    """Return the Items of each day that a reader finds by the day's description."""
    items_by_day: dict[str, Items] = {}
    for year in days.years(publisher, collection):
        where = days.folder(collection, year)
        for day, files in read_days(publisher, where, files_of(publisher.names(where))).items():
            items = [item for part in files.parts for item in _rows(publisher, f"{where}/{part.name}", part)]
            items_by_day[day] = {item["id"]: item for item in items}
            assert len(items_by_day[day]) == len(items) == files.rows, "an Item is listed twice"
    return {day: items for day, items in items_by_day.items() if items}


def every_file(root: Path, collection: str = ABI) -> list[str]:
    """Return the ids in all files that the Collection's asset names."""
    files = sorted((root / collection).glob("items/*/*.parquet"))
    return sorted(name for file in files for name in pq.read_table(file, columns=["id"])["id"].to_pylist())


def catalogued(root: Path, collection: str = ABI) -> dict[str, Items]:
    """Return the Items of the catalog's tree, by day."""
    items_by_day: dict[str, Items] = {}
    for path, content in trees.files(root).items():
        item = orjson.loads(content)
        if item["type"] == "Feature" and item["collection"] == collection:
            items_by_day.setdefault(Path(path).parent.name, {})[item["id"]] = item
    return items_by_day


def _rows(publisher: Publisher, path: str, part: parts.DayPart) -> list[dict[str, Any]]:
    table = pq.read_table(pa.BufferReader(publisher.read([path])[path]))
    assert table.num_rows == part.rows
    return to_items(table)


class Deployment(RuleBasedStateMachine):
    """Runs register Items and are undone, while the follower dies and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.small = small_parts()
        self.small.__enter__()
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "catalog"
        self.database = Database.open(databases.migrated_sqlite(self.folder / "kfm.db"))
        self.contracts = ContractRegistry.load()
        self.catalog = Catalog(self.database, FolderPublisher(self.root), self.contracts, page_size=3)
        self.clock = Clock()
        self.runs = 0
        self.expected: list[dict[str, Items]] = [{}]
        """States that the files are allowed to show: before the last call of the follower, and after it."""

    def teardown(self) -> None:
        self.database.dispose()
        shutil.rmtree(self.folder)
        self.small.__exit__(None, None, None)

    @rule(units=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=6))
    def register(self, units: list[tuple[int, int]]) -> None:
        self.runs += 1
        batch = candidates(self.contracts, [unit(*scan) for scan in units], f"run-{self.runs}")
        self.catalog.register(batch, fence=open_fence)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        own_tx(self.catalog).undo(ABI, f"run-{data.draw(st.integers(1, self.runs))}")

    @rule(at=st.integers(1, 21))
    def follow_and_die(self, at: int) -> None:
        with dying(at=at, only="catalog.") as death:
            self._follow()
        if death.died:
            self.expected.append(catalogued(self.root))
            self.clock.advance(LEASE.total_seconds() + 1)
        else:
            self.expected = [catalogued(self.root)]

    @rule()
    def follow(self) -> None:
        self._follow()
        self.expected = [catalogued(self.root)]
        # A reader of all files finds no replaced rows either.
        assert every_file(self.root) == sorted(name for items in self.expected[0].values() for name in items)

    @rule()
    def rebuild(self) -> None:
        FollowerRunner(self.database, self.contracts, FolderPublisher(self.root), clock=self.clock).rebuild(
            GeoParquet(FolderPublisher(self.root)), self.contracts[ABI]
        )
        self.expected = [catalogued(self.root)]

    @invariant()
    def every_day_is_the_old_or_the_new(self) -> None:
        days = published(FolderPublisher(self.root))
        for day in days.keys() | {day for state in self.expected for day in state}:
            assert days.get(day, {}) in [state.get(day, {}) for state in self.expected], day

    def _follow(self) -> None:
        # A new process each time, whose only state is in the files.
        following = FollowerRunner(self.database, self.contracts, FolderPublisher(self.root), clock=self.clock)
        following.catch_up([GeoParquet(FolderPublisher(self.root))])
        self.clock.advance(LONGEST_PAUSE.total_seconds())


Deployment.TestCase.settings = settings(max_examples=20, stateful_step_count=15)


@pytest.mark.clause("OPR-10")
class TestDeployment(Deployment.TestCase):  # type: ignore[misc]
    """In any order of operations, a day's files hold the current Items."""


def changes(
    contracts: ContractRegistry, first: int, numbers: Sequence[int], kind: ChangeKind = CREATED, **properties: Any
) -> list[ItemChange]:
    """Return changes of scans of one day, numbered from `first`."""
    batch = candidates(contracts, [goes(number, **properties) for number in numbers])
    return [
        change(first + position, orjson.loads(candidate.content), kind=kind, day=candidate.partition)
        for position, candidate in enumerate(batch)
    ]


@pytest.fixture
def publisher(root: Path) -> Publisher:
    return FolderPublisher(root)


@pytest.mark.clause("OPR-10")
def test_the_items_of_a_batch_are_not_all_parsed_at_the_same_time(
    contracts: ContractRegistry, publisher: Publisher
) -> None:
    """An Item of HRRR has 40 kB as text and 250 kB as Python objects."""
    heavy = {f"V{number}": {"type": "data", "dimensions": ["y", "x"], "unit": "K"} for number in range(100)}
    peaks = []
    # The first batch pays for imports and caches.
    for first, items in ((1, 1), (2, PARSED), (PARSED + 2, 4 * PARSED)):
        batch = changes(contracts, first, range(first, first + items), **{"cube:variables": heavy})
        tracemalloc.start()
        GeoParquet(publisher).follow(contracts[ABI], batch)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 2 * peaks[1]


@pytest.mark.clause("OPR-10")
def test_a_small_change_does_not_rewrite_a_large_day(
    contracts: ContractRegistry, root: Path, publisher: Publisher
) -> None:
    follower = GeoParquet(publisher)
    follower.follow(contracts[ABI], changes(contracts, 1, range(1_000)))
    large = set(root.glob("goes-abi/items/2025/*.parquet"))
    for turn in range(20):
        few = range(1_000 + 10 * turn, 1_010 + 10 * turn)
        follower.follow(contracts[ABI], changes(contracts, few.start + 1, few))
        files = set(root.glob("goes-abi/items/2025/*.parquet"))
        assert large < files
        assert len(files) <= 6
    assert len(published(publisher)["2025-12-03"]) == len(every_file(root)) == 1_200


@pytest.mark.clause("OPR-10")
def test_a_day_of_common_size_is_one_file_after_every_change(
    contracts: ContractRegistry, root: Path, publisher: Publisher
) -> None:
    follower = GeoParquet(publisher)
    batches = [
        changes(contracts, 1, range(30)),
        changes(contracts, 31, range(30, 32)),
        changes(contracts, 33, range(5), UPDATED, platform="goes-18"),
        changes(contracts, 38, range(3, 8), WITHDRAWN),
    ]
    for batch, count in zip(batches, (30, 32, 32, 27), strict=True):
        follower.follow(contracts[ABI], batch)
        assert len(list(root.glob("goes-abi/items/2025/*.parquet"))) == 1
        assert len(every_file(root)) == count
    platforms = [item["properties"]["platform"] for item in published(publisher)["2025-12-03"].values()]
    assert platforms.count("goes-18") == 3


@pytest.mark.clause("OPR-10")
def test_a_stalled_writer_overwrites_no_later_change(
    contracts: ContractRegistry, root: Path, publisher: Publisher
) -> None:
    """The writer stalls after writing its parts; other writers publish and clean up before it resumes."""
    with small_parts():
        GeoParquet(publisher).follow(contracts[ABI], changes(contracts, 1, range(4)))
        stalled = changes(contracts, 5, range(4, 8))
        for moment in (Failpoint.CATALOG_STAGE_BEFORE, Failpoint.CATALOG_PROMOTE_AFTER, Failpoint.CATALOG_SETTLE_AFTER):
            following = max(change.change_id for change in stalled) + 1
            later = [
                *changes(contracts, following, range(2), WITHDRAWN),
                *changes(contracts, following + 2, range(2), CREATED),
                *changes(contracts, following + 4, range(2, 4), UPDATED, platform=f"late-{following}"),
            ]

            def overtake(batches: Any = (stalled, *([change] for change in later))) -> None:
                for batch in batches:
                    GeoParquet(publisher).follow(contracts[ABI], batch)

            with meanwhile(moment, overtake):
                GeoParquet(publisher).follow(contracts[ABI], stalled)
            items = published(publisher)["2025-12-03"]
            assert len(items) == 8
            assert [item["properties"]["platform"] for item in items.values()].count(f"late-{following}") == 2
            stalled = changes(contracts, following + 6, range(4, 8), UPDATED, platform="goes-17")


def test_repeated_older_changes_change_nothing(contracts: ContractRegistry, root: Path, publisher: Publisher) -> None:
    follower, first = GeoParquet(publisher), changes(contracts, 1, range(4))
    follower.follow(contracts[ABI], first)
    follower.follow(contracts[ABI], changes(contracts, 5, [0, 1], UPDATED, platform="goes-18"))
    follower.follow(contracts[ABI], changes(contracts, 7, [2], WITHDRAWN))
    before = state_of(root)
    follower.follow(contracts[ABI], first)
    assert state_of(root) == before != {}
    current = published(publisher)["2025-12-03"]
    new = changes(contracts, 8, [5])
    follower.follow(contracts[ABI], [*first, *new])
    assert published(publisher)["2025-12-03"] == current | {change.item_id: change.item for change in new}


def test_a_description_whose_parts_are_missing_is_ignored(
    contracts: ContractRegistry, root: Path, publisher: Publisher
) -> None:
    """A stalled writer published the description after the parts had been removed."""
    GeoParquet(publisher).follow(contracts[ABI], changes(contracts, 1, range(3)))
    folder = root / days.folder(ABI, "2025")
    (description,) = folder.glob("*.json")
    late = orjson.loads(description.read_bytes())
    late["parts"][0]["name"] = late["parts"][0]["name"].replace("0003-", "0004-")
    (folder / "2025-12-03-0000000000000004-000000000000.json").write_bytes(orjson.dumps(late))
    assert len(published(publisher)["2025-12-03"]) == 3


def test_a_lost_file_is_refused_until_the_collection_is_rebuilt(
    contracts: ContractRegistry, root: Path, publisher: Publisher
) -> None:
    follower = GeoParquet(publisher)
    follower.follow(contracts[ABI], changes(contracts, 1, range(3)))
    for file in root.glob("goes-abi/items/2025/*.parquet"):
        file.unlink()
    with pytest.raises(DependencyUnavailableError, match=r"2025-12-03.*rebuild --place geoparquet"):
        follower.follow(contracts[ABI], changes(contracts, 4, [3]))
    follower.forget(contracts[ABI])
    assert not (root / "goes-abi").exists()
    follower.follow(contracts[ABI], changes(contracts, 1, range(4)))
    assert len(published(publisher)["2025-12-03"]) == 4


def test_a_bucket_has_the_same_files_as_a_folder_with_their_media_types(
    contracts: ContractRegistry, root: Path
) -> None:
    store = MemoryStore()
    bucket = ObjectStorePublisher(store)
    for target in (bucket, FolderPublisher(root)):
        with small_parts():
            GeoParquet(target).follow(contracts[ABI], changes(contracts, 1, range(5)))
            GeoParquet(target).follow(contracts[ABI], changes(contracts, 6, range(4, 7), UPDATED))
    paths = [str(path.relative_to(root)) for path in root.glob("goes-abi/items/2025/*.*")]
    assert sorted(paths) == sorted(entry["path"] for page in store.list() for entry in page)
    for path in paths:
        answer = store.get(path)
        assert bytes(answer.bytes()) == (root / path).read_bytes()
        kind = "application/json" if path.endswith(".json") else "application/vnd.apache.parquet"
        assert answer.attributes["Content-Type"] == kind


@pytest.mark.clause("OPR-10")
def test_the_collection_has_an_asset_for_the_files(
    database: Database, contracts: ContractRegistry, root: Path, publisher: Publisher
) -> None:
    catalog = Catalog(database, publisher, contracts, places=Places(geoparquet=True))
    catalog.register(candidates(contracts, [goes(0), goes(0, day=NEXT_YEAR)]), fence=open_fence)
    FollowerRunner(database, contracts, publisher, clock=Clock()).catch_up([GeoParquet(publisher)])
    collection = pystac.Collection.from_file(str(root / "goes-abi/collection.json"))
    (asset,) = [asset for asset in collection.assets.values() if "collection-mirror" in (asset.roles or [])]
    assert asset.media_type == "application/vnd.apache.parquet"
    pattern = Path(str(asset.get_absolute_href())).relative_to(root)
    names = [name for file in root.glob(str(pattern)) for name in pq.read_table(file)["id"].to_pylist()]
    assert sorted(names) == trees.item_ids(root)
    assert validate_document(orjson.loads((root / "goes-abi/collection.json").read_bytes())) == []
    # Without GeoParquet in the deployment, the Collection has no such asset.
    Catalog(database, FolderPublisher(root), contracts).register(candidates(contracts, [goes(1)]), fence=open_fence)
    assert "assets" not in orjson.loads((root / "goes-abi/collection.json").read_bytes())


OVER, AFTER, LATER = (DAY + timedelta(days=number) for number in range(3))


def files(root: Path) -> list[Path]:
    return sorted(root.glob(f"{ABI}/items/2025/{OVER:%Y-%m-%d}-*.parquet"))


@pytest.fixture
def follower(contracts: ContractRegistry, root: Path) -> GeoParquet:
    """Return a follower after change 9, whose first day has 9 Items in several parts."""
    geoparquet = GeoParquet(FolderPublisher(root))
    with small_parts():
        geoparquet.follow(contracts[ABI], changes(contracts, 1, range(6), day=OVER))
        # These Items have columns that the other Items lack.
        geoparquet.follow(contracts[ABI], changes(contracts, 7, range(6, 9), day=OVER, **{"proj:code": None}))
    assert len(files(root)) > 1
    return geoparquet


@pytest.mark.clause("OPR-10")
def test_a_day_becomes_one_file_two_days_later_and_after_as_many_changes_as_the_day_has_items(
    follower: GeoParquet, contracts: ContractRegistry, root: Path
) -> None:
    def day() -> dict[str, dict[str, object]]:
        return published(FolderPublisher(root))[f"{OVER:%Y-%m-%d}"]

    filled, several = day(), len(files(root))
    with small_parts():
        # Too early: an Item of the next day; an Item of two days later, but only eight changes after the day's last.
        follower.follow(contracts[ABI], changes(contracts, 100, range(1), day=AFTER))
        assert len(files(root)) == several
        follower.follow(contracts[ABI], changes(contracts, 17, range(1), day=LATER))
        assert len(files(root)) == several
        follower.follow(contracts[ABI], changes(contracts, 101, range(1, 2), day=LATER))
    [file] = files(root)
    assert day() == filled
    assert pq.ParquetFile(file).num_row_groups > 1
    assert len(every_file(root)) == 9 + 1 + 2
    # Later changes are written as on any other day.
    follower.follow(contracts[ABI], changes(contracts, 102, range(2), UPDATED, day=OVER, platform="goes-18"))
    follower.follow(contracts[ABI], changes(contracts, 104, [20], day=OVER))
    assert len(day()) == 10
    assert [item["properties"]["platform"] for item in day().values()].count("goes-18") == 2  # type: ignore[index]


@pytest.mark.clause("OPR-10")
def test_a_crash_while_merging_a_day_loses_no_item(
    follower: GeoParquet, contracts: ContractRegistry, root: Path
) -> None:
    publisher = FolderPublisher(root)
    filled = published(publisher)[f"{OVER:%Y-%m-%d}"]
    for at, death in deaths():
        with small_parts(), dying(at=death, only="catalog."):
            GeoParquet(publisher).follow(contracts[ABI], changes(contracts, 100 + at, [at], day=LATER))
        assert published(publisher)[f"{OVER:%Y-%m-%d}"] == filled
    assert at > 1
    assert len(files(root)) == 1
    assert published(publisher)[f"{OVER:%Y-%m-%d}"] == filled
