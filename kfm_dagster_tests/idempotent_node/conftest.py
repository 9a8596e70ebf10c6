"""The counting node over two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster_tests.idempotent_node.counting import CountLines


@pytest.fixture
def node(tmp_path: Path) -> CountLines:
    """Return a node over two files, before its first run."""
    files = [tmp_path / "b.txt", tmp_path / "a.txt"]
    for number, file in enumerate(files, start=1):
        file.write_text("line\n" * number)
    return CountLines(files=files, folder=tmp_path / "out")
