"""Publishers: what a reader can see at which moment, in folders and in S3."""

from __future__ import annotations

import json
import os
from pathlib import Path

import boto3
import pytest

from kfm_dagster.catalog import publisher as publisher_module
from kfm_dagster.catalog.publisher import (
    FSYNC_LIMIT,
    STAGING,
    FolderPublisher,
    ObjectStorePublisher,
    Publisher,
    PublishError,
    open_publisher,
)
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import StacStatus
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.envelopes import candidates, goes

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


def test_the_url_chooses_the_publisher(tmp_path: Path) -> None:
    assert isinstance(open_publisher(str(tmp_path)), FolderPublisher)
    assert isinstance(open_publisher("s3://bucket/prefix"), ObjectStorePublisher)
    with pytest.raises(ConfigurationError, match=r"KFM_CATALOG_URL.*observed ftp://host/x"):
        open_publisher("ftp://host/x")


def test_staged_files_are_invisible_until_promoted_and_gone_if_not(publisher: Publisher) -> None:
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


@pytest.mark.clause("OPR-08", "OPR-09")
def test_a_catalog_in_a_bucket_behaves_like_one_in_a_folder(
    s3_url: str, contracts: ContractRegistry, tmp_path: Path
) -> None:
    trees = []
    for name, target in (("folder", str(tmp_path / "catalog")), ("s3", s3_url)):
        database = Database.open(f"sqlite:///{tmp_path / name}.db")
        catalog = Catalog(database, open_publisher(target), contracts, page_size=3)
        statuses: list[StacStatus] = []
        for batch in ([goes(number) for number in range(5)], [goes(0), goes(1, platform="goes-18"), goes(9)]):
            results = catalog.register(candidates(contracts, batch), fence=open_fence)
            statuses += [result.write_status for result in results]
        database.dispose()
        again = [StacStatus.NO_OP, StacStatus.UPDATED, StacStatus.CREATED]
        assert statuses == [*[StacStatus.CREATED] * 5, *again]
        trees.append(_folder(tmp_path / "catalog") if name == "folder" else _bucket(s3_url))
    assert trees[0] == trees[1]
    assert all(json.loads(content) for content in trees[1].values())


def test_a_bucket_that_is_not_there_fails_the_units_and_not_the_batch(
    s3_url: str, contracts: ContractRegistry, tmp_path: Path
) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    absent = Catalog(database, open_publisher("s3://no-such-bucket/catalog"), contracts)
    batch = candidates(contracts, [goes(0), goes(1)])
    for result in absent.register(batch, fence=open_fence):
        assert result.write_status is StacStatus.FAILED
        assert result.issues[0].code == StacIssue.STORAGE_UNAVAILABLE
    present = Catalog(database, open_publisher(s3_url), contracts)
    assert [result.write_status for result in present.register(batch, fence=open_fence)] == [StacStatus.CREATED] * 2
    # What stands can no longer be looked at: that is no reason to call it a no-op.
    assert {result.write_status for result in absent.register(batch, fence=open_fence)} == {StacStatus.FAILED}
    database.dispose()


def test_files_are_durable_before_they_are_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files are synced one by one, many by one syncfs, and without syncfs one by one again."""
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


def test_a_leftover_is_removed_and_a_living_stage_is_not(tmp_path: Path) -> None:
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


def _folder(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and STAGING not in path.parts
    }


def _bucket(url: str) -> dict[str, bytes]:
    prefix = url.removeprefix(f"s3://{BUCKET}/") + "/"
    client = boto3.client("s3")
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
    return {
        entry["Key"].removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()
        for entry in listed
    }
