"""Re-executions, asked of a real Dagster instance wherever `dagster.yaml` puts its runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
import yaml

from kfm_dagster.defs import reexecutions
from kfm_dagster.defs.instance_storage import prepare
from kfm_dagster.defs.reexecutions import InstanceReexecutions
from kfm_dagster.deployment.local import default_dagster_yaml
from kfm_dagster.errors import DatabaseUnavailableError

ROOTS = ["11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"]
RUNS = [f"22222222-0000-4000-8000-00000000000{number}" for number in (1, 2, 3)]
OWN = "the package's"


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


@pytest.fixture(params=["sqlite", "sqlite elsewhere", "postgres_url", "postgres_db", OWN, f"{OWN} on postgresql"])
def home(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DAGSTER_HOME for each place that can be named."""
    place, config = request.param, ""
    if place == "sqlite elsewhere":
        monkeypatch.setenv("DAGSTER_ELSEWHERE", str(tmp_path / "elsewhere"))
        config = yaml.safe_dump({"storage": {"sqlite": {"base_dir": {"env": "DAGSTER_ELSEWHERE"}}}})
    elif place.startswith("postgres"):
        text = request.getfixturevalue("empty_postgres_url")
        url = sa.make_url(text)
        monkeypatch.setenv("DAGSTER_PG", text)
        monkeypatch.setenv("DAGSTER_PG_USER", str(url.username))
        parts = {
            "scheme": "postgresql+psycopg2",
            "hostname": url.host or "",
            "params": {} if url.host else dict(url.query),
            "port": url.port or 5432,
            "db_name": url.database,
            "password": url.password or "",
            "username": {"env": "DAGSTER_PG_USER"},
        }
        chosen = {"postgres_db": parts} if place == "postgres_db" else {"postgres_url": {"env": "DAGSTER_PG"}}
        config = yaml.safe_dump({"storage": {"postgres": chosen}})
    elif place.startswith(OWN):
        config = default_dagster_yaml()
        if place != OWN:
            monkeypatch.setenv("KFM_DAGSTER_DSN", request.getfixturevalue("empty_postgres_url"))
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(config)
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
    assert begun.ended_at is not None
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


@pytest.mark.parametrize("home", ["postgres_url"], indirect=True)
def test_where_dagster_has_kept_nothing_yet_asking_makes_no_table(home: Path, empty_postgres_url: str) -> None:
    assert list(InstanceReexecutions(home).of(ROOTS[0])) == []
    engine = sa.create_engine(empty_postgres_url, poolclass=sa.NullPool)
    assert sa.inspect(engine).get_table_names() == []


@pytest.mark.parametrize("home", ["sqlite", "postgres_url"], indirect=True)
def test_runs_that_cannot_be_read_are_not_taken_for_none(home: Path, request: pytest.FixtureRequest) -> None:
    prepare(home)
    filled(home)
    on_server = "postgres" in (home / "dagster.yaml").read_text()
    url = request.getfixturevalue("empty_postgres_url") if on_server else f"sqlite:///{home}/history/runs.db"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE run_tags RENAME COLUMN value TO worth")
    asked = InstanceReexecutions(home)
    for ask in (lambda: asked.of(ROOTS[0]), lambda: asked.beginning(RUNS[0][:8], limit=5)):
        with pytest.raises(DatabaseUnavailableError, match=r"Dagster's runs cannot be read; observed .*value"):
            ask()


@pytest.mark.parametrize(
    "config",
    [None, "", "a: [", "storage: 7", "storage: {postgres: {postgres_url: {env: NOT_SET}}}", "storage: {postgres: {}}"],
)
def test_without_a_storage_that_can_be_read_there_are_none_and_nothing_is_made(
    config: str | None, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "dagster.yaml").write_text(config)
    before = sorted(tmp_path.rglob("*"))
    assert list(InstanceReexecutions(tmp_path).of(ROOTS[0])) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_storage_that_does_not_answer_takes_nothing_from_the_account(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql+psycopg2://kfm@127.0.0.1:1/dagster"
    storage: dict[str, Any] = {"postgres": {"postgres_url": url}}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"storage": storage}))
    assert list(InstanceReexecutions(tmp_path).of(ROOTS[0])) == []
    assert capfd.readouterr() == ("", "")
