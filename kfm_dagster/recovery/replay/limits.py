"""The limits of a replay by environment, and the service levels that it gives way to. Values only.

A spec may ask for less and never for more; a replay that needs more is two replays, or a change of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from kfm_dagster.settings import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one replay may do in an environment; the numbers in flight and the rates hold for all replays together."""

    max_selection_records: int
    max_records_of_days: int
    """The same where a selection names its first and last day: a decision about a release's Items covers a range."""
    max_batch_size: int
    default_batch_size: int
    max_batches: int
    records_per_second: float
    batches_per_minute: int
    batches_in_flight_per_dataset: int
    batches_in_flight: int
    max_window: timedelta | None
    """Longest span of time that one selection may cover; None: any."""
    global_scope: bool
    """Whether every dataset may be meant at once."""
    needs_change_ref: bool
    """Whether every replay needs a change or incident reference, not only one that replaces results."""


RECORDS_OF_DAYS = 100_000
"""A month of HRRR or three days of NEXRAD: about 160 MB while they are selected, and 17 minutes at the rate of prod."""

LIMITS: Mapping[Environment, Limits] = {
    Environment.DEV: Limits(
        max_selection_records=50_000,
        max_records_of_days=RECORDS_OF_DAYS,
        max_batch_size=1_000,
        default_batch_size=500,
        max_batches=1_000,
        records_per_second=1_000,
        batches_per_minute=120,
        batches_in_flight_per_dataset=20,
        batches_in_flight=40,
        max_window=None,
        global_scope=True,
        needs_change_ref=False,
    ),
    Environment.STAGE: Limits(
        max_selection_records=20_000,
        max_records_of_days=RECORDS_OF_DAYS,
        max_batch_size=1_000,
        default_batch_size=500,
        max_batches=200,
        records_per_second=500,
        batches_per_minute=60,
        batches_in_flight_per_dataset=8,
        batches_in_flight=16,
        max_window=timedelta(days=92),
        global_scope=True,
        needs_change_ref=False,
    ),
    # 5,000 records are ten batches of 500: at one every two seconds the bulk lane never holds more than a run claims.
    Environment.PROD: Limits(
        max_selection_records=5_000,
        max_records_of_days=RECORDS_OF_DAYS,
        max_batch_size=500,
        default_batch_size=500,
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
"""Longest that a live unit should wait (service level NODD-Q-AGE-CRIT: P90 of the queue age)."""
SLOW_DOWN_AT = 0.5
"""Share of it from which replays go at half their rate."""
HOLD_AT = 0.8
"""Share of it from which replays let nothing in."""
