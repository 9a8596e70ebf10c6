"""Maintenance: what the sensor `nodd_ledger` and workers do for the ledger besides ingesting.

What runs that died held and intended is given back first, before anything new is planned (WSM-11). Belongs here: the
order. Does not belong here: who is dead (`defs/run_storage.py`, `worker/run_locks.py`), runs that failed
(`rollback.py`), or what is run next (`plan.py`, `worker/resident.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.errors import DatabaseUnavailableError, KfmError
from kfm_dagster.idempotent_node.wal import Intents
from kfm_dagster.ingest.feed_watch import FeedWatch
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.redaction import error_text, redacted_error
from kfm_dagster.stages.lifecycle import StageLifecycle

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
        state.feeds_due = FeedWatch(pipeline).watch(state.feeds_due)

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


def give_back(
    ledger: Ledger,
    *,
    intents: Intents,
    lifecycle: StageLifecycle,
    dead: Callable[[Iterable[str]], Collection[str]],
    warn: Callable[[str], None],
) -> None:
    """Take back the claims of dead runs and of expired leases, the latter also when `dead` fails.

    `dead` chooses from root run ids those that nobody works for. What dead runs intended has failed; it is given up
    once a later run has done the same node's work.
    """
    without_claims: Collection[str] = ()
    without_intents: Collection[str] = ()
    without_stages: Collection[str] = ()
    try:
        without_claims = dead(ledger.in_progress_runs())
        without_intents = dead(intents.pending_runs())
        without_stages = dead(lifecycle.store.unfinished_runs())
    except Exception as error:
        warn(f"Dagster's run storage does not say which runs are dead: {error_text(error)}")
    intents.fail_runs(without_intents)
    lifecycle.close(without_stages)
    intents.give_up_overtaken()
    with ledger.database.transaction() as tx:
        report = ledger.release_lost(run_ids=without_claims, tx=tx)
    if report.requeued or report.quarantined:
        warn(
            f"gave back {len(report.requeued)} units of dead runs or expired leases, "
            f"quarantined {len(report.quarantined)}"
        )
