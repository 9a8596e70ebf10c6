"""The ledger's database: whether it answers, has this release's schema, and by which role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from kfm_dagster.addresses import shown
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.retention.policy import RetentionPolicy
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.database import Database


def check_database(settings: Settings) -> Iterator[Diagnosis]:
    """Open it as a command that only looks does. Raises KfmError where that cannot be done, in words of its own."""
    if (file := missing_file(settings)) is not None:
        yield fault("there is no ledger yet", observed=file, expected="a database", next_step="run kfm init")
        return
    database = Database.open(settings.database_url, read_only=True)
    try:
        yield ok(f"{shown(settings.database_url)} answers, with schema {database.schema()}")
        if database.dialect == "postgresql":
            yield from _role(settings, database)
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


def _role(settings: Settings, database: Database) -> Iterator[Diagnosis]:
    with database.snapshot() as tx:
        own = tx.run("roles.may_migrate").one()
    if own.may_migrate and settings.env is not Environment.DEV:
        yield warning(
            "the deployment works as the owner of the tables, who can alter evidence",
            observed=own.role,
            expected="a role with a deployment's rights (docs/adr/021)",
            next_step="run kfm init --role NAME as the owner, then name that role in KFM_WAL_DSN",
        )
    else:
        yield ok(f"the role is {own.role}")


def check_retention(settings: Settings) -> Iterator[Diagnosis]:
    """Look under which role what is old is removed. Raises KfmError for a wrong policy or a database that is away."""
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
        role, only_reads = _retention_role(settings.retention_dsn)
        yield (
            ok(f"{bounded}, under {role}, which only reads") if only_reads else warning(what, observed=role, **lacking)
        )
    elif settings.env is Environment.PROD and not settings.database_url.startswith("sqlite"):
        yield warning(what, observed="no KFM_RETENTION_DSN", **lacking)
    else:
        yield ok(bounded)


def _retention_role(dsn: str) -> tuple[str, bool]:
    database = Database.open(dsn, read_only=True)
    try:
        with database.snapshot() as tx:
            own = tx.run("roles.may_migrate").one()
            return str(own.role), bool(own.only_reads)
    finally:
        database.dispose()
