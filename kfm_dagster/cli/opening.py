"""Opening the pipeline for a command that looks into a deployment, or decides something about it. Nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings


@contextmanager
def opened_pipeline(settings: Settings | None = None) -> Iterator[Pipeline]:
    """Open the deployment of the settings, else of the environment. Raises ConfigurationError without a ledger.

    Looking must not make what it looks for, and a decision must not be kept in a folder that a wrong KFM_HOME names.
    """
    settings = settings or Settings.load()
    # A database server has its databases made by its owner; a file would be made by opening it.
    file = make_url(settings.database_url).database if settings.database_url.startswith("sqlite") else None
    if file is not None and not Path(file).exists():
        raise ConfigurationError(
            "there is no ledger yet",
            observed=file,
            expected="a database that an ingest has made",
            next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_WAL_DSN",
        )
    opened = Pipeline.open(settings)
    try:
        yield opened
    finally:
        opened.close()
