"""The counting node over two files, and the store of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.idempotent_node.counting import CountLines, open_nodes


@pytest.fixture
def node(tmp_path: Path) -> CountLines:
    """Return a node over two files, before its first run."""
    files = [tmp_path / "b.txt", tmp_path / "a.txt"]
    for number, file in enumerate(files, start=1):
        file.write_text("line\n" * number)
    return CountLines(files=files, folder=tmp_path / "out")


@pytest.fixture
def nodes(database: Database) -> IdempotentNodes:
    return open_nodes(database)
