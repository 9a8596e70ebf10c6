"""Scheduled listings: backfills that a deployment begins by itself, as contracts say (`storage.scheduled_listing`).

A listing is a backfill of one day of one dataset under the name of its interval, and the database gives a name once: so
an interval has one listing at most, however many processes look and whatever dies. It is carried out as any backfill
is (`days.py`). The next one waits for the end of the one before. Does not belong here: what a listing finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.settings import Settings

ACTOR = "kfm_dagster"


def begin_due_listings(backfills: Backfills, settings: Settings) -> tuple[str, ...]:
    """Begin the listings that are due; return the ids of their backfills.

    A listing is due when nobody has begun it in this interval, unless its dataset is off or a running backfill has it.
    """
    ledger, now = backfills.pipeline.ledger, backfills.pipeline.clock()
    listings = dict(_scheduled(ledger.registry, now=now)) if settings.scheduled_listings else {}
    if not listings:
        return ()
    rows = [
        {"backfill_id": backfill_id, "dataset": dataset, "day": day.isoformat()}
        for backfill_id, (dataset, day) in listings.items()
    ]
    with ledger.database.snapshot() as view:
        due = view.run("backfill.due_listings", listings=rows).scalars().all()
    if not due:
        return ()
    off = KillSwitchPolicy.now(ledger.switches)
    begun = []
    for backfill_id in sorted(due):
        dataset, day = listings[backfill_id]
        decision = Decision(actor=ACTOR, reason=f"storage.scheduled_listing of {dataset}")
        if off.of(dataset) is None and backfills.start_listing(
            backfill_id, dataset=dataset, day=day, decision=decision
        ):
            begun.append(backfill_id)
    return tuple(begun)


def _scheduled(registry: ContractRegistry, *, now: datetime) -> Iterator[tuple[str, tuple[str, date]]]:
    """Yield the listings of the present intervals, counted from 1970 on: the backfill's id, the dataset, the day."""
    for contract in registry:
        schedule = contract.storage.scheduled_listing
        if schedule is not None:
            since = datetime.fromtimestamp(now.timestamp() // schedule.every_seconds * schedule.every_seconds, UTC)
            grammar = registry.grammars[contract.id]
            back = [now.date() - timedelta(days=number) for number in range(schedule.days_back + 1)]
            for day in sorted({grammar.day_holding(day) for day in back}):
                # The same in every process.
                digest = hashlib.sha256(f"{contract.id}/{day}".encode()).hexdigest()
                yield f"bf-{since:%Y%m%dT%H%M%S}-{digest[:12]}", (contract.id, day)
