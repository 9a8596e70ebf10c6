"""Re-executions, asked of the Dagster instance of a DAGSTER_HOME. Asking makes none, and no storage of one.

Belongs here: opening that instance, and what it says of runs. Does not belong here: what a run did
(`exports/explanations/explanation.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import sqlalchemy as sa
import yaml
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.defs.instance_storage import InstanceStorage
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.exports.explanations.explanation import Reexecution
from kfm_dagster.settings import Settings, environment

ROOT_TAG = "dagster/root_run_id"
ROOTS_ASKED = 500
"""Root runs that one question names: a statement's parameters are bounded."""


class InstanceReexecutions:
    """The re-executions of one DAGSTER_HOME: none where Dagster has not run yet, or does not start."""

    def __init__(self, dagster_home: Path) -> None:
        self._home = dagster_home

    def beginning(self, beginning: str, *, limit: int) -> Sequence[Reexecution]:
        """Return the re-executions whose id begins so, by id, `limit` at most. Raises DatabaseUnavailableError."""
        with self._asked() as instance:
            found = sorted(run_id for run_id in _all(instance) if run_id.startswith(beginning))[:limit]
            if not found or instance is None:
                return []
            return sorted(_recorded(instance, dg.RunsFilter(run_ids=found)), key=lambda one: one.run_id)

    def of(self, root_run_id: str) -> Sequence[Reexecution]:
        """Return the re-executions of a run, oldest first. Raises DatabaseUnavailableError."""
        with self._asked() as instance:
            return [] if instance is None else _recorded(instance, dg.RunsFilter(tags={ROOT_TAG: root_run_id}))

    @contextmanager
    def _asked(self) -> Iterator[dg.DagsterInstance | None]:
        with environment({"DAGSTER_HOME": str(self._home)}):
            instance = opened_instance(self._home)
            if instance is None:
                yield None
                return
            try:
                with instance:
                    yield instance
            except SQLAlchemyError as error:
                raise DatabaseUnavailableError(
                    "Dagster's runs cannot be read",
                    observed=f"{self._home}: {str(getattr(error, 'orig', error)).strip().splitlines()[0]}",
                    next_step="bring Dagster's storage up to date (kfm init), and ask again",
                ) from None


def opened_instance(home: Path) -> dg.DagsterInstance | None:
    """Open the instance of a DAGSTER_HOME, which the environment names, too; None without a storage that answers."""
    try:
        reference = InstanceRef.from_dir(str(home))
        reference = _making_nothing(reference)
        return dg.DagsterInstance.from_ref(reference) if _has_runs(reference, home) else None
    except Exception:
        # With such a dagster.yaml, or without its database, Dagster does not start either; what the ledger knows of a
        # run can be said without it. Every class of its configuration raises errors of its own.
        return None


def _making_nothing(reference: InstanceRef) -> InstanceRef:
    """Return the reference with which Dagster makes no tables in PostgreSQL."""
    data = reference.storage_data
    if data is None or data.class_name != DagsterPostgresStorage.__name__:
        return reference
    config = yaml.safe_dump({**data.config_dict, "should_autocreate_tables": False})
    return reference._replace(storage_data=ConfigurableClassData(data.module_name, data.class_name, config))


def _has_runs(reference: InstanceRef, home: Path) -> bool:
    """Return whether the storage is there. Dagster's SQLite makes its files, and its PostgreSQL tries for seconds."""
    data = reference.storage_data
    if data is not None and data.class_name == DagsterPostgresStorage.__name__:
        storage = data.rehydrate(as_type=DagsterPostgresStorage)
        engine = sa.create_engine(storage.postgres_url, poolclass=sa.NullPool)
        try:
            return sa.inspect(engine).has_table("runs")
        finally:
            engine.dispose()
    if data is not None and data.class_name == DagsterSqliteStorage.__name__:
        base = data.config_dict["base_dir"]
        home = Path(os.environ[base["env"]] if isinstance(base, dict) else base)
    elif data is None or data.class_name != InstanceStorage.__name__ or Settings.load().dagster_dsn:
        return True
    return (home / "history" / "runs.db").is_file()


def _all(instance: dg.DagsterInstance | None) -> Iterator[str]:
    """Yield the id of each re-execution: Dagster finds runs by a tag's value, and names the values of a tag."""
    if instance is None:
        return
    roots = sorted({root for _, values in instance.get_run_tags([ROOT_TAG]) for root in values})
    for at in range(0, len(roots), ROOTS_ASKED):
        yield from instance.get_run_ids(dg.RunsFilter(tags={ROOT_TAG: roots[at : at + ROOTS_ASKED]}))


def _recorded(instance: dg.DagsterInstance, runs: dg.RunsFilter) -> list[Reexecution]:
    return [
        Reexecution(
            run_id=record.dagster_run.run_id,
            root_run_id=record.dagster_run.tags[ROOT_TAG],
            started_at=_at(record.start_time),
            ended_at=_at(record.end_time),
        )
        for record in instance.get_run_records(runs, ascending=True)
    ]


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
