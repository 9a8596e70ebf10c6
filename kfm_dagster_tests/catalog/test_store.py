"""Registering batches: statuses, order of re-issues, isolated failures, and what readers see."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pystac
import pytest

from kfm_dagster.catalog.item import canonical
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import StacResult, StacStatus
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.lineage.batches import LineageFiles
from kfm_dagster.storage import publisher as publisher_module
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster.storage.publisher import (
    FSYNC_LIMIT,
    STAGING,
    FolderPublisher,
    ObjectStorePublisher,
    Publisher,
    PublishError,
    open_publisher,
)
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.conftest import Register, codes
from kfm_dagster_tests.catalog.envelopes import DAY, candidates, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.catalog.official import OfficialSchemas
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.moments import full, meanwhile
from kfm_dagster_tests.transactions import own_tx

CREATED, UPDATED, NO_OP, FAILED = StacStatus.CREATED, StacStatus.UPDATED, StacStatus.NO_OP, StacStatus.FAILED


def statuses(results: list[StacResult]) -> list[StacStatus]:
    return [result.write_status for result in results]


@pytest.mark.clause("OPR-09", "WAL-05")
def test_a_new_item_is_created_an_equal_item_a_no_op_and_a_changed_item_updated(register: Register, root: Path) -> None:
    first = register(goes(0), goes(1))
    second = register(goes(0), goes(1))
    changed = register(goes(0), goes(1, platform="goes-18"))
    assert statuses(first) == [CREATED, CREATED]
    assert statuses(second) == [NO_OP, NO_OP]
    assert statuses(changed) == [NO_OP, UPDATED]
    assert [result.item_href for result in first] == [result.item_href for result in changed]
    assert first[1].content_sha256 == second[1].content_sha256 != changed[1].content_sha256
    assert trees.item_ids(root) == sorted({result.item_id for result in first if result.item_id})
    trees.assert_consistent(root)


@pytest.mark.clause("WAL-04")
@pytest.mark.parametrize("which", ["the newer", "the older", "both"])
def test_a_version_without_a_sequencer_is_ordered_by_the_time_of_its_event(
    register: Register, root: Path, database: Database, contracts: ContractRegistry, which: str
) -> None:
    """A listing has no sequencer, so the event's time decides which object is newer."""
    newer = goes(0, version="2" * 32, sequencer=None if which != "the older" else "0055AED6DCD90281E6")
    older = goes(0, version="1" * 32, sequencer=None if which != "the newer" else "0055AED6DCD90281E5")
    older = older.evolve(event_time=newer.event_time - timedelta(minutes=5))
    own_tx(Ledger(database, registry=contracts, worker_id="w", clock=lambda: DAY)).ensure([older, newer])
    assert statuses(register(older)) == [CREATED]
    (current,) = register(newer)
    assert current.write_status is UPDATED
    before = trees.files(root)
    (late,) = register(older)
    assert (late.write_status, late.superseded, late.superseded_by) == (NO_OP, True, newer.wal_id)
    assert trees.files(root) == before
    assert [result.superseded for result in register(older, newer)] == [True, False]


def test_removed_or_replaced_files_are_restored_even_if_the_whole_tree_is_lost(register: Register, root: Path) -> None:
    results = register(goes(0), goes(1), goes(2), goes(3))
    before = trees.files(root)
    (root / str(results[0].item_href)).unlink()
    (root / str(results[1].item_href)).write_text("{", encoding="utf-8")
    item = json.loads((root / str(results[2].item_href)).read_bytes())
    item["properties"]["platform"] = "goes-99"
    (root / str(results[2].item_href)).write_bytes(canonical(item))
    for lost in (lambda: None, lambda: root.rename(root.with_name("moved"))):
        lost()
        assert statuses(register(goes(0), goes(1), goes(2), goes(3))) == [NO_OP] * 4
        assert trees.files(root) == before


