"""Stores: the ledger's database, its backups and retention, the files and buckets, and the room on the disks here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from kfm_dagster.addresses import shown
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.retention.policy import RetentionPolicy
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.answering import answering, refuse_unwritable
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores, open_store


def check_database(settings: Settings) -> Iterator[Diagnosis]:
    """Open it as a command that only looks does. Raises KfmError where that cannot be done, in words of its own."""
    if (file := missing_file(settings)) is not None:
        yield fault("there is no ledger yet", observed=file, expected="a database", next_step="run kfm init")
        return
    database = Database.open(settings.database_url, read_only=True)
    try:
        yield ok(f"{shown(settings.database_url)} answers, with schema {database.schema()}")
        if database.dialect == "postgresql":
            yield _role(settings)
        elif settings.env is Environment.PROD:
            yield warning(
                "the ledger is a file of one machine",
                observed=shown(settings.database_url),
                expected="PostgreSQL in prod, which has backups, roles and other machines",
                next_step="set KFM_WAL_DSN to a PostgreSQL database and run kfm init",
            )
    finally:
        database.dispose()


def missing_file(settings: Settings) -> str | None:
    """Return the ledger's file where it is missing: opening the database would make it."""
    url = make_url(settings.database_url)
    is_missing = url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file()
    return str(url.database) if is_missing else None


def _role(settings: Settings) -> Diagnosis:
    own = _row(settings.database_url, "roles.may_migrate")
    if own.may_migrate and settings.env is not Environment.DEV:
        return warning(
            "the deployment works as the owner of the tables, who can alter evidence",
            observed=own.role,
            expected="a role with a deployment's rights (docs/adr/021)",
            next_step="run kfm init --role NAME as the owner, then name that role in KFM_WAL_DSN",
        )
    return ok(f"the role is {own.role}")


def check_retention(settings: Settings) -> Iterator[Diagnosis]:
    """Check the role of retention. Raises KfmError for a wrong policy or a database that does not answer."""
    kinds = ", ".join(RetentionPolicy.load(settings.configs_dir).ages)
    if not kinds:
        yield ok("everything is kept: retention.yaml names no kind")
        return
    bounded = f"the ages of {kinds} are bounded"
    lacking = {
        "expected": "a role that only reads (docs/retention.md)",
        "next_step": "run kfm init --retention-role NAME as the owner, then name that role in KFM_RETENTION_DSN",
    }
    what = f"what removes {kinds} works under a role that may write to the ledger"
    if settings.retention_dsn:
        own = _row(settings.retention_dsn, "roles.may_migrate")
        under = ok(f"{bounded}, under {own.role}, which only reads")
        yield under if own.only_reads else warning(what, observed=own.role, **lacking)
    elif settings.env is Environment.PROD and not settings.database_url.startswith("sqlite"):
        yield warning(what, observed="no KFM_RETENTION_DSN", **lacking)
    else:
        yield ok(bounded)


SETTING = "KFM_BACKUP_URL"
NIGHTLY = timedelta(hours=36)
"""A backup each night, and half a day for one that is late."""
_GUIDE = "docs/backup.md"


def check_backups(settings: Settings, clock: Callable[[], datetime]) -> Iterator[Diagnosis]:
    """Look at the newest backup, and at the database's own archive. Raises KfmError where its store does not answer."""
    if settings.backup_url:
        yield _newest(settings.backup_url, clock())
    if settings.database_url.startswith("sqlite"):
        return
    try:
        found = _row(settings.database_url, "backups.archiving")
    except KfmError:
        return  # what the ledger's own check says
    if found.failing:
        yield fault(
            "PostgreSQL cannot archive its log of writes, keeps all of it, and fills its disk",
            observed=f"{found.failed} was the last to fail, after the last that was archived",
            expected="an archive_command that succeeds",
            next_step="see the server's log, correct archive_command, then ask again",
        )
    elif found.mode != "off" or found.standbys:
        yield ok(f"PostgreSQL's archive_mode is {found.mode}, and {found.standbys} standbys follow")
    elif settings.env is Environment.PROD and not settings.backup_url:
        yield warning(
            "nothing here says that the database is backed up",
            observed=f"archive_mode off, no standby, no {SETTING}",
            expected="one of them, and a dump each night",
            next_step=f"set {SETTING} to where the dumps are put ({_GUIDE})",
        )


