"""Dagster's own storage (runs, events, schedules): chosen by environment, and made by one process at a time.

Dagster makes its tables wherever it is started first; where daemon and web server start together, two alembic heads can
come of it. So on PostgreSQL only `prepare` makes or migrates them: `kfm init`, or a deployment of one machine by

    python -m kfm_dagster.defs.instance_storage FOLDER

Belongs here: that choice and that step. Does not belong here: asking what it keeps (`reexecutions.py`).
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import click
import dagster as dg
import sqlalchemy as sa
from dagster._config.config_schema import UserConfigSchema
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.base_storage import DagsterStorage
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.defs.kept_storage import open_postgres, open_sqlite
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError, KfmError
from kfm_dagster.settings import Settings, environment
from kfm_dagster.storage.private import private_folder

SCHEMA = "dagster"
"""Schema of Dagster's tables, so that neither they nor its migrations meet the ledger's in one database."""

PREPARE_LOCK = 0x646167
"""PostgreSQL advisory lock ("dag") that lets one process make or migrate Dagster's tables at a time."""


class InstanceStorage(DagsterStorage, ConfigurableClass):
    """What `dagster.yaml` names: never made itself, it gives Dagster's storage on SQLite or on PostgreSQL."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """Nothing is configured in the file."""
        return {}

    @classmethod
    def from_config_value(  # type: ignore[override]
        cls,
        inst_data: ConfigurableClassData | None,
        config_value: Mapping[str, Any],  # noqa: ARG003
    ) -> DagsterStorage:
        """Return the storage of this process's environment.

        Raises click.ClickException, which Dagster's own commands show as one line, where nothing can be kept.
        """
        try:
            dsn = Settings.current().dagster_dsn
            if not dsn:
                return open_sqlite(os.environ.get("DAGSTER_HOME") or _without_home(), inst_data)
            _refuse_unprepared(dsn)
        except KfmError as error:
            raise click.ClickException(str(error)) from None
        return open_postgres(_dagster_url(dsn), inst_data)


def prepare(home: Path, *, dagster_yaml: str | None = None) -> bool:
    """Make what an instance needs, or bring it up to date: folder, `dagster.yaml`, storage. Harmless to repeat.

    A `dagster.yaml` that is there stays as it is; returns whether the given one was written. Raises ConfigurationError
    for a folder that cannot be made, and DatabaseUnavailableError.
    """
    with environment({"DAGSTER_HOME": str(home)}), _alone_in(home):
        file = home / "dagster.yaml"
        if written := dagster_yaml is not None and not file.exists():
            file.write_text(str(dagster_yaml), encoding="utf-8")
        reference = InstanceRef.from_dir(str(home))
        dsn = Settings.load().dagster_dsn
        chosen = reference.storage_data is not None and reference.storage_data.class_name == InstanceStorage.__name__
        if chosen and dsn:
            with _answering(dsn) as engine, engine.connect() as connection:
                connection.exec_driver_sql("SELECT pg_advisory_lock(%s)", (PREPARE_LOCK,))  # until it is closed
                if not sa.inspect(connection).has_schema(SCHEMA):
                    connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
                DagsterPostgresStorage(_dagster_url(dsn), should_autocreate_tables=True)
                _upgrade(reference)
        else:
            _upgrade(reference)
    return written


def _without_home() -> str:
    """Return where `kfm ui` keeps its storage: dg and `dagster dev` ask for no DAGSTER_HOME."""
    home = Settings.current().home.absolute() / "dagster"
    private_folder(home)
    return str(home)


@cache
def _refuse_unprepared(dsn: str) -> None:
    """Ask once in a process whether the tables are there. Raises ConfigurationError where they are not."""
    with _answering(dsn) as engine:
        if not sa.inspect(engine).has_table("runs", schema=SCHEMA):
            raise ConfigurationError(
                "Dagster's storage is not there yet",
                observed=shown(dsn),
                expected=f"a schema {SCHEMA} with Dagster's tables",
                next_step="kfm init",
            )


def _upgrade(reference: InstanceRef) -> None:
    # Alembic logs its every step, and the SQLite storages print theirs.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with redirect_stdout(io.StringIO()), dg.DagsterInstance.from_ref(reference) as instance:
        instance.upgrade()


def _dagster_url(dsn: str) -> str:
    """Return KFM_DAGSTER_DSN as the URL whose connections find Dagster's schema, and no other."""
    url = make_url(dsn)
    given = url.query.get("options", ())
    options = " ".join([given] if isinstance(given, str) else given)
    url = url.update_query_dict({"options": f"{options} -csearch_path={SCHEMA}".strip()})
    return url.render_as_string(hide_password=False)


@contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process."""
    try:
        private_folder(home)
        folder = os.open(home, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(
            "DAGSTER_HOME cannot be made", observed=f"{home}: {error.strerror}", next_step="name another folder"
        ) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _answering(dsn: str) -> Iterator[sa.Engine]:
    """Open an engine for a moment, and say in one line what its database does not do."""
    engine = sa.create_engine(dsn, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        yield engine
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", error)).strip().splitlines()[0]
        away = isinstance(error, OperationalError)
        raise DatabaseUnavailableError(
            "Dagster's database does not answer" if away else "Dagster's database refuses",
            observed=f"{shown(dsn)}: {without_secrets(said, dsn)}",
            next_step="start the database or correct KFM_DAGSTER_DSN" if away else "run kfm init as the owner",
        ) from None
    finally:
        engine.dispose()


def main() -> None:
    """Prepare the folder that is named, for a deployment of one machine, with the `dagster.yaml` that is in it."""
    try:
        prepare(Path(sys.argv[1]))
    except KfmError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