@pytest.mark.clause("OPR-09")
def test_the_second_of_two_interleaved_writers_gets_a_conflict(
    open_catalog: Callable[[], Catalog], contracts: ContractRegistry, root: Path
) -> None:
    slow, fast = open_catalog(), open_catalog()
    slow.register(candidates(contracts, [goes(0)]), fence=open_fence)
    slow_batch = candidates(contracts, [goes(0, platform="slow"), goes(1, platform="both"), goes(2, platform="slow")])
    theirs = candidates(contracts, [goes(0, platform="fast"), goes(1, platform="both"), goes(2, platform="fast")])
    overtaken: list[StacResult] = []
    # After the slow writer has read the index, the fast one registers.
    with meanwhile(Failpoint.CATALOG_STAGE_BEFORE, lambda: overtaken.extend(fast.register(theirs, fence=open_fence))):
        results = slow.register(slow_batch, fence=open_fence)
    assert statuses(overtaken) == [UPDATED, CREATED, CREATED]
    assert statuses(results) == [FAILED, NO_OP, FAILED]
    assert codes(results) == [StacIssue.CATALOG_CONFLICT, None, StacIssue.CATALOG_CONFLICT]
    platforms = {document["properties"]["platform"] for document in trees.items(root)}
    assert platforms == {"fast", "both"}
    trees.assert_consistent(root)
    assert statuses(slow.register(slow_batch, fence=open_fence)) == [UPDATED, NO_OP, UPDATED]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1,)], ids=["one of three", "all of the batch"])
def test_only_an_item_with_an_unpromotable_file_fails(register: Register, root: Path, numbers: tuple[int, ...]) -> None:
    (candidate,) = candidates(ContractRegistry.load(), [goes(1)])
    blocked = root / "goes-abi/2025/2025-12-03" / f"{candidate.item_id}.json"
    blocked.mkdir(parents=True)
    results = register(*map(goes, numbers))
    assert statuses(results) == [FAILED if number == 1 else CREATED for number in numbers]
    assert codes(results) == [StacIssue.IO_ERROR if number == 1 else None for number in numbers]
    blocked.rmdir()
    assert statuses(register(*map(goes, numbers))) == [CREATED if number == 1 else NO_OP for number in numbers]
    trees.assert_consistent(root)


def test_documents_that_cannot_be_written_fail_the_batch_and_its_retry_succeeds(register: Register, root: Path) -> None:
    register(goes(0))
    # Documents are staged after the Items.
    with meanwhile(Failpoint.CATALOG_STAGE_BEFORE, full, nth=2):
        results = register(goes(0, platform="goes-18"), goes(1), goes(1, created=9))
    # The older version of the second Item fails with the newest version, which was chosen.
    assert (statuses(results), codes(results)) == ([FAILED] * 3, [StacIssue.IO_ERROR] * 3)
    # The first Item's file already has the new content; the index, which is authoritative, does not.
    assert statuses(register(goes(0), goes(1))) == [NO_OP, CREATED]
    assert {document["properties"]["platform"] for document in trees.items(root)} == {"goes-19"}
    trees.assert_consistent(root)


@pytest.mark.clause("OPR-08")
def test_pystac_reads_each_item_once_and_all_documents_match_the_official_schemas(
    catalog: Catalog, contracts: ContractRegistry, root: Path, shared_data: Path
) -> None:
    expected = set()
    for batch in ([goes(number) for number in range(8)], [hrrr()], [nexrad()]):
        expected |= {result.item_id for result in catalog.register(candidates(contracts, batch), fence=open_fence)}
    opened = pystac.Catalog.from_file(str(root / "catalog.json"))
    items = list(opened.get_items(recursive=True))
    assert sorted(item.id for item in items) == sorted(filter(None, expected))
    assert {collection.id for collection in opened.get_collections()} == {"goes-abi", "hrrr", "nexrad-l2"}
    for item in items:
        assert item.get_root() is opened
        assert item.get_collection() is not None
        assert item.get_collection().id == item.collection_id  # type: ignore[union-attr]
    trees.assert_consistent(root)
    official = OfficialSchemas(shared_data / "schemas/stac-extensions")
    for name, document in trees.walk(root).items():
        assert official.errors(document) == [], name
    assert official.checked == {"projection", "file", "processing", "sat", "eo", "raster", "forecast"}


