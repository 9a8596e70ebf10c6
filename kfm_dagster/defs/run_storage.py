"""Run storage: Dagster's runs, for planning runs and recovering claims.

Belongs here: queries of the instance. A tick opens it with its first query, so that functions that may need none take
the tick's context. Does not belong here: the use of the answers (`defs/sensors.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile

import dagster as dg

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.chain import BACKFILL_TAG, LANE_TAG
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.run_processes import fail_lost_runs
from kfm_dagster.ingest.plan import ActiveRuns, LaneKey

ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
PARTITION_TAG = "dagster/partition"
MAX_DOUBLINGS = 10
MAX_PAUSE_SECONDS = 600.0
"""Longest pause between two runs of a partition whose runs all fail."""
UNLEASED = timedelta(minutes=1)
"""Longest time of a worker's run from its first intent to its claims; normally milliseconds."""


def run_slots(instance: dg.DagsterInstance) -> int | None:
    """Return the limit of runs in progress at once, or None without one."""
    queue = instance.get_concurrency_config().run_queue_config
    return None if queue is None or queue.max_concurrent_runs < 0 else queue.max_concurrent_runs


def active_runs(instance: dg.DagsterInstance, *, claimed: Collection[str]) -> ActiveRuns:
    """Count active runs by partition and lane, and the runs among them that have yet to claim.

    `claimed` are the root run ids that hold claims.
    """
    runs = [(root_run_id(run), _key(run)) for run in _active(instance, PARTITION_TAG)]
    return ActiveRuns(
        active=Counter(key for _, key in runs), coming=Counter(key for run_id, key in runs if run_id not in claimed)
    )


def listing_days(instance: dg.DagsterInstance) -> set[tuple[str, str]]:
    """Return each (backfill, day) with a queued or running run."""
    return {(run.tags[BACKFILL_TAG], run.tags[PARTITION_TAG]) for run in _active(instance, BACKFILL_TAG)}


class DeadRuns:
    """Selects, in one tick, the root run ids without an active run, original or re-execution.

    A run that Dagster does not know is a worker's, known to the ledger only. It is alive while it has a lease. It has
    none before its claims, so it is dead once it has been seen without one for UNLEASED; `unleased` keeps the times of
    first sight from tick to tick.
    """

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        *,
        leased: Callable[[], Collection[str]],
        unleased: dict[str, datetime],
        now: datetime,
    ) -> None:
        self._context = context
        self._leased = leased
        self._unleased = unleased
        self._now = now
        self._seen: set[str] = set()

    def __call__(self, root_run_ids: Iterable[str]) -> list[str]:
        """Return the dead ones of the runs."""
        runs = list(root_run_ids)
        # Read after the run ids, so that it includes a run that has claimed since then.
        leased = self._leased() if runs else ()
        return [root for root in runs if self._is_dead(root, leased)]

    def forget_ended(self) -> None:
        """Forget the runs that this tick has not seen."""
        for root in self._unleased.keys() - self._seen:
            del self._unleased[root]

    def _is_dead(self, root: str, leased: Collection[str]) -> bool:
        group = self._group(root)
        if group or root in leased:
            return bool(group) and not any(run.status in ACTIVE for run in group)
        self._seen.add(root)
        return self._now - self._unleased.setdefault(root, self._now) >= UNLEASED

    def _group(self, root: str) -> list[dg.DagsterRun]:
        return [
            *_runs(self._context.instance, dg.RunsFilter(run_ids=[root])),
            *_runs(self._context.instance, dg.RunsFilter(tags={"dagster/root_run_id": root})),
        ]


def cooling_down(
    context: dg.SensorEvaluationContext, *, now: datetime, interval_seconds: int
) -> Callable[[str, Lane], bool]:
    """Return a predicate: whether the next run of a partition and lane must wait after failures.

    The pause doubles with every failure in a row: a fault that fails every run (a database that is down, a disk that
    is full) must not keep the machine busy starting runs. A failing listing delays no live run.
    """

    def cooling(partition: str, lane: Lane) -> bool:
        tags = {PARTITION_TAG: partition, LANE_TAG: lane.value}
        records = context.instance.get_run_records(filters=dg.RunsFilter(tags=tags), limit=MAX_DOUBLINGS)
        failures = list(takewhile(lambda record: record.dagster_run.status is dg.DagsterRunStatus.FAILURE, records))
        if not failures:
            return False
        pause = min(interval_seconds * 2.0 ** len(failures), MAX_PAUSE_SECONDS)
        return now.timestamp() < (failures[0].end_time or 0.0) + pause

    return cooling


def newest_run(instance: dg.DagsterInstance, partition: str) -> str:
    """Return the newest run of a partition, which changes with every run requested.

    A count of runs would repeat once retention has removed some, and with it a run_key that still exists.
    """
    run_ids = instance.get_run_ids(dg.RunsFilter(tags={PARTITION_TAG: partition}), limit=1)
    return run_ids[0] if run_ids else ""


def _runs(instance: dg.DagsterInstance, filters: dg.RunsFilter) -> Sequence[dg.DagsterRun]:
    """Return runs, after reporting runs whose process is gone as failed."""
    runs = instance.get_runs(filters)
    return instance.get_runs(filters) if fail_lost_runs(instance, runs) else runs


def _active(instance: dg.DagsterInstance, tag: str) -> list[dg.DagsterRun]:
    """Return the queued and running runs of partitions with a tag."""
    runs = _runs(instance, dg.RunsFilter(statuses=ACTIVE))
    return [run for run in runs if PARTITION_TAG in run.tags and tag in run.tags]


def _key(run: dg.DagsterRun) -> LaneKey:
    # A run without the tag was started by hand, from the asset graph: it lists its day.
    return run.tags[PARTITION_TAG], Lane(run.tags.get(LANE_TAG, Lane.BULK))
