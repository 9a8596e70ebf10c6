"""Stores: the ledger's database, backups, retention, files, buckets, and free disk space."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kfm_dagster.addresses import shown
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.errors import KfmError, NoLedgerError
from kfm_dagster.retention import RetentionPolicy
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.answering import answering, refuse_unwritable
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores, open_store


def check_database(settings: Settings) -> Iterator[Diagnosis]:
    """Check the database by opening it read-only. Raises KfmError if it cannot be opened."""
    try:
        database = Database.open(settings.database_url, read_only=True)
    except NoLedgerError as error:
        yield fault(error.what, observed=error.observed, expected="a database", next_step="run kfm init")
        return
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


def _role(settings: Settings) -> Diagnosis:
    session = _row(settings.database_url, "roles.may_migrate")
    if session.may_migrate and settings.env is not Environment.DEV:
        return warning(
            "the deployment connects as the owner of the tables, who can alter evidence",
            observed=session.role,
            expected="a role with a deployment's rights (docs/adr/021)",
            next_step="run kfm init --role NAME as the owner, then name that role in KFM_WAL_DSN",
        )
    return ok(f"the role is {session.role}")


def check_retention(settings: Settings) -> Iterator[Diagnosis]:
    """Check retention's role. Raises KfmError for a wrong policy or an unavailable database."""
    kinds = ", ".join(RetentionPolicy.load(settings.configs_dir).ages)
    if not kinds:
        yield ok("everything is kept: retention.yaml names no kind")
        return
    bounded = f"{kinds} have a maximum age"
    lacking = {
        "expected": "a role that only reads (docs/retention.md)",
        "next_step": "run kfm init --retention-role NAME as the owner, then name that role in KFM_RETENTION_DSN",
    }
    what = f"retention of {kinds} uses a role that may write to the ledger"
    if settings.retention_dsn:
        session = _row(settings.retention_dsn, "roles.may_migrate")
        under = ok(f"{bounded}; retention connects as {session.role}, which only reads")
        yield under if session.only_reads else warning(what, observed=session.role, **lacking)
    elif settings.env is Environment.PROD and not settings.database_url.startswith("sqlite"):
        yield warning(what, observed="no KFM_RETENTION_DSN", **lacking)
    else:
        yield ok(bounded)


SETTING = "KFM_BACKUP_URL"
NIGHTLY = timedelta(hours=36)
"""Maximum age of the newest of nightly backups, with half a day for delays."""
_GUIDE = "docs/backup.md"


def check_backups(settings: Settings, clock: Callable[[], datetime]) -> Iterator[Diagnosis]:
    """Check the newest backup and the database's archive. Raises KfmError if a store is down."""
    if settings.backup_url:
        yield _newest(settings.backup_url, clock())
    if settings.database_url.startswith("sqlite"):
        return
    try:
        archive = _row(settings.database_url, "backups.archiving")
    except KfmError:
        return  # the ledger's own check reports it
    if archive.failing:
        yield fault(
            "PostgreSQL cannot archive its write-ahead log, keeps all of it, and fills its disk",
            observed=f"{archive.failed} failed, later than the last success",
            expected="an archive_command that succeeds",
            next_step="see the server's log, correct archive_command, then ask again",
        )
    elif archive.mode != "off" or archive.standbys:
        yield ok(f"PostgreSQL's archive_mode is {archive.mode}, and {archive.standbys} standbys follow")
    elif settings.env is Environment.PROD and not settings.backup_url:
        yield warning(
            "no backup of the database is known",
            observed=f"archive_mode off, no standby, no {SETTING}",
            expected="an archive or a standby, and a dump each night",
            next_step=f"set {SETTING} to where the dumps are put ({_GUIDE})",
        )


def _row(url: str, statement: str) -> Any:
    """Return a statement's single row, on a database opened for the statement."""
    database = Database.open(url, read_only=True)
    try:
        with database.snapshot() as tx:
            return tx.run(statement).one()
    finally:
        database.dispose()


def _newest(place: str, now: datetime) -> Diagnosis:
    with answering(f"backups {place}", SETTING):
        times = list(_times(place))
    expected = f"a backup of the last {NIGHTLY.total_seconds() / 3600:g} hours"
    if not times:
        return fault("no backup exists", observed=f"no file in {place}", expected=expected, next_step=f"see {_GUIDE}")
    age = now - max(times)
    if age > NIGHTLY:
        return warning(
            "the newest backup is old",
            observed=f"of {max(times):%Y-%m-%dT%H:%M:%SZ}, {age.total_seconds() / 3600:.0f} hours ago, in {place}",
            expected=expected,
            next_step=f"see why no later backup exists ({_GUIDE})",
        )
    return ok(f"the newest backup is of {max(times):%Y-%m-%dT%H:%M:%SZ}")


def _times(place: str) -> Iterator[datetime]:
    if "://" not in place:
        # Not opened as a store, because this would create the folder.
        for file in Path(place).rglob("*"):
            if file.is_file():
                yield datetime.fromtimestamp(file.stat().st_mtime, UTC)
        return
    for page in open_store(place).list():
        yield from (entry["last_modified"] for entry in page)


GIB = 1 << 30
LEAST_FREE, LITTLE_FREE = GIB, 5 * GIB
"""Free bytes below which a disk is a fault or a warning. A day of messages, logs and SQLite's journals takes hundreds
of megabytes; with less than a gigabyte, a run may fail."""


def check_store(name: str, setting: str, place: str) -> Iterator[Diagnosis]:
    """Check that a store accepts files. Raises DependencyUnavailableError if it does not."""
    refuse_unwritable(place, what=name, setting=setting, leave_nothing=True)
    yield ok(f"{name} {place} takes files")


def check_bucket(objects: ObjectStores, contract: DatasetContract, bucket: str) -> Iterator[Diagnosis]:
    """Check that a provider's bucket can be read. Raises DependencyUnavailableError."""
    what = f"bucket {bucket} of {contract.id}"
    try:
        with answering(what, "KFM_ANONYMOUS or the credentials"):
            objects.ask(contract, bucket)
    except FileNotFoundError as error:
        yield warning(
            f"{what} is not there",
            observed=error,
            expected="a folder for each bucket below KFM_OBJECT_ROOT",
            next_step="create the folder, or unset KFM_OBJECT_ROOT to read the provider's objects",
        )
        return
    yield ok(f"{what} can be read")


def check_room(folders: Sequence[Path]) -> Iterator[Diagnosis]:
    """Check the free space of the file systems that have the deployment's folders, once each."""
    devices: set[int] = set()
    for folder in folders:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        device = existing.stat().st_dev
        if device in devices:
            continue
        devices.add(device)
        usage = shutil.disk_usage(existing)
        if not usage.total:
            continue  # not a disk (/proc); the store's check reports that it takes no files
        free = usage.free
        facts = {
            "observed": f"{free / GIB:.1f} GiB free at {existing}",
            "expected": f"{LITTLE_FREE // GIB} GiB at least",
            "next_step": "free some space, or move KFM_HOME or DAGSTER_HOME to a larger disk",
        }
        if free < LEAST_FREE:
            yield fault("the disk is nearly full; on a full disk the database and the runs stop", **facts)
        elif free < LITTLE_FREE:
            yield warning("there is little room on the disk", **facts)
        else:
            yield ok(f"{free / GIB:.0f} GiB free at {existing}")
