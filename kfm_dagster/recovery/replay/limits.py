"""Limits of replays by environment, the names of the guards, and the pace of batches (pure).

A spec can lower these limits, but not raise them. More records need a second replay, or a change of this table. Bulk
units always wait for live units; in addition, the pace limits the number of bulk units, and holds the next batch when
live units wait too long. Does not belong here: whether a guard refuses (`plan.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.recovery.replay.selection import Selection
from kfm_dagster.settings import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a replay; rates and numbers in flight are limits of all replays together.

    The defaults are dev's limits.
    """

    max_selection_records: int = 50_000
    max_records_of_days: int = 100_000
    """Limit of records for a selection with a first and last day, such as all Items of a release in a range of days.

    It covers a month of HRRR or 3 days of NEXRAD, and needs about 160 MB in memory and 17 minutes at prod's rate.
    """
    max_batch_size: int = 1_000
    default_batch_size: int = 500
    max_batches: int = 1_000
    records_per_second: float = 1_000
    batches_per_minute: int = 120
    batches_in_flight_per_dataset: int = 20
    batches_in_flight: int = 40
    max_window: timedelta | None = None
    """Longest span of time that a selection may cover; None: no limit."""
    global_scope: bool = True
    """Whether a selection may have every dataset."""
    needs_change_ref: bool = False
    """Whether a replay needs a change or incident reference even if it replaces no result."""


LIMITS: Mapping[Environment, Limits] = {
    Environment.DEV: Limits(),
    Environment.STAGE: Limits(
        max_selection_records=20_000,
        max_batches=200,
        records_per_second=500,
        batches_per_minute=60,
        batches_in_flight_per_dataset=8,
        batches_in_flight=16,
        max_window=timedelta(days=92),
    ),
    # 5,000 records are ten batches of 500. Eight batches in flight have 4,000 units, which one run can claim.
    Environment.PROD: Limits(
        max_selection_records=5_000,
        max_batch_size=500,
        max_batches=50,
        records_per_second=100,
        batches_per_minute=30,
        batches_in_flight_per_dataset=4,
        batches_in_flight=8,
        max_window=timedelta(days=31),
        global_scope=False,
        needs_change_ref=True,
    ),
}

QUEUE_AGE_SLO_SECONDS = 90.0
"""Longest wait of a live unit (service level NODD-Q-AGE-CRIT: P90 of the queue age)."""
SLOW_DOWN_AT = 0.5
"""Share of QUEUE_AGE_SLO_SECONDS above which replays run at half their rate."""
HOLD_AT = 0.8
"""Share of QUEUE_AGE_SLO_SECONDS above which replays admit nothing."""


@unique
class Guard(StrEnum):
    """A guard that can refuse a replay."""

    ENVIRONMENT = "environment"
    """The selection is for another environment."""
    SCOPE = "scope"
    """The selection lacks a dataset, a time, or a status or error code, and has no explicit wal_ids."""
    GLOBAL_SCOPE = "global_scope"
    """The selection has every dataset."""
    WINDOW = "window"
    """The time is open, or longer than a replay may cover."""
    MAX_SELECTION_RECORDS = "max_selection_records"
    """The selection has more records than a replay may select."""
    MAX_BATCH_SIZE = "max_batch_size"
    """The batches are larger than a transaction should hold."""
    MAX_BATCHES = "max_batches"
    """The selection needs more batches than a replay may have."""
    RATE = "rate"
    """The rate is higher than the environment allows."""
    APPROVAL = "approval"
    """Results would be replaced, or units released, without a governed approval."""
    CHANGE_REFERENCE = "change_reference"
    """The environment requires a change or incident reference."""
    KILL_SWITCH = "kill_switch"
    """A dataset of the selection is switched off."""
    DOWNGRADE = "downgrade"
    """Results of a newer release would be replaced by this release's results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A guard's refusal with its reason."""

    guard: Guard
    what: str
    observed: object
    expected: object
    next_step: str

    def as_json(self) -> dict[str, str]:
        """Return the published form."""
        return {name: str(value) for name, value in asdict(self).items()}


