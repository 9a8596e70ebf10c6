"""Dagster's own storage: created by a single process, and opened without creating it.

Dagster creates its tables in the process that starts first, and two processes that start together can leave two alembic
heads. So only `prepare` creates or migrates the tables. It is called by `kfm init`, or for a single machine by

    python -m kfm_dagster.defs.instance_storage FOLDER

The instance's `dagster.yaml`, which `deployment/local.py` writes, names the storage. Does not belong here:
questions about runs (`reexecutions.py`, `run_storage.py`).
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click
import dagster as dg
import sqlalchemy as sa
import yaml
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError, KfmError
from kfm_dagster.settings import Settings, environment
from kfm_dagster.storage.private import private_folder

PREPARE_LOCK = 0x646167
"""PostgreSQL advisory lock ("dag"), by which only one process at a time creates or migrates Dagster's tables."""


def prepare(home: Path, *, dagster_yaml: str | None = None) -> bool:
    """Create or upgrade an instance's folder, `dagster.yaml` and storage. Safe to repeat.

    An existing `dagster.yaml` is kept; returns whether `dagster_yaml` was written. Raises DatabaseUnavailableError, and
    ConfigurationError for a folder that cannot be created, or a file without the storage of KFM_DAGSTER_DSN.
    """
    with environment({"DAGSTER_HOME": str(home)}), _alone_in(home):
        file = home / "dagster.yaml"
        if written := dagster_yaml is not None and not file.exists():
            file.write_text(str(dagster_yaml), encoding="utf-8")
        storage, dsn = _storage(home), Settings.load().dagster_dsn
        if not dsn:
            _upgrade(home)
        elif not storage:
            raise ConfigurationError(
                "Dagster would keep its runs in files, and not in KFM_DAGSTER_DSN",
                observed=f"{file} names no storage",
                next_step="move the file away, then kfm init writes the file for this environment",
            )
        else:
            with _answering(dsn) as engine, engine.connect() as connection:
                connection.exec_driver_sql("SELECT pg_advisory_lock(%s)", (PREPARE_LOCK,))  # until it is disconnected
                DagsterPostgresStorage(dsn, should_autocreate_tables=True)
                _upgrade(home)
    return written


def opened_instance(home: Path) -> dg.DagsterInstance | None:
    """Open the instance of a DAGSTER_HOME; None without a storage that can be opened."""
    try:
        return dg.DagsterInstance.from_config(str(home)) if _has_runs(home) else None
    except Exception:
        # Dagster does not start either if its dagster.yaml is wrong or the database does not answer. Any exception is
        # caught, because each class that dagster.yaml may name raises different errors.
        return None


@contextmanager
def instance_of(home: Path) -> Iterator[dg.DagsterInstance | None]:
    """Open the instance of a DAGSTER_HOME for a while; None without a storage that answers."""
    with environment({"DAGSTER_HOME": str(home)}):
        instance = opened_instance(home)
        with nullcontext() if instance is None else instance:
            yield instance


def _has_runs(home: Path) -> bool:
    """Return whether the storage exists; asking Dagster would create it or retry for seconds."""
    storage, dsn = _storage(home), Settings.load().dagster_dsn
    if not storage:
        return (home / "history" / "runs.db").is_file()
    if not dsn:
        return True
    with _answering(dsn) as engine:
        return sa.inspect(engine).has_table("runs")


def _storage(home: Path) -> Mapping[str, Any]:
    """Return the storage that `dagster.yaml` names; empty for SQLite files in the home."""
    file = home / "dagster.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
    return (config or {}).get("storage") or {}


def _upgrade(home: Path) -> None:
    # Alembic logs each of its steps, and the SQLite storages print theirs.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with redirect_stdout(io.StringIO()), dg.DagsterInstance.from_config(str(home)) as instance:
        instance.upgrade()


@contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Hold the folder's lock, which also ends with the process."""
    try:
        private_folder(home)
        folder = os.open(home, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(
            "DAGSTER_HOME cannot be created", observed=f"{home}: {error.strerror}", next_step="name another folder"
        ) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _answering(dsn: str) -> Iterator[sa.Engine]:
    """Open an engine for the block; errors of its database are raised as a single line."""
    engine = sa.create_engine(dsn, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        yield engine
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        is_down = isinstance(error, OperationalError)
        raise DatabaseUnavailableError(
            "Dagster's database does not answer" if is_down else "Dagster's database refuses",
            observed=f"{shown(dsn)}: {without_secrets(reason, dsn)}",
            next_step="start the database or correct KFM_DAGSTER_DSN" if is_down else "run kfm init as the owner",
        ) from None
    finally:
        engine.dispose()


def main() -> None:
    """Prepare the folder that the first argument names, which has a `dagster.yaml`."""
    try:
        prepare(Path(sys.argv[1]))
    except KfmError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
