"""The demo refuses the folder of another deployment before it publishes anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfm_dagster.demo.run import run_demo
from kfm_dagster.errors import ForeignRootError
from kfm_dagster.storage.roots import MARKER


@pytest.mark.clause("SEC-11")
def test_a_folder_of_another_deployment_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    mark = tmp_path / "catalog" / MARKER
    mark.parent.mkdir()
    mark.write_text(json.dumps({"deployment_id": "another"}))
    lines: list[str] = []
    with pytest.raises(ForeignRootError):
        run_demo(tmp_path, objects=None, timeout_seconds=60, report=lambda _: None, say=lines.append)
    assert [line for line in lines if line.startswith("publishing")] == []
    assert list(mark.parent.iterdir()) == [mark]
