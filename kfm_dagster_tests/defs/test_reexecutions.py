"""Re-executions, asked of a real Dagster instance wherever `dagster.yaml` puts its runs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa

from kfm_dagster.defs import reexecutions
from kfm_dagster.defs.instance_storage import prepare
from kfm_dagster.defs.reexecutions import InstanceReexecutions
from kfm_dagster.deployment.local import dagster_yaml_for
from kfm_dagster.errors import DatabaseUnavailableError

ROOTS = ["11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"]
RUNS = [f"22222222-0000-4000-8000-00000000000{number}" for number in (1, 2, 3)]


def filled(home: Path) -> None:
    """Two runs with three re-executions, which were queued against the order of their ids; the last has begun."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for root in ROOTS:
            instance.add_run(dg.DagsterRun(job_name="ingest", run_id=root))
        for run_id, root in zip(RUNS, [ROOTS[0], ROOTS[1], ROOTS[0]], strict=True):
            tags = {"dagster/root_run_id": root, "dagster/parent_run_id": root}
            run = dg.DagsterRun(job_name="ingest", run_id=run_id, root_run_id=root, parent_run_id=root, tags=tags)
            instance.add_run(run)
        instance.report_run_canceling(run)
        instance.report_run_canceled(run)


@pytest.fixture(params=["sqlite", "postgresql"])
def home(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DAGSTER_HOME with the dagster.yaml of its environment, and nothing made yet."""
    if request.param == "postgresql":
        monkeypatch.setenv("KFM_DAGSTER_DSN", request.getfixturevalue("empty_postgres_url"))
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(dagster_yaml_for(os.environ, folder))
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


def test_reexecutions_are_found_where_dagster_keeps_its_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(home)
    filled(home)
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setattr(reexecutions, "ROOTS_ASKED", 1)
    asked = InstanceReexecutions(home)
    first, begun = asked.of(ROOTS[0])
    assert (first.run_id, first.root_run_id, first.started_at, first.ended_at) == (RUNS[0], ROOTS[0], None, None)
    assert (begun.run_id, begun.root_run_id) == (RUNS[2], ROOTS[0])
    assert abs((datetime.now(UTC) - begun.ended_at).total_seconds()) < 600
    assert [one.run_id for one in asked.beginning(RUNS[0][:8], limit=2)] == RUNS[:2]
    assert list(asked.beginning(RUNS[2], limit=5)) == [begun]
    assert list(asked.beginning("33333333", limit=5)) == []
    assert list(asked.beginning(ROOTS[0], limit=5)) == []
    assert list(asked.of(RUNS[0])) == []


def test_where_dagster_has_kept_nothing_yet_asking_makes_nothing(home: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert list(InstanceReexecutions(home).of(ROOTS[0])) == []
    assert sorted(tmp_path.rglob("*")) == before
    if url := os.environ.get("KFM_DAGSTER_DSN"):
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        assert sa.inspect(engine).get_table_names() == []


def test_runs_that_cannot_be_read_are_not_taken_for_none(home: Path) -> None:
    prepare(home)
    filled(home)
    url = os.environ.get("KFM_DAGSTER_DSN") or f"sqlite:///{home}/history/runs.db"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE run_tags RENAME COLUMN value TO worth")
    asked = InstanceReexecutions(home)
    for ask in (lambda: asked.of(ROOTS[0]), lambda: asked.beginning(RUNS[0][:8], limit=5)):
        with pytest.raises(DatabaseUnavailableError, match=r"Dagster's runs cannot be read; observed .*value"):
            ask()


def test_without_a_storage_that_can_be_read_there_are_none_and_nothing_is_made(tmp_path: Path) -> None:
    for config in (None, "", "a: [", "storage: 7", "storage: {postgres: {postgres_url: {env: NOT_SET}}}"):
        if config is not None:
            (tmp_path / "dagster.yaml").write_text(config)
        before = sorted(tmp_path.rglob("*"))
        assert list(InstanceReexecutions(tmp_path).of(ROOTS[0])) == []
        assert sorted(tmp_path.rglob("*")) == before


def test_a_storage_that_does_not_answer_takes_nothing_from_the_account(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_DAGSTER_DSN", "postgresql+psycopg2://kfm@127.0.0.1:1/dagster")
    (tmp_path / "dagster.yaml").write_text(dagster_yaml_for(os.environ, tmp_path))
    assert list(InstanceReexecutions(tmp_path).of(ROOTS[0])) == []
    assert capfd.readouterr() == ("", "")
