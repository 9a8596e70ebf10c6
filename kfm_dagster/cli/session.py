"""Open the pipeline for a command that reads a deployment or decides about it. Nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy.engine import make_url

from kfm_dagster.errors import NoLedgerError, SchemaVersionError
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database


@contextmanager
def opened_pipeline(settings: Settings | None = None, *, read_only: bool = False) -> Iterator[Pipeline]:
    """Open the deployment of `settings`, else of the environment. Raises NoLedgerError.

    With `read_only` the database takes no write and is not migrated.
    Reading must not create a ledger, and a decision must not be stored in a folder that a wrong KFM_HOME names.
    """
    settings = settings or Settings.load()
    _refuse_a_missing_file(settings)
    if not read_only:
        # Opening to write would create a ledger in any database that KFM_WAL_DSN names. An older one is upgraded.
        with suppress(SchemaVersionError):
            Database.open(settings.database_url, read_only=True).dispose()
    opened = Pipeline.open(settings, read_only=read_only)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def opened_database(settings: Settings, *, recording: bool = False) -> Iterator[Database]:
    """Open the database for reading, and with `recording` for adding a record. Raises KfmError.

    Neither creates a database nor upgrades an older one.
    """
    _refuse_a_missing_file(settings)
    opened = Database.open(settings.database_url, read_only=True)
    if recording:
        opened.dispose()
        opened = Database.open(settings.database_url)
    try:
        yield opened
    finally:
        opened.dispose()


def explanations(database: Database, run_states: RunStateStore, settings: Settings) -> Explanations:
    """Return explanations, with re-executions of DAGSTER_HOME (default: KFM_HOME/dagster)."""
    home = settings.dagster_home
    if not home.is_dir():
        return Explanations(database=database, run_states=run_states)
    # Imported here, because importing Dagster takes seconds.
    from kfm_dagster.defs.reexecutions import InstanceReexecutions  # noqa: PLC0415

    return Explanations(database=database, run_states=run_states, reexecutions=InstanceReexecutions(home))


def _refuse_a_missing_file(settings: Settings) -> None:
    # On a server the owner creates databases; a file would be created by opening it.
    url = make_url(settings.database_url)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
        raise NoLedgerError(
            observed=url.database,
            expected="a database that an ingest has made",
            next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_WAL_DSN",
        )