class GuardError(KfmError):
    """A guard refused the replay."""

    exit_code = ExitCode.REFUSED

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        first, *more = refusals
        self.refusals = tuple(refusals)
        also = f" (and {', '.join(refusal.guard for refusal in more)})" if more else ""
        super().__init__(
            f"guard {first.guard} refused{also}: {first.what}",
            observed=first.observed,
            expected=first.expected,
            next_step=first.next_step,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A selection, with the environment, limits and change reference of its replay."""

    selection: Selection
    env: Environment
    limits: Limits
    change_ref: str | None

    @property
    def max_records(self) -> int:
        """Maximum number of records that the replay may select."""
        of_days = self.selection.spec.filters.days.are_bounded
        return self.limits.max_records_of_days if of_days else self.limits.max_selection_records

    @property
    def max_batches(self) -> int:
        """Maximum number of batches; for bounded days, at least enough for the maximum of records."""
        if self.selection.spec.filters.days.are_bounded:
            return max(self.limits.max_batches, -(-self.max_records // self.batch_size))
        return self.limits.max_batches

    @property
    def batch_size(self) -> int:
        """Units of a batch."""
        return self.selection.spec.limits.batch_size or self.limits.default_batch_size


RATES = ("records_per_second", "batches_per_minute")
"""Limits that the options of a replay can lower."""
REMEMBERED = timedelta(hours=1)
"""Older batches do not count for the pace. The slowest batch, 1,000 records, takes 33 minutes: the lowest rate of a
selection is 1 record a second, and `SLOW_DOWN_AT` halves it."""


@unique
class HoldReason(StrEnum):
    """The reason for delaying the next batch."""

    GUARD = "guard"
    """A guard refuses now, although it allowed the start; a person has to act."""
    QUEUE_AGE = "queue_age"
    """Live units wait too long."""
    IN_FLIGHT = "in_flight"
    """Earlier batches have not ended."""
    RATE = "rate"
    """The batch would follow the last batch too soon."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """The reason for admitting no batch now."""

    reason: HoldReason
    observed: str
    expected: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.observed}, expected {self.expected}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The batches of all replays, and the waiting time of live units.

    `in_flight` has (replay, batch, dataset) for every batch with a unit that is pending or in progress. `recent` has
    the time of admission and the number of admitted units for the latest batches of all replays.
    """

    now: datetime
    in_flight: Collection[tuple[str, int, str]]
    recent: Sequence[tuple[datetime, int]]
    live_waits_since: datetime | None


def reason_to_hold(traffic: Traffic, *, limits: Limits, datasets: Collection[str]) -> Hold | None:
    """Return the reason for delaying a batch of these datasets, or None."""
    age = queue_age(traffic)
    share = age / QUEUE_AGE_SLO_SECONDS
    if share >= HOLD_AT:
        return Hold(
            reason=HoldReason.QUEUE_AGE,
            observed=f"a live unit has waited {age:.0f} s",
            expected=f"less than {HOLD_AT * QUEUE_AGE_SLO_SECONDS:.0f} s",
        )
    factor = 0.5 if share >= SLOW_DOWN_AT else 1.0
    return _in_flight(traffic, limits, datasets) or _too_soon(traffic, limits, factor)


def queue_age(traffic: Traffic) -> float:
    """Return the waiting time of the oldest live unit, in seconds; 0 when none waits."""
    if traffic.live_waits_since is None:
        return 0.0
    return max((traffic.now - traffic.live_waits_since).total_seconds(), 0.0)


def _in_flight(traffic: Traffic, limits: Limits, datasets: Collection[str]) -> Hold | None:
    batches = {(replay, batch) for replay, batch, _ in traffic.in_flight}
    if len(batches) >= limits.batches_in_flight:
        return Hold(
            reason=HoldReason.IN_FLIGHT,
            observed=f"{len(batches)} batches in flight",
            expected=f"fewer than {limits.batches_in_flight}",
        )
    by_dataset = Counter(dataset for _, _, dataset in set(traffic.in_flight))
    for dataset in sorted(datasets):
        if by_dataset[dataset] >= limits.batches_in_flight_per_dataset:
            return Hold(
                reason=HoldReason.IN_FLIGHT,
                observed=f"{by_dataset[dataset]} batches of {dataset} in flight",
                expected=f"fewer than {limits.batches_in_flight_per_dataset}",
            )
    return None


def _too_soon(traffic: Traffic, limits: Limits, factor: float) -> Hold | None:
    minute_ago = traffic.now - timedelta(minutes=1)
    batches = sum(1 for decided_at, _ in traffic.recent if decided_at > minute_ago)
    allowed = max(limits.batches_per_minute * factor, 1)
    if batches >= allowed:
        return Hold(
            reason=HoldReason.RATE, observed=f"{batches} batches within a minute", expected=f"at most {allowed:g}"
        )
    for decided_at, admitted in traffic.recent:
        free_at = decided_at + timedelta(seconds=admitted / (limits.records_per_second * factor))
        if free_at > traffic.now:
            return Hold(
                reason=HoldReason.RATE,
                observed=f"{admitted} records were admitted at {rfc3339(decided_at)}",
                expected=f"{limits.records_per_second * factor:g} records a second",
            )
    return None
