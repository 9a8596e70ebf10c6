"""Fixtures of the catalog's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folder of the catalog."""
    return tmp_path / "catalog"


@pytest.fixture
def open_catalog(database: Database, root: Path, contracts: ContractRegistry) -> Callable[[], Catalog]:
    """Another process's view of the same catalog, with pages of three Items."""
    return lambda: Catalog(database, FolderPublisher(root), contracts, page_size=3)


@pytest.fixture
def catalog(open_catalog: Callable[[], Catalog]) -> Catalog:
    """A catalog in a folder, once with SQLite and once with PostgreSQL."""
    return open_catalog()
