"""Fixtures of the governance tests: the command line over a ledger, once on SQLite and once on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.commands import Call, caller
from kfm_dagster_tests.no_settings import unset_settings


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """Folder in the place of the providers' object stores."""
    folder = tmp_path / "objects"
    folder.mkdir()
    return folder


@pytest.fixture
def deployment(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A deployment that the environment names, opened for looking into it."""
    unset_settings(monkeypatch)
    monkeypatch.setenv("KFM_SNS_VERIFY", "off")  # what these tests announce is made by hand
    (tmp_path / "objects").mkdir()
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KFM_WAL_DSN", database_url)
    monkeypatch.setenv("KFM_OBJECT_ROOT", str(tmp_path / "objects"))
    monkeypatch.setenv("KFM_ACTOR", "jane")
    opened = Pipeline.open(Settings.load())
    yield opened
    opened.close()


@pytest.fixture
def call(deployment: Pipeline, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run `kfm ...` in this process over the deployment."""
    return caller(capfd)


def every_row(database: Database) -> dict[str, list[str]]:
    """Every row of every table, in an order of its own."""
    with database.engine.begin() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        return {
            name: sorted(str(tuple(row)) for row in connection.exec_driver_sql(f'SELECT * FROM "{name}"'))
            for name in names
        }