def test_pages_have_a_limit_and_are_filled_one_after_the_other(register: Register, root: Path) -> None:
    for first in range(0, 12, 2):
        register(goes(first), goes(first + 1))
    register(goes(1, platform="goes-18"), *(goes(number) for number in range(12, 19)))
    day = trees.walk(root)["goes-abi/2025/2025-12-03/catalog.json"]
    pages = [link["href"] for link in day["links"] if link["rel"] == "child"]
    assert pages == [f"./page-000{number}.json" for number in range(1, 8)]
    counts = [
        sum(link["rel"] == "item" for link in document["links"])
        for name, document in sorted(trees.walk(root).items())
        if "page-" in name
    ]
    assert counts == [3, 3, 3, 3, 3, 3, 1]
    trees.assert_consistent(root)


def test_collections_have_true_extents_and_summaries(register: Register, root: Path) -> None:
    register(
        goes(0, bbox=(-120.0, 10.0, -60.0, 50.0), **{"goes:image-type": "CONUS"}),
        goes(1, bbox=(-100.0, 5.0, -50.0, 40.0), **{"goes:image-type": "MESOSCALE"}),
        goes(2, day=DAY.replace(year=2024), bbox=(-90.0, 30.0, -80.0, 60.0), instruments=["abi", "glm"]),
    )
    collection = _collection(root)
    assert collection["extent"]["spatial"]["bbox"] == [[-120.0, 5.0, -50.0, 60.0]]
    assert collection["extent"]["temporal"]["interval"] == [["2024-12-03T00:00:10Z", "2025-12-03T00:00:07.500000Z"]]
    assert collection["summaries"]["goes:image-type"] == ["CONUS", "MESOSCALE"]
    assert collection["summaries"]["instruments"] == ["abi", "glm"]
    assert "assets" not in collection  # no GeoParquet mirror
    # An update that removes the extremes shrinks the extent and the summary.
    register(
        goes(1, bbox=(-100.0, 20.0, -70.0, 40.0), **{"goes:image-type": "CONUS"}),
        goes(2, day=DAY.replace(year=2024), bbox=(-90.0, 30.0, -80.0, 45.0)),
    )
    collection = _collection(root)
    assert collection["extent"]["spatial"]["bbox"] == [[-120.0, 10.0, -60.0, 50.0]]
    assert collection["summaries"]["goes:image-type"] == ["CONUS"]
    assert collection["summaries"]["instruments"] == ["abi"]
    assert collection["license"] == "CC0-1.0"
    assert collection["providers"][0]["name"] == "NOAA NESDIS"


@pytest.mark.parametrize(
    ("boxes", "west_east"),
    [
        ([(175.62, -89.62)], (175.62, -89.62)),
        ([(175.0, -90.0), (-150.0, -60.0), (170.0, 172.0)], (170.0, -60.0)),
        ([(175.0, -90.0), (-20.0, 20.0)], (-180.0, 180.0)),
        ([(175.0, 10.0)], (-180.0, 180.0)),
        ([(-20.0, 20.0), (100.0, 150.0)], (-20.0, 150.0)),
    ],
)
def test_an_extent_over_the_antimeridian_is_minimal_unless_an_item_crosses_the_prime_meridian(
    register: Register, root: Path, boxes: list[tuple[float, float]], west_east: tuple[float, float]
) -> None:
    results = register(*(goes(number, bbox=(west, 0.0, east, 10.0)) for number, (west, east) in enumerate(boxes)))
    assert statuses(results) == [CREATED] * len(boxes)
    ((west, _, east, _),) = _collection(root)["extent"]["spatial"]["bbox"]
    assert (west, east) == pytest.approx(west_east)


