"""Backups: how old the newest one is where KFM_BACKUP_URL names their place, and whether PostgreSQL archives.

Does not belong here: making them, or putting one back (docs/backup.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.errors import KfmError
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store

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
        found = _archiving(settings.database_url)
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


def _archiving(url: str) -> Any:
    database = Database.open(url, read_only=True)
    try:
        with database.snapshot() as tx:
            return tx.run("backups.archiving").one()
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
