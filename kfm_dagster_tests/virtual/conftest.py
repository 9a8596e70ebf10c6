from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.virtual import VirtualZarr


@pytest.fixture
def contract(contracts: ContractRegistry) -> DatasetContract:
    return contracts["goes-abi"]


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """The folder that stands for the provider's buckets."""
    return tmp_path / "objects"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where virtual stores are published."""
    return tmp_path / "virtual"


@pytest.fixture
def follower(objects: Path, place: Path) -> VirtualZarr:
    return VirtualZarr(FolderPublisher(place), ObjectStores(object_root=objects))
