"""Run storage: queries of Dagster's runs, for planning, recovery, and removal of old runs.

A tick's context opens the instance at the first use of `context.instance`. Functions that do not always query take the
context, so that a tick without a query opens no instance. The ledger knows a run by its root run, which holds the
claims. Does not belong here: the use of the answers (`defs/sensors.py`), the age of old runs (`retention.py`), or old
ticks, which Dagster's own daemon removes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import dagster as dg

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.chain import BACKFILL_TAG, LANE_TAG
from kfm_dagster.defs.instance_storage import instance_of
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.run_processes import fail_lost_runs
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.ingest.plan import ActiveRuns, LaneKey
from kfm_dagster.retention import OldBatch
from kfm_dagster.storage.database import Database

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
    """Return the limit of simultaneous runs, or None without a limit."""
    queue = instance.get_concurrency_config().run_queue_config
    return None if queue is None or queue.max_concurrent_runs < 0 else queue.max_concurrent_runs


def active_runs(instance: dg.DagsterInstance, *, begun: Callable[[Collection[str]], Collection[str]]) -> ActiveRuns:
    """Count active runs by partition and lane, and the active runs that have no claims yet.

    `begun` takes root run ids, and returns the ids of the runs that have claimed their units.
    """
    runs = [(root_run_id(run), _key(run)) for run in _active(instance, PARTITION_TAG)]
    claimed = begun({run_id for run_id, _ in runs})
    return ActiveRuns(
        active=Counter(key for _, key in runs), coming=Counter(key for run_id, key in runs if run_id not in claimed)
    )


def listing_days(instance: dg.DagsterInstance) -> set[tuple[str, str]]:
    """Return each (backfill, day) with a queued or running run."""
    return {(run.tags[BACKFILL_TAG], run.tags[PARTITION_TAG]) for run in _active(instance, BACKFILL_TAG)}


class DeadRuns:
    """Selects the dead root runs in a tick: neither the run nor a re-execution is active.

    A run that the ledger knows and Dagster does not is a run of the resident worker. It is alive while it has a lease.
    It gets the lease with its claims, so it counts as dead only when it has had no lease for the time UNLEASED.
    `unleased` is kept from tick to tick, and has the times when runs were first seen without a lease.
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
        """Return the dead runs' ids."""
        runs = list(root_run_ids)
        # The run ids are read before the leases, so each run with claims that is still alive has its lease here.
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

    The pause doubles with every failure in a row, because a fault that fails every run (a database that is down, a
    full disk) must not keep the machine busy with starts of runs. Each lane has its own pause, so that a backfill whose
    listing fails does not delay live runs.
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
    """Return the newest run of a partition, which makes the next run's key unique.

    The number of runs would not, because it falls when retention removes runs, so that a key could be used twice.
    """
    run_ids = instance.get_run_ids(dg.RunsFilter(tags={PARTITION_TAG: partition}), limit=1)
    return run_ids[0] if run_ids else ""


def _runs(instance: dg.DagsterInstance, filters: dg.RunsFilter) -> Sequence[dg.DagsterRun]:
    """Return runs; a run whose process has died is first reported to Dagster as failed."""
    runs = instance.get_runs(filters)
    return instance.get_runs(filters) if fail_lost_runs(instance, runs) else runs


def _active(instance: dg.DagsterInstance, tag: str) -> list[dg.DagsterRun]:
    """Return the queued and running runs of partitions with a tag."""
    runs = _runs(instance, dg.RunsFilter(statuses=ACTIVE))
    return [run for run in runs if PARTITION_TAG in run.tags and tag in run.tags]


def _key(run: dg.DagsterRun) -> LaneKey:
    # A run without the tag was started by hand, from the asset graph. It lists the bucket, so it is bulk work.
    return run.tags[PARTITION_TAG], Lane(run.tags.get(LANE_TAG, Lane.BULK))


