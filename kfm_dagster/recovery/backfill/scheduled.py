"""Scheduled listings: backfills that a deployment begins by itself, as contracts say (`storage.scheduled_listing`).

A listing is a backfill of one day of one dataset under the name of its interval, and the database gives a name once: so
an interval has one listing at most, however many processes look and whatever dies. It is carried out as any backfill
is (`days.py`). The next one waits for the end of the one before. Does not belong here: what a listing finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.settings import Settings

ACTOR = "kfm_dagster"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listing:
    """One day of one dataset in one interval, which begins at `since`."""

    dataset: str
    day: date
    since: datetime

    @property
    def backfill_id(self) -> str:
        """Return its name, the same in every process."""
        digest = hashlib.sha256(f"{self.dataset}/{self.day}".encode()).hexdigest()
        return f"bf-{self.since:%Y%m%dT%H%M%S}-{digest[:12]}"


def begin_due_listings(backfills: Backfills, settings: Settings) -> tuple[str, ...]:
    """Begin the listings that are due; return the ids of their backfills.

    Due is what nobody has begun in this interval, unless the dataset is switched off or a running backfill has the day.
    """
    ledger, now = backfills.pipeline.ledger, backfills.pipeline.clock()
    listings = (
        {one.backfill_id: one for one in _scheduled(ledger.registry, now=now)} if settings.scheduled_listings else {}
    )
    if not listings:
        return ()
    asked = [
        {"backfill_id": backfill_id, "dataset": one.dataset, "day": one.day.isoformat()}
        for backfill_id, one in listings.items()
    ]
    with ledger.database.snapshot() as view:
        due = view.run("backfill.due_listings", listings=asked).scalars().all()
    if not due:
        return ()
    off = KillSwitchPolicy.now(ledger.switches)
    on = (listings[backfill_id] for backfill_id in sorted(due) if off.of(listings[backfill_id].dataset) is None)
    return tuple(
        one.backfill_id
        for one in on
        if backfills.start_listing(
            one.backfill_id,
            dataset=one.dataset,
            day=one.day,
            decision=Decision(actor=ACTOR, reason=f"storage.scheduled_listing of {one.dataset}"),
        )
    )


def _scheduled(registry: ContractRegistry, *, now: datetime) -> Iterator[_Listing]:
    """Yield the listings of the present intervals, which are counted from 1970 on."""
    for contract in registry:
        schedule = contract.storage.scheduled_listing
        if schedule is not None:
            since = datetime.fromtimestamp(now.timestamp() // schedule.every_seconds * schedule.every_seconds, UTC)
            grammar = registry.grammars[contract.id]
            back = [now.date() - timedelta(days=number) for number in range(schedule.days_back + 1)]
            for day in sorted({grammar.day_holding(day) for day in back}):
                yield _Listing(dataset=contract.id, day=day, since=since)
