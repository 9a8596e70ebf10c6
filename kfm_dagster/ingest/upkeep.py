"""Upkeep: what is done for the ledger again and again besides ingesting, by the sensor `nodd_ledger` and by workers.

Belongs here: the order. Does not belong here: who is dead (`defs/run_storage.py`, `worker/run_locks.py`), or what is
run next (`plan.py`, `worker/resident.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kfm_dagster.ingest.evidence import collect_evidence
from kfm_dagster.ingest.feed_watch import watch_feeds
from kfm_dagster.ingest.lost_runs import give_back
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.store import Ledger


def look_after(
    pipeline: Pipeline,
    ledger: Ledger,
    *,
    dead: Callable[[Iterable[str]], Collection[str]],
    warn: Callable[[str], None],
) -> Collection[tuple[str, str]]:
    """Give back what dead runs held, let due retries in, acknowledge, collect evidence, watch feeds, publish, follow.

    `dead` chooses from root run ids those that nobody works for. Returns (dataset, partition) of what is let in.
    """
    give_back(pipeline, ledger, dead=dead, warn=warn)
    due = ledger.retry_due(now=pipeline.clock(), limit=pipeline.settings.max_in_flight_units)
    pipeline.acknowledge()
    collect_evidence(pipeline)
    watch_feeds(pipeline)
    if (failure := pipeline.lineage.flush()) is not None:
        # Recorded events wait; ingestion does not.
        warn(failure)
    pipeline.following.catch_up(pipeline.followers)
    return due.keys()