def _row(url: str, statement: str) -> Any:
    """Return the one row of a statement of a database that is opened for it."""
    database = Database.open(url, read_only=True)
    try:
        with database.snapshot() as tx:
            return tx.run(statement).one()
    finally:
        database.dispose()


def _newest(place: str, now: datetime) -> Diagnosis:
    with answering(f"backups {place}", SETTING):
        times = list(_times(place))
    expected = f"one of the last {NIGHTLY.total_seconds() / 3600:g} hours"
    if not times:
        return fault("there is no backup", observed=f"no file in {place}", expected=expected, next_step=f"see {_GUIDE}")
    age = now - max(times)
    if age > NIGHTLY:
        return warning(
            "the newest backup is old",
            observed=f"of {max(times):%Y-%m-%dT%H:%M:%SZ}, {age.total_seconds() / 3600:.0f} hours ago, in {place}",
            expected=expected,
            next_step=f"see why no later one was made ({_GUIDE})",
        )
    return ok(f"the newest backup is of {max(times):%Y-%m-%dT%H:%M:%SZ}")


def _times(place: str) -> Iterator[datetime]:
    if "://" not in place:
        # Opening it as a store would make the folder.
        for file in Path(place).rglob("*"):
            if file.is_file():
                yield datetime.fromtimestamp(file.stat().st_mtime, UTC)
        return
    for page in open_store(place).list():
        yield from (one["last_modified"] for one in page)


GIB = 1 << 30
LEAST_FREE, LITTLE_FREE = GIB, 5 * GIB
"""A day of mail, logs and SQLite's journals takes hundreds of megabytes; below a gigabyte a run may fail for it."""


def check_store(name: str, setting: str, place: str) -> Iterator[Diagnosis]:
    """Ask whether a store would take a file. Raises DependencyUnavailableError where it would not."""
    refuse_unwritable(place, what=name, setting=setting, leave_nothing=True)
    yield ok(f"{name} {place} takes files")


def check_bucket(objects: ObjectStores, contract: DatasetContract, bucket: str) -> Iterator[Diagnosis]:
    """Ask whether a provider's bucket can be read. Raises DependencyUnavailableError where it cannot."""
    what = f"bucket {bucket} of {contract.id}"
    try:
        with answering(what, "KFM_ANONYMOUS or the credentials"):
            objects.ask(contract, bucket)
    except DependencyUnavailableError:
        raise
    except FileNotFoundError as error:
        yield warning(
            f"{what} is not there",
            observed=error,
            expected="a folder for each bucket below KFM_OBJECT_ROOT",
            next_step="make it, or unset KFM_OBJECT_ROOT to read the provider's objects",
        )
        return
    yield ok(f"{what} can be read")


def check_room(folders: Sequence[Path]) -> Iterator[Diagnosis]:
    """Look how much room each file system has that a folder of ours is on, once."""
    seen: set[int] = set()
    for folder in folders:
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        device = there.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        usage = shutil.disk_usage(there)
        if not usage.total:
            continue  # no disk at all (/proc); that it takes no file is the store's check to say
        free = usage.free
        facts = {
            "observed": f"{free / GIB:.1f} GiB free at {there}",
            "expected": f"{LITTLE_FREE // GIB} GiB at least",
            "next_step": "free some, or move KFM_HOME or DAGSTER_HOME to a larger disk",
        }
        if free < LEAST_FREE:
            yield fault("the disk is nearly full: the database and the runs stop with it", **facts)
        elif free < LITTLE_FREE:
            yield warning("there is little room on the disk", **facts)
        else:
            yield ok(f"{free / GIB:.0f} GiB free at {there}")
