"""Every kind of run-state store, each empty, with a fresh database."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.run_state.choice import open_run_states
from kfm_dagster.run_state.record import RunState
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.databases import migrated_sqlite

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STORES = ["sqlite", "postgresql", "folder", "s3", "delta", "delta on s3"]


@dataclass
class Setup:
    """A configured store, and the database in whose transactions it writes."""

    database: Database
    configured: str
    branch: str = "release/v11.2"

    def open(self) -> RunStateStore:
        return open_run_states(self.database, configured=self.configured, branch=self.branch, clock=lambda: NOW)

    def put(self, *records: RunState) -> None:
        store = self.open()
        for record in records:
            with self.database.transaction() as tx:
                store.put(record, tx)


@pytest.fixture
def bucket(cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a bucket and set the environment to reach it; a lakeFS repository is reached in the same way."""
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    name = f"kfm-{secrets.token_hex(6)}"
    cloud.client("s3").create_bucket(Bucket=name)
    return name


@pytest.fixture(params=STORES)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """Provide each kind of store in turn."""
    kind = request.param
    url = request.getfixturevalue("postgres_url") if kind == "postgresql" else migrated_sqlite(tmp_path / "kfm.db")
    configured = {"folder": str(tmp_path / "runs"), "delta": f"delta+{tmp_path / 'runs'}"}.get(kind, "")
    if kind.endswith("s3"):
        configured = ("delta+" if kind.startswith("delta") else "") + f"s3://{request.getfixturevalue('bucket')}/base"
    opened = Database.open(url)
    yield Setup(opened, configured)
    opened.dispose()
