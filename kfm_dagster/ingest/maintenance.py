"""Maintenance: the ledger's housekeeping by the sensor `nodd_ledger` and by workers.

The claims and intents of dead runs are released first, before new runs are planned (WSM-11). Belongs here: the order of
the steps. Does not belong here: detecting dead runs (`defs/run_storage.py`, `worker/resident.py`), rollback
(`chain.py`), or planning (`plan.py`, `worker/resident.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.errors import DatabaseUnavailableError, KfmError
from kfm_dagster.ingest.feed_watch import FeedWatch
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.plural import counted
from kfm_dagster.redaction import error_text, redacted_error

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


def maintain(
    pipeline: Pipeline,
    state: ProcessState,
    *,
    dead: Callable[[Iterable[str]], Collection[str]],
    warn: Callable[[str], None],
) -> Collection[tuple[str, str]]:
    """Run the steps of housekeeping in order; return (dataset, partition) of due retries.

    `dead` takes root run ids and returns the dead runs among them. A failed step gives a warning, and the other steps
    still run (SEC-09). Raises the error of an unavailable database, which every step needs.
    """
    due: dict[tuple[str, str], int] = {}

    def retry() -> None:
        limit = pipeline.settings.max_in_flight_units
        with pipeline.database.transaction() as tx:
            due.update(pipeline.ledger.retry_due(now=pipeline.clock(), limit=limit, tx=tx))

    def watch() -> None:
        state.feeds_due = FeedWatch(pipeline).watch(state.feeds_due)

    def publish() -> None:
        if (failure := pipeline.lineage.flush()) is not None:
            # Recorded events are published later; ingestion continues.
            warn(failure)

    steps: dict[str, Callable[[], object]] = {
        "releasing dead runs' claims": lambda: release_dead_runs(pipeline, dead=dead, warn=warn),
        "requeueing due retries": retry,
        "deleting finished messages": pipeline.acknowledger.acknowledge,
        "watching feeds": watch,
        "publishing lineage": publish,
        "following the catalog": lambda: pipeline.following.catch_up(pipeline.followers),
    }
    for name, step in steps.items():
        attempt(name, step, warn)
    return due.keys()


def attempt(name: str, step: Callable[[], Result], warn: Callable[[str], None]) -> Result | None:
    """Run a step; after a failure, warn and return None. Raises the database's error."""
    try:
        return step()
    except (SQLAlchemyError, DatabaseUnavailableError):
        raise
    except Exception as error:
        _LOG.exception("%s fails", name, exc_info=redacted_error(error))
        warn(f"{name} fails: {error if isinstance(error, KfmError) else type(error).__name__}")
        return None


def release_dead_runs(
    pipeline: Pipeline, *, dead: Callable[[Iterable[str]], Collection[str]], warn: Callable[[str], None]
) -> None:
    """Release the claims of dead runs, and those with expired leases even if `dead` fails.

    `dead` takes root run ids and returns the dead runs among them. The pending intents of dead runs become FAILED, and
    SKIPPED once a later run has done the node's work.
    """
    ledger, intents, lifecycle = pipeline.ledger, pipeline.nodes.intents, pipeline.stages.lifecycle
    claim_runs: Collection[str] = ()
    intent_runs: Collection[str] = ()
    stage_runs: Collection[str] = ()
    try:
        claim_runs = dead(ledger.in_progress_runs())
        intent_runs = dead(intents.pending_runs())
        stage_runs = dead(lifecycle.store.unfinished_runs())
    except Exception as error:
        warn(f"Dagster's run storage cannot be searched for dead runs: {error_text(error)}")
    intents.fail_runs(intent_runs)
    lifecycle.close(stage_runs)
    intents.give_up_overtaken()
    with ledger.database.transaction() as tx:
        report = ledger.release_lost(run_ids=claim_runs, tx=tx)
    if report.requeued or report.quarantined:
        warn(
            f"requeued {counted(len(report.requeued), 'unit')} of dead runs or expired leases, "
            f"quarantined {len(report.quarantined)}"
        )
