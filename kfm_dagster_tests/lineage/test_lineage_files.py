"""Lineage files in a folder; the tests of the publisher check the same for a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.lineage.batches import LineageFiles
from kfm_dagster.storage.publisher import PublishError

HREF = "prov/goes-abi/2025-12-03/a.jsonld"


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    files = LineageFiles.open(str(tmp_path))
    with pytest.raises(PublishError):
        files.read(HREF)
    for _ in range(2):
        files.publish(HREF, b"content")
        assert files.read(HREF) == b"content"


def test_a_file_that_cannot_be_published_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "prov").write_text("a file where a folder has to be")
    with pytest.raises(PublishError):
        LineageFiles.open(str(tmp_path)).publish(HREF, b"content")
    assert list((tmp_path / ".staging").iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"KFM_LINEAGE_URL.*ftp://"):
        LineageFiles.open("ftp://somewhere")