def test_an_item_without_geometry_is_listed_and_does_not_change_the_extent(register: Register, root: Path) -> None:
    nowhere = with_metadata(goes(1), geometry=None, bbox=None)
    assert statuses(register(nowhere)) == [CREATED]
    assert _collection(root)["extent"]["spatial"]["bbox"] == [[-180.0, -90.0, 180.0, 90.0]]
    register(goes(0, bbox=(-120.0, 10.0, -60.0, 50.0)))
    assert _collection(root)["extent"]["spatial"]["bbox"] == [[-120.0, 10.0, -60.0, 50.0]]
    trees.assert_consistent(root)


def test_a_batch_has_only_one_dataset_and_can_be_empty(catalog: Catalog, register: Register, root: Path) -> None:
    with pytest.raises(ValueError, match="one dataset"):
        register(goes(0), hrrr())
    assert catalog.register([], fence=open_fence) == []
    assert not root.exists()


def _collection(root: Path) -> Mapping[str, Any]:
    return trees.walk(root)["goes-abi/collection.json"]


DATASET = "goes-abi"


def test_results_are_verified_against_the_index(catalog: Catalog, register: Register) -> None:
    first, second = goes(0, created=9), goes(1)
    created = register(first, second)
    unchanged = register(first, second)
    overtaken = register(goes(0, created=1))
    assert overtaken[0].superseded
    catalog.verify(DATASET, [*created, *unchanged, *overtaken])
    # Another writer replaced an Item meanwhile.
    (newer,) = register(goes(1, platform="goes-18"))
    assert newer.write_status is StacStatus.UPDATED
    catalog.verify(DATASET, created)


