"""Planning: which partitions get how many runs in which lane, from what the ledger has pending.

Starting a run costs seconds and a unit a millisecond, so a partition gets a run only when it has more pending units
than the runs that are coming will take; what arrives meanwhile waits in the ledger for the next one.

A run takes units of one lane: a live run is never lengthened by bulk work, and however much bulk work waits, only so
many of its runs are there at a time.
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
from kfm_dagster.settings import Settings

WORTH_A_RUN = 100
"""Units that get a run beside one that works instead of waiting for its end: their own CPU time is a third of that of a
run's start (benchmarks/latency.py), so a feed of 20/s is ingested tick by tick at not much more than its least cost."""

LaneKey = tuple[str, Lane]
"""A partition and a lane: what runs are counted by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run to ask for: a partition, a lane, and the datasets that have work there."""

    partition: str
    lane: Lane
    datasets: tuple[str, ...]
    run_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveRuns:
    """Runs that are queued or running, and those of them that have not claimed yet, by partition and lane."""

    active: Counter[LaneKey]
    coming: Counter[LaneKey]

    def of(self, lane: Lane) -> int:
        """Return the number of active runs of a lane."""
        return sum(runs for (_, of_lane), runs in self.active.items() if of_lane is lane)

    def and_asked_for(self, asked: Counter[LaneKey]) -> ActiveRuns:
        """Return these and further runs, which are asked for and have not come."""
        return ActiveRuns(active=self.active + asked, coming=self.coming + asked)


def of_known_days(
    pending: Iterable[PendingPartition], known: Callable[[str], bool]
) -> tuple[list[PendingPartition], Counter[str]]:
    """Separate what runs can be asked for from the units of days that Dagster does not know, counted by day.

    A run of an unknown day is an error of the whole tick. Such a unit is of tomorrow, or of a day by which the window
    was lowered after the code location was loaded; it stays pending, and its run comes once its day is known.
    """
    waiting = list(pending)
    unknown: Counter[str] = Counter()
    for entry in waiting:
        if not known(entry.partition):
            unknown[entry.partition] += entry.units
    return [entry for entry in waiting if entry.partition not in unknown], unknown


def why_unknown(unknown: Mapping[str, int], *, today: str) -> str:
    """Say which units wait for Dagster to know their day, and what helps; empty for none."""
    early = sorted(day for day in unknown if day <= today)
    late = sorted(day for day in unknown if day > today)
    reasons = []
    if early:
        units = sum(unknown[day] for day in early)
        reasons.append(
            f"{units} units of {_span(early)} wait: the code location was loaded before the partitions began so early; "
            "reload it"
        )
    if late:
        reasons.append(f"{sum(unknown[day] for day in late)} units of {_span(late)} wait for their day to begin")
    return "; ".join(reasons)


def _span(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{len(days)} days from {days[0]} to {days[-1]}"


def lane_limits(settings: Settings, *, run_slots: int | None, bulk_waits: bool) -> dict[Lane, int | None]:
    """Return how many runs of each lane may be active at a time; None is any number.

    `run_slots` are the runs that may be in progress at once (None: any number). Bulk work has what the live share
    leaves. Live work has everything while no bulk work waits, and all but one run while some does: with every slot's
    queue full of live runs, bulk work would never have its turn.
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
    """Return the runs that the pending units need beyond those that are there, live ones first.

    An idle partition gets runs for all that is pending in a lane, one with active runs only for batches that are worth
    one: otherwise a live feed would cost a run's start for each handful of units that come while one works.
    No lane gets more runs than its limit leaves; the earliest partitions come first.

    A run_key is remembered for ever, so `salt(partition)` has to change once an earlier run of the partition has come.
    """
    units: dict[LaneKey, dict[str, int]] = defaultdict(dict)
    for entry in pending:
        units[entry.partition, entry.lane][entry.dataset] = entry.units
    planned: list[PlannedRun] = []
    for lane in (Lane.LIVE, Lane.BULK):
        # Named one by one, as far as the limit goes: a backlog of a day may need a thousand.
        wanted = (
            run
            for (partition, of_lane), by_dataset in sorted(units.items())
            if of_lane is lane
            for run in _runs_of(
                (partition, lane), by_dataset, runs=runs, max_units_per_run=max_units_per_run, salt=salt
            )
        )
        limit = limits.get(lane)
        planned += islice(wanted, None if limit is None else max(0, limit - runs.of(lane)))
    return planned


def _runs_of(
    key: LaneKey,
    by_dataset: Mapping[str, int],
    *,
    runs: ActiveRuns,
    max_units_per_run: int,
    salt: Callable[[str], str],
) -> Iterator[PlannedRun]:
    """Yield the runs that one lane of one partition needs beyond those that are there."""
    partition, lane = key
    # A run takes up to max_units_per_run of each dataset, so the fullest dataset sets the number of runs.
    full, rest = divmod(max(by_dataset.values()), max_units_per_run)
    # Nobody waits for bulk work so eagerly.
    enough = max_units_per_run / 2 if lane is Lane.BULK else min(WORTH_A_RUN, max_units_per_run / 2)
    worth_a_run = rest > 0 and (not runs.active[key] or rest >= enough)
    for index in range(runs.coming[key], full + worth_a_run):
        datasets = tuple(sorted(name for name, count in by_dataset.items() if count > index * max_units_per_run))
        name = [partition, datasets, lane.value, index, salt(partition)]
        yield PlannedRun(
            partition=partition,
            lane=lane,
            datasets=datasets,
            run_key=hashlib.sha256(json.dumps(name).encode()).hexdigest(),
        )
