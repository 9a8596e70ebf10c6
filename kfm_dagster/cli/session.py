"""Open the pipeline for a command that reads a deployment or decides about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from kfm_dagster.errors import SchemaVersionError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database


@contextmanager
def opened_pipeline(settings: Settings | None = None, *, read_only: bool = False) -> Iterator[Pipeline]:
    """Open the deployment of `settings`, else of the environment. Raises NoLedgerError.

    With `read_only`, the database takes no write and is not migrated. A missing ledger is always refused: reading must
    not create a ledger, and a decision must not be stored in the folder of a wrong KFM_HOME.
    """
    settings = settings or Settings.load()
    if not read_only:
        # Read-only first, because opening to write would create a ledger in any database that KFM_WAL_DSN names. An
        # older ledger is not refused, but upgraded below.
        with suppress(SchemaVersionError):
            Database.open(settings.database_url, read_only=True).dispose()
    with closing(Pipeline.open(settings, read_only=read_only)) as opened:
        yield opened


@contextmanager
def opened_database(settings: Settings, *, recording: bool = False) -> Iterator[Database]:
    """Open the database for reading, and with `recording` for adding a record. Raises KfmError.

    No database is created or upgraded.
    """
    opened = Database.open(settings.database_url, read_only=True)
    if recording:
        opened.dispose()
        opened = Database.open(settings.database_url)
    try:
        yield opened
    finally:
        opened.dispose()
