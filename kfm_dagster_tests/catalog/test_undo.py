"""Undoing runs restores the catalog byte for byte, also with concurrent writes and crashes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from kfm_dagster.catalog.store import Catalog
from kfm_dagster.catalog.undo import UndoReport
from kfm_dagster.contracts.envelope import Envelope, StacStatus
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster.storage.publisher import STAGING, FolderPublisher, ObjectStorePublisher, PublishError
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.conftest import ON_A_GROWING_CATALOG, Write
from kfm_dagster_tests.catalog.envelopes import DAY, candidates, goes, nexrad, with_metadata
from kfm_dagster_tests.factories import staged
from kfm_dagster_tests.moments import deaths, dying, full, meanwhile
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("PCS-03")

NEXT_YEAR = DAY + timedelta(days=40)
CREATED, UPDATED, NO_OP, FAILED = StacStatus.CREATED, StacStatus.UPDATED, StacStatus.NO_OP, StacStatus.FAILED
NOTHING = UndoReport()
AFTER_ITS_LOG = Failpoint.CATALOG_STAGE_BEFORE
"""The point where a registration has logged the Items that it replaces, and done nothing else."""


def everything(root: Path, database: Database) -> dict[str, Any]:
    """Return the whole catalog: bytes of every file, every folder, and the index by column."""
    folders = {
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and STAGING not in path.parts
    } - {STAGING}
    queries = {
        "items": "SELECT * FROM catalog_items ORDER BY collection_id, item_id",
        "pages": "SELECT * FROM catalog_pages ORDER BY collection_id, partition_key, page",
        "collections": "SELECT * FROM catalog_collections ORDER BY collection_id",
        "summaries": "SELECT * FROM catalog_summaries WHERE items > 0 ORDER BY collection_id, property, value",
    }
    with database.snapshot() as tx:
        rows = {name: tx.connection.exec_driver_sql(query).all() for name, query in queries.items()}
    return {"files": trees.files(root), "folders": folders, **rows}


def unit(number: int, variant: int) -> Envelope:
    """Return a variant of a unit: a scan (0 to 3), a scan of another year (4 to 6), or a radar volume (7)."""
    if number == 7:
        volume = nexrad()
        return with_metadata(volume, stac_properties={**volume.metadata.stac_properties, "nexrad:vcp": 200 + variant})
    day = DAY if number < 4 else NEXT_YEAR
    west = -113.1 - variant / 7
    return goes(number, day=day, created=variant // 2, platform=f"goes-{variant}", bbox=(west, 14.6, -52.9, 56.8))


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=1, max_size=8), min_size=1, max_size=3
)
_names = count()


@settings(ON_A_GROWING_CATALOG, max_examples=20)
@given(before=st.lists(BATCHES, max_size=3), batches=BATCHES, data=st.data())
def test_undoing_a_run_restores_the_previous_state_and_undoing_all_runs_leaves_nothing(
    catalog: Catalog,
    root: Path,
    database: Database,
    write: Write,
    before: list[Any],
    batches: list[Any],
    data: st.DataObject,
) -> None:
    """New, changed, unchanged and late Items, several batches per run, two days, two datasets."""

    def run(work: list[list[tuple[int, int]]]) -> str:
        run_id = f"run-{next(_names)}"
        for batch in work:
            write(run_id, *(unit(*scan) for scan in batch))
        return run_id

    def undo(run_id: str) -> list[UndoReport]:
        return [own_tx(catalog).undo(dataset, run_id) for dataset in ("goes-abi", "nexrad-l2")]

    shutil.rmtree(root, ignore_errors=True)
    trees.forget(database)
    earlier = [run(work) for work in before]
    tree = everything(root, database)
    last = run(batches)
    undo(last)
    assert everything(root, database) == tree
    assert undo(last) == [NOTHING, NOTHING]
    assert everything(root, database) == tree
    for run_id in data.draw(st.permutations(earlier)):
        undo(run_id)
        if (root / "catalog.json").exists():
            trees.assert_consistent(root)
        if (root / "goes-abi").exists():
            trees.assert_counted(database)
    assert not any(everything(root, database).values())


def test_an_item_replaced_by_a_later_run_stays_until_the_later_run_is_undone_too(
    catalog: Catalog, root: Path, database: Database, write: Write
) -> None:
    [first, second] = write("early", goes(0), goes(1))
    write("late", goes(0, platform="goes-18"))
    late = (root / str(first.item_href)).read_bytes()
    report = own_tx(catalog).undo("goes-abi", "early")
    assert report == UndoReport(removed=(str(second.item_id),), superseded=(str(first.item_id),))
    assert (root / str(first.item_href)).read_bytes() == late
    assert trees.item_ids(root) == [first.item_id]
    after = everything(root, database)
    assert own_tx(catalog).undo("goes-abi", "early") == UndoReport(superseded=(str(first.item_id),))
    assert everything(root, database) == after
    # Items of an undone run are not restored.
    assert own_tx(catalog).undo("goes-abi", "late") == UndoReport(removed=(str(first.item_id),))
    assert trees.files(root) == {}


def test_single_promotions_are_undone_while_they_are_current(
    catalog: Catalog, root: Path, database: Database, write: Write
) -> None:
    def current() -> dict[str, int]:
        with database.snapshot() as tx:
            rows = tx.connection.exec_driver_sql("SELECT item_id, promotion_id FROM catalog_items").all()
        return {str(item_id): promotion_id for item_id, promotion_id in rows}

    def undo_items(promotions: dict[str, int]) -> UndoReport:
        with database.transaction() as tx:
            return catalog.undo_items("goes-abi", promotions, tx=tx)

    [first] = write("early", goes(0))
    early, tree = current(), everything(root, database)
    [_, second, third] = write("late", goes(0, platform="goes-18"), goes(1), goes(2))
    late = current()
    # Only the promotion of the later run is current, so only its Item is removed; all other Items stay.
    report = undo_items({str(second.item_id): late[str(second.item_id)]} | early)
    assert report == UndoReport(removed=(str(second.item_id),))
    assert trees.item_ids(root) == sorted([str(first.item_id), str(third.item_id)])
    assert current() == {name: late[name] for name in late if name != second.item_id}
    assert undo_items({str(second.item_id): late[str(second.item_id)]} | early) == NOTHING
    trees.assert_counted(database)
    # An undo of the whole run then restores or removes the run's other Items.
    report = own_tx(catalog).undo("goes-abi", "late")
    assert report == UndoReport(restored=(str(first.item_id),), removed=(str(third.item_id),))
    assert everything(root, database) == tree
    # Undoing all runs empties the catalog; the next Item creates it again.
    own_tx(catalog).undo("goes-abi", "early")
    assert undo_items(late) == NOTHING
    assert not any(everything(root, database).values())
    write("next", goes(0))
    assert trees.item_ids(root) == [str(first.item_id)]


def test_an_undo_keeps_a_lost_file_that_the_run_has_restored(catalog: Catalog, root: Path, write: Write) -> None:
    [item] = write("run", goes(0))
    (root / str(item.item_href)).unlink()
    assert [result.write_status for result in write("mender", goes(0))] == [NO_OP]
    mended = trees.files(root)
    assert own_tx(catalog).undo("goes-abi", "mender") == NOTHING
    assert trees.files(root) == mended
    assert own_tx(catalog).undo("goes-abi", "run") == UndoReport(removed=(str(item.item_id),))


@pytest.mark.parametrize(
    ("moment", "nth"), [(Failpoint.DATABASE_BEGIN, 2), (AFTER_ITS_LOG, 1)], ids=["before the log", "after the log"]
)
@pytest.mark.parametrize("rewritten", [False, True], ids=["gone", "another run's"])
@pytest.mark.clause("OPR-09")
def test_a_writer_is_refused_if_the_item_it_read_was_undone_meanwhile(
    catalog: Catalog, open_catalog: Callable[[], Catalog], contracts: ContractRegistry, root: Path, database: Database,
    write: Write, moment: Failpoint, nth: int, rewritten: bool,
) -> None:  # fmt: skip
    """The rival's row can have the revision of the row that the writer read, and the rival's object the same age."""
    write("undone", goes(0))

    def overtake() -> None:
        own_tx(open_catalog()).undo("goes-abi", "undone")
        if rewritten:
            write("rival", goes(0, platform="goes-17"))

    with meanwhile(moment, overtake, nth=nth):
        [refused] = catalog.register(candidates(contracts, [goes(0, platform="goes-18")], "late"), fence=open_fence)
    assert (refused.write_status, refused.issues[0].code) == (FAILED, StacIssue.CATALOG_CONFLICT)
    assert any(everything(root, database).values()) is rewritten
    assert len(trees.files(root)) == (6 if rewritten else 0)
    assert own_tx(catalog).undo("goes-abi", "late") == NOTHING
    [item] = write("late", goes(0, platform="goes-18"))
    assert item.write_status is (UPDATED if rewritten else CREATED)
    assert trees.item_ids(root) == [item.item_id]


def test_a_run_is_undone_while_other_runs_write(
    catalog: Catalog, open_catalog: Callable[[], Catalog], contracts: ContractRegistry, root: Path, database: Database,
    write: Write,
) -> None:  # fmt: skip
    def others() -> None:
        other_catalog = open_catalog()
        for number in range(10, 18):
            [result] = other_catalog.register(candidates(contracts, [goes(number)], "other"), fence=open_fence)
            assert result.write_status is CREATED

    write("run", *(goes(number) for number in range(5)))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(others)
        report = own_tx(catalog).undo("goes-abi", "run")
        writing.result()
    assert len(report.removed) == 5
    assert len(trees.item_ids(root)) == 8
    trees.assert_consistent(root)
    trees.assert_counted(database)


def base(write: Write) -> None:
    write("base", goes(0), goes(1), goes(2), goes(3))


def changes() -> list[Envelope]:
    """Return a changed Item, an unchanged Item, and new Items that need another page and another year."""
    return [
        goes(0, platform="goes-18"), goes(1), *(goes(number) for number in range(4, 8)), goes(5, day=NEXT_YEAR),
    ]  # fmt: skip


@pytest.mark.parametrize("first", [False, True], ids=["into a catalog", "into no catalog yet"])
def test_a_promotion_that_dies_at_any_point_is_undone(
    catalog: Catalog, root: Path, database: Database, write: Write, first: bool
) -> None:
    if not first:
        base(write)
    root.mkdir(exist_ok=True)
    before = everything(root, database)
    for at, death in deaths():
        with dying(database, at=death):
            write("run", *changes())
        # The next attempt, which succeeds or dies, meets the file of the dead attempt instead of the earlier content.
        if at % 3:
            with dying(database, at=at - 1 if at % 3 == 1 else 0):
                write("run", *changes())
        own_tx(catalog).undo("goes-abi", "run")
        assert everything(root, database) == before, death
    assert at > 30


def test_an_undo_that_dies_at_any_point_is_finished_by_the_next_undo(
    catalog: Catalog, root: Path, database: Database, write: Write
) -> None:
    base(write)
    before = everything(root, database)
    for _, death in deaths():
        write("run", *changes())
        with dying(database, at=death):
            own_tx(catalog).undo("goes-abi", "run")
        own_tx(catalog).undo("goes-abi", "run")
        assert everything(root, database) == before, death
    assert death.at > 40


def test_an_undo_that_cannot_write_files_changes_no_row_and_can_be_repeated(
    catalog: Catalog, root: Path, database: Database, write: Write
) -> None:
    base(write)
    before = everything(root, database)
    write("run", *changes())
    rows = everything(root, database)["items"]
    with (
        meanwhile(Failpoint.CATALOG_STAGE_BEFORE, full),
        pytest.raises(PublishError, match="No space left on device"),
    ):
        own_tx(catalog).undo("goes-abi", "run")
    assert everything(root, database)["items"] == rows
    own_tx(catalog).undo("goes-abi", "run")
    assert everything(root, database) == before


@pytest.mark.clause("OPR-08", "OPR-09")
def test_a_catalog_in_a_bucket_is_written_and_restored_like_a_catalog_in_a_folder(
    database: Database, contracts: ContractRegistry, root: Path
) -> None:
    store = MemoryStore()

    def objects() -> dict[str, bytes]:
        return {entry["path"]: bytes(store.get(entry["path"]).bytes()) for batch in store.list() for entry in batch}

    written = []
    for publisher, current in (
        (ObjectStorePublisher(store), objects),
        (FolderPublisher(root), partial(trees.files, root)),
    ):
        trees.forget(database)
        catalog = Catalog(database, publisher, contracts, page_size=3)
        catalog.register(candidates(contracts, [goes(0), goes(1)], "base"), fence=open_fence)
        before = current()
        catalog.register(candidates(contracts, changes(), "run"), fence=open_fence)
        written.append(current())
        report = own_tx(catalog).undo("goes-abi", "run")
        assert (len(report.restored), len(report.removed)) == (1, 5)
        assert current() == before
        own_tx(catalog).undo("goes-abi", "base")
        assert current() == {}
    assert written[0] == written[1]


@pytest.mark.clause("BEY-18")
def test_a_retired_collection_links_its_successor_while_the_successor_has_items(
    database: Database, root: Path, contracts: ContractRegistry
) -> None:
    old = staged(contracts["goes-abi"], "retired", since="2025-12-04", successor="nexrad-l2")
    registry = ContractRegistry.of([old, contracts["nexrad-l2"]])
    catalog = Catalog(database, FolderPublisher(root), registry)

    def links() -> dict[str, list[str]]:
        collections = {name: entry for name, entry in trees.walk(root).items() if entry["type"] == "Collection"}
        return {
            name: [link["href"] for link in collection["links"] if link["rel"].endswith("-version")]
            for name, collection in collections.items()
        }

    catalog.register(candidates(registry, [goes(0)], "old"), fence=open_fence)
    before = trees.files(root)
    catalog.register(candidates(registry, [nexrad()], "new"), fence=open_fence)
    assert links() == {
        "goes-abi/collection.json": ["../nexrad-l2/collection.json"],
        "nexrad-l2/collection.json": ["../goes-abi/collection.json"],
    }
    own_tx(catalog).undo("nexrad-l2", "new")
    assert links() == {"goes-abi/collection.json": []}
    assert trees.files(root) == before
