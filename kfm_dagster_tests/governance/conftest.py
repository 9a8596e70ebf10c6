"""Fixtures of the governance tests: the command line over a ledger, once on SQLite and once on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.cli.main import main
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.no_settings import unset_settings


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Call = Callable[..., Answer]


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

    def run(*arguments: str) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Answer(code=ended.value.code, out=shown.out, err=shown.err)

    return run


def every_row(database: Database) -> dict[str, list[str]]:
    """Every row of every table, in an order of its own."""
    with database.engine.begin() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        return {
            name: sorted(str(tuple(row)) for row in connection.exec_driver_sql(f'SELECT * FROM "{name}"'))
            for name in names
        }
