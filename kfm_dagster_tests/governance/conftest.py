"""Fixtures of the governance tests: the command line over a ledger, once on SQLite and once on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster_tests.commands import Call, caller
from kfm_dagster_tests.no_settings import unset_settings


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
