"""Dagster's run storage, found as `dagster.yaml` configures it and read without Dagster."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml
from dagster._core.storage.runs.schema import RunsTable, RunStorageSqlMetadata, RunTagsTable

from kfm_dagster.ingest.reexecutions import Reexecutions

ROOT, RUN = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"


def filled(url: str) -> None:
    """Dagster's own tables, with a re-execution that has begun."""
    engine = sa.create_engine(url)
    RunStorageSqlMetadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(RunsTable.insert().values(run_id=RUN, start_time=1767225600.0))
        connection.execute(RunTagsTable.insert().values(run_id=RUN, key="dagster/root_run_id", value=ROOT))
    engine.dispose()


@pytest.mark.parametrize("place", ["sqlite", "sqlite elsewhere", "postgres_url", "postgres_db"])
def test_reexecutions_are_found_where_dagster_keeps_its_runs(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storage: dict[str, object] = {}
    environment: dict[str, str] = {}
    folder = tmp_path / ("elsewhere" if place == "sqlite elsewhere" else "")
    if place.startswith("sqlite"):
        (folder / "history").mkdir(parents=True)
        filled(f"sqlite:///{folder / 'history' / 'runs.db'}")
        storage = {"sqlite": {"base_dir": str(folder)}} if folder != tmp_path else {}
    else:
        url = sa.make_url(request.getfixturevalue("postgres_url"))
        filled(url.render_as_string(hide_password=False))
        bare = url.set(drivername="postgresql").render_as_string(hide_password=False)
        environment = {"DAGSTER_PG": bare, "DAGSTER_PG_USER": str(url.username)}
        parts = {
            "hostname": url.host or url.query["host"],
            "port": url.port,
            "db_name": url.database,
            "password": url.password,
        }
        chosen = {"postgres_db": {**parts, "username": {"env": "DAGSTER_PG_USER"}}}
        storage = {"postgres": chosen if place == "postgres_db" else {"postgres_url": {"env": "DAGSTER_PG"}}}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"storage": storage} if storage else {}))
    reader = Reexecutions(tmp_path, environment=environment)
    [found] = reader.of(ROOT)
    assert (found.run_id, found.root_run_id, found.ended_at) == (RUN, ROOT, None)
    assert found.started_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert list(reader.beginning(RUN[:8], limit=5)) == [found]
    assert list(reader.beginning("33333333", limit=5)) == []


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
    assert list(Reexecutions(tmp_path, environment={}).of(ROOT)) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_storage_that_does_not_answer_takes_nothing_from_the_account(tmp_path: Path) -> None:
    url = "postgresql://kfm@127.0.0.1:1/dagster"
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"storage": {"postgres": {"postgres_url": url}}}))
    assert list(Reexecutions(tmp_path, environment={}).of(ROOT)) == []
