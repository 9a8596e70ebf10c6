"""Lineage files in a folder and in a bucket: one behaviour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.lineage.batches import (
    LEFTOVER_SECONDS,
    STORE_ERRORS,
    BucketFiles,
    FolderFiles,
    LineageFiles,
    open_files,
)

HREF = "prov/goes-abi/2025-12-03/a.jsonld"


@pytest.fixture(params=["folder", "bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LineageFiles:
    return FolderFiles(tmp_path / "lineage") if request.param == "folder" else BucketFiles(MemoryStore())


def test_publishing_again_changes_nothing(files: LineageFiles) -> None:
    with pytest.raises(STORE_ERRORS):
        files.read(HREF)
    for _ in range(2):
        files.publish(HREF, b"content")
        assert files.read(HREF) == b"content"


def test_a_file_that_cannot_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "prov").write_text("a file where a folder has to be")
    files = open_files(str(tmp_path))
    assert isinstance(files, FolderFiles)
    with pytest.raises(OSError, match="prov"):
        files.publish(HREF, b"content")
    assert list((tmp_path / ".staging").iterdir()) == []
    with pytest.raises(ConfigurationError, match="ftp://"):
        open_files("ftp://somewhere")


def test_files_that_dead_processes_left_unfinished_are_removed_by_age(tmp_path: Path) -> None:
    staging = tmp_path / ".staging"
    staging.mkdir()
    old, young, foreign = (staging / name for name in ("old.partial", "young.partial", "of-an-earlier-release"))
    for path in (old, young, foreign):
        path.write_bytes(b"left by a crash")
    long_ago = young.stat().st_mtime - LEFTOVER_SECONDS - 60
    for path in (old, foreign):
        os.utime(path, (long_ago, long_ago))
    FolderFiles(tmp_path).publish(HREF, b"content")
    assert sorted(staging.iterdir()) == [foreign, young]