BATCH = 500
"""Runs per page that is read, and per batch that is removed."""
FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dataclass(frozen=True, kw_only=True)
class OldRuns:
    """The old runs of an instance, for a single pass: the answers about newer runs are cached."""

    instance: dg.DagsterInstance
    database: Database
    _makers: dict[tuple[dg.AssetKey, str | None], str | None] = field(default_factory=dict, init=False)
    _newest: dict[str, str] = field(default_factory=dict, init=False)

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield the runs that ended before `before`, the oldest first."""
        # All pages are read before a removal: the request of a page names the previous page's last run, which must
        # still exist.
        old = list(self._old(before))
        for start in range(0, len(old), BATCH):
            part = old[start : start + BATCH]
            with self.database.snapshot() as tx:
                roots = sorted({root_run_id(run) for run in part})
                unsettled = {row.run_id for row in tx.run("retention.unsettled_runs", runs=roots)}
            going = [run for run in part if root_run_id(run) not in unsettled and self._is_free(run)]
            yield OldBatch(old=len(part), removable=[run.run_id for run in going], bytes=None)

    def remove(self, batch: OldBatch) -> None:
        """Remove runs. A run's row is removed last, so that a half-removed run is selected again."""
        for run_id in batch.removable:
            self.instance.compute_log_manager.delete_logs(prefix=[run_id])
            self._remove_events(run_id)
            self.instance.run_storage.delete_run(run_id)

    def _remove_events(self, run_id: str) -> None:
        # SQLite has a file for each run. The deletion of events does not shrink the file, so the file is deleted, too.
        # A run without a file has no events.
        files = Path(self.instance.root_directory, "history", "runs")
        if not files.is_dir() or (files / f"{run_id}.db").exists():
            self.instance.event_log_storage.delete_events(run_id)
        for suffix in ("-wal", "-shm", ""):
            (files / f"{run_id}.db{suffix}").unlink(missing_ok=True)

    def _old(self, before: datetime) -> Iterator[dg.DagsterRun]:
        cursor: str | None = None
        while page := self.instance.get_run_records(
            dg.RunsFilter(statuses=FINISHED), limit=BATCH, cursor=cursor, ascending=True
        ):
            for record in page:
                # A run that was cancelled in the queue has no end time.
                if (record.end_time or record.update_timestamp.timestamp()) < before.timestamp():
                    yield record.dagster_run
            cursor = page[-1].dagster_run.run_id

    def _is_free(self, run: dg.DagsterRun) -> bool:
        if root_run_id(run) in self._at_work or self._is_newest(run):
            return False
        # A run without a selection has all assets.
        assets, day = run.asset_selection or self._assets, run.tags.get(PARTITION_TAG)
        return not any(self._maker(asset, day) == run.run_id for asset in assets)

    @cached_property
    def _at_work(self) -> set[str]:
        """Root runs of the queued and running runs, which may be re-executions."""
        return {root_run_id(run) for run in self.instance.get_runs(dg.RunsFilter(statuses=ACTIVE))}

    @cached_property
    def _assets(self) -> Sequence[dg.AssetKey]:
        return self.instance.get_asset_keys()

    def _is_newest(self, run: dg.DagsterRun) -> bool:
        """Return whether a run is its day's newest, whose id is in the next run's key."""
        day = run.tags.get(PARTITION_TAG)
        if day is not None and day not in self._newest:
            self._newest[day] = newest_run(self.instance, day)
        return day is not None and self._newest[day] == run.run_id

    def _maker(self, asset: dg.AssetKey, partition: str | None) -> str | None:
        """Return the run of an asset's newest materialisation for a day, which the UI shows."""
        if (asset, partition) not in self._makers:
            filters = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition else None)
            records = self.instance.fetch_materializations(filters, limit=1).records
            self._makers[asset, partition] = records[0].run_id if records else None
        return self._makers[asset, partition]


@contextmanager
def old_runs_of(home: Path, database: Database) -> Iterator[OldRuns | None]:
    """Open the runs of a DAGSTER_HOME; None without the folder. Raises DatabaseUnavailableError."""
    if not home.is_dir():
        yield None
        return
    with instance_of(home) as instance:
        if instance is None:
            raise DatabaseUnavailableError(
                "Dagster's runs cannot be read", observed=str(home), next_step="upgrade Dagster's storage (kfm init)"
            )
        yield OldRuns(instance=instance, database=database)
