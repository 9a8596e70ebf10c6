"""Fixtures of the lineage's tests: the schemas of documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.storage.database import Database

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = Path(__file__).resolve().parents[2] / "docs" / "spec"


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """Return the project's published facet schemas by `$id`."""
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in SPEC.glob("kfm-*-facet.schema.json")]
    return {schema["$id"]: schema for schema in loaded}


@pytest.fixture(scope="module")
def official(shared_data: Path, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the official schemas and the project's own by `$id`."""
    files = (shared_data / "schemas" / "openlineage").rglob("*.json")
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return {schema["$id"]: schema for schema in loaded} | schemas


@pytest.fixture(scope="module")
def contract(contracts: ContractRegistry) -> DatasetContract:
    return contracts["goes-abi"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lineage"


@pytest.fixture
def lineage(database: Database, root: Path) -> Lineage:
    return Lineage(database, str(root), clock=lambda: NOON)
