"""Fixtures that every test may ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry

SHARED_DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real NODD objects with reference answers; tests that need it are skipped where it is not."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the folder of real NODD objects (../shared/data) is not beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def reference(shared_data: Path) -> dict[str, Any]:
    """Answers of independent readers, by path below the data folder."""
    return json.loads((shared_data / "reference.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def contracts() -> ContractRegistry:
    """The built-in dataset contracts."""
    return ContractRegistry.load()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh KFM_HOME."""
    monkeypatch.setenv("KFM_HOME", str(tmp_path))
    return tmp_path
