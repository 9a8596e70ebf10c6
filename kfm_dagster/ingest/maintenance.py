"""Maintenance: what the sensor `nodd_ledger` and workers do for the ledger besides ingesting.

Belongs here: the order. Does not belong here: who is dead (`defs/run_storage.py`, `worker/run_locks.py`), or what is
run next (`plan.py`, `worker/resident.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.errors import DatabaseUnavailableError, KfmError
from kfm_dagster.ingest.feed_watch import FeedWatch
from kfm_dagster.ingest.lost_runs import give_back
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.redaction import redacted_error

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


def look_after(
    pipeline: Pipeline,
    state: ProcessState,
    ledger: Ledger,
    *,
    dead: Callable[[Iterable[str]], Collection[str]],
    warn: Callable[[str], None],
) -> Collection[tuple[str, str]]:
    """Give back what dead runs held, let due retries in, acknowledge, watch feeds, publish lineage, follow.

    `dead` chooses from root run ids those that nobody works for. Returns (dataset, partition) of what is let in. A step
    that fails is a warning, and the others are done (SEC-09). Raises the database's error: no step goes without it.
    """
    due: dict[tuple[str, str], int] = {}

    def retry() -> None:
        limit = pipeline.settings.max_in_flight_units
        with ledger.database.transaction() as tx:
            due.update(ledger.retry_due(now=pipeline.clock(), limit=limit, tx=tx))

    def watch() -> None:
        state.feeds_due = FeedWatch.of(pipeline).watch(state.feeds_due)

    def publish() -> None:
        if (failure := pipeline.lineage.flush()) is not None:
            # Recorded events wait; ingestion does not.
            warn(failure)

    steps: dict[str, Callable[[], object]] = {
        "giving back what dead runs held": lambda: give_back(
            ledger, intents=pipeline.nodes.intents, lifecycle=pipeline.stages.lifecycle, dead=dead, warn=warn
        ),
        "letting due retries in": retry,
        "deleting finished messages": pipeline.acknowledger.acknowledge,
        "watching feeds": watch,
        "publishing lineage": publish,
        "following the catalog": lambda: pipeline.following.catch_up(pipeline.followers),
    }
    for name, step in steps.items():
        attempt(name, step, warn)
    return due.keys()


def attempt(name: str, step: Callable[[], Result], warn: Callable[[str], None]) -> Result | None:
    """Do a step; a failure is a warning, and None is returned. Raises the database's error: no step goes without it."""
    try:
        return step()
    except (SQLAlchemyError, DatabaseUnavailableError):
        raise
    except Exception as error:
        _LOG.exception("%s fails", name, exc_info=redacted_error(error))
        warn(f"{name} fails: {error if isinstance(error, KfmError) else type(error).__name__}")
        return None
