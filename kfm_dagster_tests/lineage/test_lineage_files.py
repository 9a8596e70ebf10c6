"""Lineage files in a folder and in a bucket: one behaviour."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.lineage.files import STORE_ERRORS, BucketFiles, FolderFiles, LineageFiles, open_files

HREF = "prov/goes-abi/2025-12-03/a.jsonld"


@pytest.fixture(params=["folder", "bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LineageFiles:
    return FolderFiles(tmp_path / "lineage") if request.param == "folder" else BucketFiles(MemoryStore())


def test_a_staged_file_is_read_only_once_published(files: LineageFiles) -> None:
    assert list(files.staged()) == []
    files.stage("a", b"first")
    files.stage("a", b"content")
    assert [(name, age < 60) for name, age in files.staged()] == [("a", True)]
    with pytest.raises(STORE_ERRORS):
        files.read(HREF)
    assert files.publish("a", HREF)
    assert files.read(HREF) == b"content"
    assert list(files.staged()) == []


def test_publishing_again_changes_nothing_and_a_lost_file_is_noticed(files: LineageFiles) -> None:
    files.stage("a", b"content")
    assert files.publish("a", HREF)
    assert files.publish("a", HREF)
    assert files.read(HREF) == b"content"
    assert not files.publish("b", "prov/other.jsonld")


def test_discarding_is_repeatable(files: LineageFiles) -> None:
    files.stage("a", b"content")
    files.discard("a")
    files.discard("a")
    assert list(files.staged()) == []


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    assert isinstance(open_files(str(tmp_path)), FolderFiles)
    with pytest.raises(ConfigurationError, match="ftp://"):
        open_files("ftp://somewhere")
