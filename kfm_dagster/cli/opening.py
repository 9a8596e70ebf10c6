"""Opening the pipeline for a command that looks into a deployment, or decides something about it. Nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings


@contextmanager
def opened_pipeline(settings: Settings | None = None) -> Iterator[Pipeline]:
    """Open the deployment of the settings, else of the environment. Raises ConfigurationError without a ledger.

    Looking must not make what it looks for, and a decision must not be kept in a folder that a wrong KFM_HOME names.
    """
    settings = settings or Settings.load()
    if not settings.wal_dsn and not (settings.home / "kfm.db").exists():
        raise ConfigurationError(
            "there is no ledger yet",
            observed=str(settings.home / "kfm.db"),
            expected="a database that an ingest has made",
            next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_WAL_DSN",
        )
    opened = Pipeline.open(settings)
    try:
        yield opened
    finally:
        opened.close()
