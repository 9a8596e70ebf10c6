"""Planning: the number of runs for each partition and lane, from the ledger's pending units.

Starting a run takes seconds, and ingesting a unit a millisecond, so a partition gets a run only if it has more pending
units than its coming runs will claim. Units that arrive later wait in the ledger for the next run.

A run claims units of a single lane, so that bulk work never lengthens a live run. The number of bulk runs at a time is
limited, however many bulk units wait.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.ledger.reports import PendingPartition
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings

OVERLAPPING: Mapping[Lane, int] = {Lane.LIVE: 2, Lane.BULK: 1}
"""Runs of a partition and lane that may work at the same time, even for few units. Units that arrive during a single
live run would wait for its end. A second live run lowers the 95th percentile of this wait by a tick."""
WORTH_A_RUN = 100
"""Number of live units that get a further run instead of waiting for an active run's end. Their ingest takes a third
of the CPU time of a run's start (benchmarks/latency.py)."""

LaneKey = tuple[str, Lane]
"""A partition and a lane; runs are counted by both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A run to request: a partition, a lane, and the datasets with pending units there."""

    partition: str
    lane: Lane
    datasets: tuple[str, ...]
    run_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveRuns:
    """Queued and running runs by partition and lane; `coming` counts runs without claims yet."""

    active: Counter[LaneKey]
    coming: Counter[LaneKey]

    def of(self, lane: Lane) -> int:
        """Return the number of active runs of a lane."""
        return sum(runs for (_, of_lane), runs in self.active.items() if of_lane is lane)

    def with_requested(self, requested: Counter[LaneKey]) -> ActiveRuns:
        """Return these runs and further requested runs, which have not started."""
        return ActiveRuns(active=self.active + requested, coming=self.coming + requested)


def of_known_days(
    pending: Iterable[PendingPartition], known: Callable[[str], bool]
) -> tuple[list[PendingPartition], Counter[str]]:
    """Separate entries of days that Dagster knows; count the units of the other days by day.

    A run of an unknown day would fail the whole tick. An unknown day has not begun, or was added to the window after
    the code location was loaded. Its units stay pending until Dagster knows the day.
    """
    waiting = list(pending)
    unknown: Counter[str] = Counter()
    for entry in waiting:
        if not known(entry.partition):
            unknown[entry.partition] += entry.units
    return [entry for entry in waiting if entry.partition not in unknown], unknown


def why_unknown(unknown: Mapping[str, int], *, today: str) -> str:
    """Return a sentence on the units whose day Dagster does not know; empty if there are none."""
    past = sorted(day for day in unknown if day <= today)
    future = sorted(day for day in unknown if day > today)
    reasons = []
    if past:
        units = sum(unknown[day] for day in past)
        reasons.append(
            f"{counted(units, 'unit')} of {_span(past)} on hold: the code location was loaded before these partitions "
            "existed; reload it"
        )
    if future:
        reasons.append(
            f"{counted(sum(unknown[day] for day in future), 'unit')} of {_span(future)} on hold until the day begins"
        )
    return "; ".join(reasons)


def _span(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{len(days)} days from {days[0]} to {days[-1]}"


def lane_limits(settings: Settings, *, run_slots: int | None, bulk_waits: bool) -> dict[Lane, int | None]:
    """Return the limit of active runs of each lane; None means no limit.

    `run_slots` is the deployment's limit of runs in progress (None: no limit). Bulk work gets the slots that the live
    share leaves. Live work gets all slots, but one fewer while bulk work waits, because a queue full of live runs would
    block bulk work for ever.
    """
    bulk = settings.bulk_runs(run_slots)
    alone = run_slots is None or bulk == 0 or not bulk_waits
    return {Lane.LIVE: None if alone or run_slots is None else max(1, run_slots - 1), Lane.BULK: bulk}


def plan_runs(
    pending: Iterable[PendingPartition],
    *,
    runs: ActiveRuns,
    limits: Mapping[Lane, int | None],
    max_units_per_run: int,
    salt: Callable[[str], str],
) -> list[PlannedRun]:
    """Return the runs that the pending units need beyond the coming runs, live runs first.

    A partition with fewer active runs than OVERLAPPING gets runs for all pending units of a lane. With as many or more,
    it gets runs only for batches that are worth a run, because otherwise a live feed would start a run for each few
    units that arrive during other runs. Each lane gets runs up to its limit, the earliest partitions first.

    Dagster remembers a run_key for ever, so `salt(partition)` must change after each run of the partition.
    """
    units: dict[LaneKey, dict[str, int]] = defaultdict(dict)
    for entry in pending:
        units[entry.partition, entry.lane][entry.dataset] = entry.units
    planned: list[PlannedRun] = []
    for lane in (Lane.LIVE, Lane.BULK):
        # A generator, read only up to the limit, because a day's backlog may need a thousand runs.
        needed = (
            run
            for (partition, of_lane), by_dataset in sorted(units.items())
            if of_lane is lane
            for run in _runs_of(
                (partition, lane), by_dataset, runs=runs, max_units_per_run=max_units_per_run, salt=salt
            )
        )
        limit = limits.get(lane)
        planned += islice(needed, None if limit is None else max(0, limit - runs.of(lane)))
    return planned


def _runs_of(
    key: LaneKey,
    by_dataset: Mapping[str, int],
    *,
    runs: ActiveRuns,
    max_units_per_run: int,
    salt: Callable[[str], str],
) -> Iterator[PlannedRun]:
    """Yield the runs that a partition's lane needs beyond its coming runs."""
    partition, lane = key
    # A run takes up to max_units_per_run of each dataset, so the fullest dataset sets the number of runs.
    full_runs, rest = divmod(max(by_dataset.values()), max_units_per_run)
    # Bulk work is less urgent, so it waits for a larger batch.
    least = max_units_per_run / 2 if lane is Lane.BULK else min(WORTH_A_RUN, max_units_per_run / 2)
    worth_a_run = rest > 0 and (runs.active[key] < OVERLAPPING[lane] or rest >= least)
    for index in range(runs.coming[key], full_runs + worth_a_run):
        datasets = tuple(sorted(name for name, count in by_dataset.items() if count > index * max_units_per_run))
        name = [partition, datasets, lane.value, index, salt(partition)]
        yield PlannedRun(
            partition=partition,
            lane=lane,
            datasets=datasets,
            run_key=hashlib.sha256(json.dumps(name).encode()).hexdigest(),
        )
