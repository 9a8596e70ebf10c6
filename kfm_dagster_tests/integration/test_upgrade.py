"""An upgrade while a deployment works: its runs end or are made good, and neither release opens the other's schema."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.errors import SchemaVersionError
from kfm_dagster.ingest.nodes import StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.storage import database as module
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roles import grant_deployment_role
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    CrashError,
    Failpoint,
    assert_conserved,
    deliver,
    missing,
    notify,
    notify_each,
    put,
    run_pending,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.storage.test_schema import second_release
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

REGISTERED = Failpoint(operator=StacRegister.operator, point="committed")
Upgrade = Callable[[], None]


@pytest.fixture
def upgrade(request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Bring the database to the schema of a release after this one, as its `kfm init` does under the owner."""
    owner_url = database_url
    if not database_url.startswith("sqlite"):
        owner_url = str(request.getfixturevalue("postgres_url"))

    def run() -> None:
        with newer(monkeypatch):
            database = Database.open(owner_url)
            assert database.schema() == 2
            if database.dialect == "postgresql":
                role = str(sa.make_url(database_url).username)
                grant_deployment_role(database, role)
                with database.transaction() as tx:  # which that release's sql/queries/roles.sql has
                    tx.connection.exec_driver_sql(f"GRANT SELECT, INSERT ON second_things TO {role}")
            database.dispose()

    return run


@contextmanager
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is opened here is opened by the release after this one."""
    with monkeypatch.context() as patched:
        patched.setattr(module, "migrations", second_release)
        yield


def recorded(pipeline: Pipeline) -> dict[str, list[Any]]:
    """Every row of the ledger's history, and of the records that no run will touch again."""
    with pipeline.database.snapshot() as tx:
        return {
            "transitions": tx.connection.exec_driver_sql(
                "SELECT * FROM nodd_wal_transitions ORDER BY wal_id, version"
            ).all(),
            "ended": tx.connection.exec_driver_sql(
                "SELECT * FROM nodd_wal_records WHERE status IN ('succeeded', 'quarantined') ORDER BY wal_id"
            ).all(),
        }


def in_every_status(pipeline: Pipeline) -> None:
    """Units that succeeded, failed and are in quarantine, three that a run died of, and three that wait."""
    found = volumes(10)
    deliver(pipeline, *found[:2], truncated(found[2]))
    work_until_done(pipeline)
    notify(pipeline, missing(found[3]))
    run_pending(pipeline, "fails")
    deliver(pipeline, *found[4:7])
    with pytest.raises(CrashError):
        run_pending(pipeline, "dies", dies_at=REGISTERED)
    put(pipeline.settings.object_root, found[7:])
    notify_each(pipeline, *found[7:])
    assert traces.statuses(pipeline) == {
        "succeeded": 2, "quarantined": 1, "failed": 1, "in_progress": 3, "pending": 3,
    }  # fmt: skip


@pytest.mark.clause("WAL-15", "BEY-03")
def test_runs_of_the_older_release_end_while_it_is_upgraded_and_what_died_is_made_good_by_the_newer(
    pipeline: Pipeline,
    database_url: str,
    make_pipeline: Callable[..., Pipeline],
    upgrade: Upgrade,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_every_status(pipeline)
    before = recorded(pipeline)
    claimed = threading.Event()

    def work() -> None:
        for number in range(3):
            run_pending(pipeline, f"old-{number}", limit=1, seen=lambda _: claimed.set())

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert claimed.wait(HANG_SECONDS)
        upgrade()
        working.result(HANG_SECONDS)
    assert traces.statuses(pipeline) == {"succeeded": 5, "quarantined": 1, "failed": 1, "in_progress": 3}
    after = recorded(pipeline)
    assert [row for table in before for row in before[table] if row not in after[table]] == []

    # Nothing of the older release begins any more.
    with pytest.raises(SchemaVersionError, match=r"newer schema.*observed schema 2; expected at most 1; next: run"):
        make_pipeline(url=database_url)
    with newer(monkeypatch):
        upgraded = make_pipeline(url=database_url)
        own_tx(upgraded.ledger).release_lost(run_ids=["dies"])
        work_until_done(upgraded)
    assert traces.statuses(upgraded) == {"succeeded": 8, "quarantined": 2}
    assert len(traces.catalog_items(upgraded)) == 8
    assert_conserved(upgraded)


@pytest.mark.clause("WAL-15")
@pytest.mark.parametrize("read_only", [False, True])
def test_a_release_before_its_kfm_init_is_refused_and_the_older_one_works_on(
    pipeline: Pipeline, database_url: str, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    in_every_status(pipeline)
    # On SQLite there is no owner beside the deployment: what writes brings the file up to date itself.
    if read_only or not database_url.startswith("sqlite"):
        with (
            newer(monkeypatch),
            pytest.raises(SchemaVersionError, match=r"older schema.*next: .*run kfm init") as refused,
        ):
            Database.open(database_url, read_only=read_only)
        assert "\n" not in str(refused.value)
    run_pending(pipeline, "old")
    assert traces.statuses(pipeline)["succeeded"] == 5
