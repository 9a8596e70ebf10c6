"""Old Dagster runs are deleted with their events and logs, on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest

from kfm_dagster.defs import run_storage
from kfm_dagster.defs.instance_storage import opened_instance, prepare
from kfm_dagster.defs.run_storage import OldRuns, newest_run
from kfm_dagster.deployment.local import dagster_yaml_for
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.integration.chain import CrashError
from kfm_dagster_tests.ledger.bench import Bench, make_bench

pytestmark = pytest.mark.clause("BEY-10")

DAYS = ("2025-12-03", "2025-12-04")
PARTITIONS = dg.StaticPartitionsDefinition(list(DAYS))
FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""A time after the end of every run."""


@dg.asset(partitions_def=PARTITIONS)
def granules() -> None:
    """An asset of a day."""


@dg.asset(partitions_def=PARTITIONS)
def footprints() -> None:
    """Another asset of the same day."""


BOTH = [granules, footprints]
Ran = Callable[..., str]


@pytest.fixture(params=["sqlite", "postgresql"])
def instance(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dg.DagsterInstance]:
    """Open an instance as in a deployment."""
    home = tmp_path / "dagster"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    if request.param == "postgresql":
        monkeypatch.setenv("KFM_DAGSTER_DSN", request.getfixturevalue("empty_postgres_url"))
    prepare(home, dagster_yaml=dagster_yaml_for(os.environ, home))
    with opened_instance(home) as opened:
        yield opened


@pytest.fixture
def bench(tmp_path: Path, contracts: Any) -> Iterator[Bench]:
    """Open the ledger."""
    database = Database.open(migrated_sqlite(tmp_path / "kfm.db"))
    yield make_bench(database, contracts)
    database.dispose()


@pytest.fixture
def ran(instance: dg.DagsterInstance) -> Ran:
    """Return a function that executes a run of a day to its end and returns the run's id."""

    def run(*assets: Any, day: str = DAYS[0]) -> str:
        done = dg.materialize(BOTH, selection=list(assets or BOTH), partition_key=day, instance=instance)
        assert done.success
        return done.run_id

    return run


def removable(instance: dg.DagsterInstance, bench: Bench, before: datetime = FAR) -> set[str]:
    """Return the runs that retention would remove."""
    runs = OldRuns(instance=instance, database=bench.database)
    return {run_id for batch in runs.batches(before) for run_id in batch.removable}


def has_events(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether any event of a run is left; on SQLite events are in a file and in an index."""
    folder = Path(instance.root_directory, "history", "runs")
    if folder.is_dir():
        with closing(sqlite3.connect(folder / "index.db")) as connection:
            [rows] = connection.execute("SELECT count(*) FROM event_logs WHERE run_id = ?", (run_id,)).fetchone()
        return bool(list(folder.glob(f"{run_id}.db*"))) or rows > 0
    return bool(instance.all_logs(run_id))


def remove(instance: dg.DagsterInstance, bench: Bench) -> None:
    runs = OldRuns(instance=instance, database=bench.database)
    for batch in runs.batches(FAR):
        runs.remove(batch)


def test_only_a_run_that_ended_before_the_limit_is_removed(
    instance: dg.DagsterInstance, bench: Bench, ran: Ran
) -> None:
    first, _ = ran(), ran()
    [record] = instance.get_run_records(dg.RunsFilter(run_ids=[first]))
    ended = datetime.fromtimestamp(record.end_time, UTC)
    assert removable(instance, bench, ended) == set()
    assert removable(instance, bench, ended + timedelta(milliseconds=1)) == {first}


def test_a_run_is_removed_with_events_and_logs_unless_it_is_the_newest_of_its_day(
    instance: dg.DagsterInstance, bench: Bench, ran: Ran, tmp_path: Path
) -> None:
    first, second, other = ran(), ran(), ran(day=DAYS[1])
    printed = tmp_path / "dagster" / "storage" / first
    assert printed.is_dir()
    remove(instance, bench)
    assert {run.run_id for run in instance.get_runs()} == {second, other}
    assert not has_events(instance, first)
    assert not printed.exists()
    assert has_events(instance, second)
    for asset in BOTH:
        assert instance.get_materialized_partitions(asset.key) == set(DAYS)
    remove(instance, bench)
    assert {run.run_id for run in instance.get_runs()} == {second, other}


def test_the_run_of_an_asset_s_newest_materialisation_is_kept(
    instance: dg.DagsterInstance, bench: Bench, ran: Ran
) -> None:
    whole, footprint, granule = ran(), ran(footprints), ran(granules)
    assert removable(instance, bench) == {whole}
    remove(instance, bench)
    assert {run.run_id for run in instance.get_runs()} == {footprint, granule}


def test_the_newest_run_of_a_day_is_kept_even_if_it_failed(
    instance: dg.DagsterInstance, bench: Bench, ran: Ran
) -> None:
    ran()
    tags = {"dagster/partition": DAYS[0]}
    instance.add_run(dg.DagsterRun(job_name="ingest", tags=tags, status=dg.DagsterRunStatus.FAILURE))
    assert removable(instance, bench) == set()


@pytest.mark.parametrize("status", ["pending", "in_progress", "failed"])
def test_a_run_of_an_unsettled_unit_is_kept(instance: dg.DagsterInstance, bench: Bench, ran: Ran, status: str) -> None:
    first, _ = ran(), ran()
    unit = envelope()
    [claimed] = bench.claimed(unit, run_id=first)
    if status != "in_progress":
        bench.ledger.settle([failed(claimed)], run_id=first)
    if status == "pending":
        bench.clock.advance(10**6)
        bench.ledger.retry_due(now=bench.clock(), limit=1)
    [record] = bench.ledger.find()
    assert (record.status, record.ingest_run_id) == (status, first)
    assert removable(instance, bench) == set()
    if status == "in_progress":
        bench.ledger.settle([finished(claimed)], run_id=first)
        assert removable(instance, bench) == {first}


def test_an_unfinished_run_and_the_run_that_it_repeats_are_kept(
    instance: dg.DagsterInstance, bench: Bench, ran: Ran
) -> None:
    first, second, _ = ran(), ran(), ran()
    tags = {"dagster/root_run_id": first, "dagster/parent_run_id": first}
    again = dg.DagsterRun(
        job_name="ingest", root_run_id=first, parent_run_id=first, tags=tags, status=dg.DagsterRunStatus.STARTED
    )
    instance.add_run(again)
    assert removable(instance, bench) == {second}


def test_an_interrupted_removal_is_completed_by_the_next_removal(
    instance: dg.DagsterInstance, bench: Bench, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = {ran(), ran()}
    last = ran()
    monkeypatch.setattr(run_storage, "BATCH", 1)
    with monkeypatch.context() as dying:
        dying.setattr(type(instance.run_storage), "delete_run", Mock(side_effect=CrashError))
        with pytest.raises(CrashError):
            remove(instance, bench)
    assert interrupted <= {run.run_id for run in instance.get_runs()}
    remove(instance, bench)
    assert {run.run_id for run in instance.get_runs()} == {last}
    assert not any(has_events(instance, run_id) for run_id in interrupted)


def test_the_next_run_of_a_day_has_an_unused_run_key(instance: dg.DagsterInstance, bench: Bench, ran: Ran) -> None:
    """Dagster ignores a used run_key; a count of the day's runs could repeat after a deletion."""
    named = set()
    for _ in range(3):
        named.add(newest_run(instance, DAYS[0]))
        ran()
        remove(instance, bench)
    assert len(named) == 3