def test_lost_or_truncated_items_and_an_unreachable_folder_are_reported(
    catalog: Catalog, register: Register, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = register(goes(0), goes(1))
    path = root / str(results[1].item_href)
    whole = path.read_bytes()
    for truncated in (whole[:-9], None):
        path.unlink() if truncated is None else path.write_bytes(truncated)
        with pytest.raises(DependencyUnavailableError, match=str(results[1].item_href)):
            catalog.verify(DATASET, results)
    silent = Mock(side_effect=PublishError(StacIssue.IO_ERROR, "the share is gone"))
    monkeypatch.setattr(FolderPublisher, "read", silent)
    with pytest.raises(DependencyUnavailableError, match="the share is gone") as raised:
        catalog.verify(DATASET, results)
    assert raised.value.next_step


def test_an_item_missing_in_the_index_is_reported_and_the_index_stays_unchanged(
    database: Database, catalog: Catalog, register: Register
) -> None:
    (result,) = register(goes(0))
    stranger = replace(result, item_id="nobody", content_sha256="0" * 64)
    before = every_row(database)["catalog_collections"]
    with pytest.raises(DependencyUnavailableError, match=r"observed goes-abi.*expected content 0"):
        catalog.verify("hrrr", [stranger])
    assert every_row(database)["catalog_collections"] == before


def test_a_verification_waits_for_the_promotion_of_another_writer(
    catalog: Catalog, register: Register, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are promoted before the index is written; without the wait the batch would fail."""
    results = register(goes(0))
    path = str(results[0].item_href)
    whole = (root / path).read_bytes()
    readings = [{path: whole.replace(b"goes-19", b"goes-18")}, {path: whole}]
    monkeypatch.setattr(FolderPublisher, "read", Mock(side_effect=readings))
    catalog.verify(DATASET, results)


BUCKET = "catalog-bucket"


@pytest.fixture
def s3_url(aws: EmbeddedCloud, tmp_path: Path) -> str:
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture(params=["folder", "s3"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> Publisher:
    if request.param == "folder":
        return open_publisher(str(tmp_path / "catalog"))
    return open_publisher(request.getfixturevalue("s3_url"))


def test_the_url_of_the_catalog_determines_the_publisher(tmp_path: Path) -> None:
    assert isinstance(open_publisher(str(tmp_path)), FolderPublisher)
    assert isinstance(open_publisher("s3://bucket/prefix"), ObjectStorePublisher)
    for setting, open_root in (("KFM_CATALOG_URL", open_publisher), ("KFM_LINEAGE_URL", LineageFiles.open)):
        with pytest.raises(ConfigurationError, match=rf"{setting}.*observed ftp://host/x"):
            open_root("ftp://host/x")


def test_staged_files_are_invisible_until_promoted_and_are_removed_if_not_promoted(publisher: Publisher) -> None:
    with publisher.staging({"a/one.json": b"1", "a/two.json": b"2"}) as staged:
        assert publisher.read(["a/one.json", "a/two.json"]) == {}
        assert staged.promote(["a/one.json"]) == {}
        staged.settle()
        assert publisher.read(["a/one.json", "a/two.json"]) == {"a/one.json": b"1"}
    assert publisher.read(["a/one.json", "a/two.json"]) == {"a/one.json": b"1"}
    with publisher.staging({"a/one.json": b"new"}) as staged:
        assert publisher.read(["a/one.json"]) == {"a/one.json": b"1"}
        staged.promote(["a/one.json"])
    assert publisher.read(["a/one.json"]) == {"a/one.json": b"new"}


def test_a_missing_bucket_fails_the_units_and_not_the_batch(
    s3_url: str, contracts: ContractRegistry, tmp_path: Path
) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    absent = Catalog(database, open_publisher("s3://no-such-bucket/catalog"), contracts)
    batch = candidates(contracts, [goes(0), goes(1)])
    assert codes(absent.register(batch, fence=open_fence)) == [StacIssue.STORAGE_UNAVAILABLE] * 2
    present = Catalog(database, open_publisher(s3_url), contracts)
    assert statuses(present.register(batch, fence=open_fence)) == [CREATED] * 2
    # The existing files cannot be checked any more, so the status must not be a no-op.
    assert statuses(absent.register(batch, fence=open_fence)) == [FAILED] * 2
    database.dispose()


def test_files_are_durable_before_they_are_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files are synced by one syncfs if the system has it, few files one by one."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append("fsync"))
    monkeypatch.setattr(publisher_module, "_syncfs", lambda: lambda _: synced.append("syncfs"))
    many = {str(number): b"x" for number in range(FSYNC_LIMIT + 1)}
    folder = FolderPublisher(tmp_path)
    with folder.staging({"one": b"x"}):
        assert synced == ["fsync"]
    synced.clear()
    with folder.staging(many):
        assert synced == ["syncfs"]
    synced.clear()
    monkeypatch.setattr(publisher_module, "_syncfs", lambda: None)
    with folder.staging(many):
        assert synced == ["fsync"] * len(many)
    monkeypatch.setattr(publisher_module, "_syncfs", lambda: lambda _: -1)
    with pytest.raises(PublishError), folder.staging(many):
        pass


def test_an_abandoned_staging_folder_is_removed_and_an_active_staging_folder_is_not(tmp_path: Path) -> None:
    leftover = tmp_path / STAGING / "left"
    leftover.mkdir(parents=True)
    (leftover / "0").write_bytes(b"x")
    one, two = FolderPublisher(tmp_path), FolderPublisher(tmp_path)
    with one.staging({"a": b"1"}) as first:
        with two.staging({"b": b"2"}) as second:
            assert not leftover.exists()
            assert first.promote(["a"]) == second.promote(["b"]) == {}
        assert len(list((tmp_path / STAGING).iterdir())) == 1
    assert not list((tmp_path / STAGING).iterdir())
    # A root that cannot be written is an I/O error.
    (tmp_path / "file").write_bytes(b"")
    folder = FolderPublisher(tmp_path / "file")
    with pytest.raises(PublishError) as refused, folder.staging({"a": b"1"}):
        pass
    assert refused.value.code is StacIssue.IO_ERROR
    assert str(tmp_path) not in str(refused.value)
    assert folder.read(["a"]) == {}
