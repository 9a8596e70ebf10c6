"""Re-executions, read from the Dagster instance of a DAGSTER_HOME without creating it.

Does not belong here: the opening of the instance (`instance_storage.py`); the results of a run
(`exports/explanations/explanation.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.defs.instance_storage import instance_of
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.exports.explanations.explanation import Reexecution

ROOT_TAG = "dagster/root_run_id"
ROOTS_ASKED = 500
"""Root runs per query, because the number of a statement's parameters is limited."""


class InstanceReexecutions:
    """Re-executions of a DAGSTER_HOME; none if Dagster has not run there or does not start."""

    def __init__(self, dagster_home: Path) -> None:
        self._home = dagster_home

    def beginning(self, beginning: str, *, limit: int) -> Sequence[Reexecution]:
        """Return at most `limit` re-executions whose ids begin with `beginning`, sorted by id."""
        with self._asked() as instance:
            if instance is None:
                return []
            run_ids = sorted(run_id for run_id in _all(instance) if run_id.startswith(beginning))[:limit]
            recorded = _recorded(instance, dg.RunsFilter(run_ids=run_ids)) if run_ids else []
            return sorted(recorded, key=lambda run: run.run_id)

    def of(self, root_run_id: str) -> Sequence[Reexecution]:
        """Return the re-executions of a run, oldest first. Raises DatabaseUnavailableError."""
        with self._asked() as instance:
            return [] if instance is None else _recorded(instance, dg.RunsFilter(tags={ROOT_TAG: root_run_id}))

    @contextmanager
    def _asked(self) -> Iterator[dg.DagsterInstance | None]:
        try:
            with instance_of(self._home) as instance:
                yield instance
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError(
                "Dagster's runs cannot be read",
                observed=f"{self._home}: {str(getattr(error, 'orig', error)).strip().splitlines()[0]}",
                next_step="upgrade Dagster's storage (kfm init), then try again",
            ) from None


def _all(instance: dg.DagsterInstance) -> Iterator[str]:
    """Yield each re-execution's id, by listing the values of a tag and the runs of each value."""
    roots = sorted({root for _, values in instance.get_run_tags([ROOT_TAG]) for root in values})
    for start in range(0, len(roots), ROOTS_ASKED):
        yield from instance.get_run_ids(dg.RunsFilter(tags={ROOT_TAG: roots[start : start + ROOTS_ASKED]}))


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
