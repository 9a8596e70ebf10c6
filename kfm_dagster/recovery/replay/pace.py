"""The pace of a replay: when its next batch may come (pure).

The bulk lane waits for the live lane anyway; the pace bounds its size, and stops it when live units begin to wait.
Belongs here: rates, batches in flight, and giving way to the queue-age service level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.recovery.replay.limits import HOLD_AT, QUEUE_AGE_SLO_SECONDS, SLOW_DOWN_AT, Limits

RATES = ("records_per_second", "batches_per_minute")
"""Limits that a replay's own options may lower."""
REMEMBERED = timedelta(hours=1)
"""How far back batches count; the largest batch at the lowest rate is over in 17 minutes."""


@unique
class HoldReason(StrEnum):
    """Why the next batch has to wait."""

    GUARD = "guard"
    """A guard refuses what it allowed at the start; a person has to act."""
    QUEUE_AGE = "queue_age"
    """Live units wait too long."""
    IN_FLIGHT = "in_flight"
    """Earlier batches are not done."""
    RATE = "rate"
    """It would be too soon after the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """Why no batch is admitted at this moment."""

    reason: HoldReason
    observed: str
    expected: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.observed}, expected {self.expected}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The batches of all replays, and how long live units wait.

    `in_flight` holds (replay, batch, dataset) of every batch with a unit that is pending or in progress, `recent` the
    times at which any replay's latest batches were decided on, and how many units each admitted.
    """

    now: datetime
    in_flight: Collection[tuple[str, int, str]]
    recent: Sequence[tuple[datetime, int]]
    live_waits_since: datetime | None


def hold(traffic: Traffic, *, limits: Limits, datasets: Collection[str]) -> Hold | None:
    """Return why a batch of these datasets has to wait, or None when it may come now."""
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
    """Return how long the oldest live unit has waited, in seconds; 0 when none waits."""
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
                observed=f"{admitted} records were let in at {rfc3339(decided_at)}",
                expected=f"{limits.records_per_second * factor:g} records a second",
            )
    return None
