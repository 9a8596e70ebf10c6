"""Scheduled listings: backfills that contracts schedule (`storage.scheduled_listing`).

A listing is a backfill of one day of one dataset, with its interval in its id. The database takes an id once: so an
interval has at most one listing, however many processes run and whatever crashes. It is carried out as any backfill
(`days.py`), and the next listing waits for its end. Does not belong here: the objects of a listing.
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

    A listing is due once per interval, unless its dataset is off or a running backfill has it.
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
    started = []
    for backfill_id in sorted(due):
        dataset, day = listings[backfill_id]
        decision = Decision(actor=ACTOR, reason=f"storage.scheduled_listing of {dataset}")
        if off.of(dataset) is None and backfills.start_listing(
            backfill_id, dataset=dataset, day=day, decision=decision
        ):
            started.append(backfill_id)
    return tuple(started)


def _scheduled(registry: ContractRegistry, *, now: datetime) -> Iterator[tuple[str, tuple[str, date]]]:
    """Yield id, dataset and day of the current intervals' listings; intervals count from 1970."""
    for contract in registry:
        schedule = contract.storage.scheduled_listing
        if schedule is not None:
            since = datetime.fromtimestamp(now.timestamp() // schedule.every_seconds * schedule.every_seconds, UTC)
            grammar = registry.grammars[contract.id]
            recent = [now.date() - timedelta(days=number) for number in range(schedule.days_back + 1)]
            for day in sorted({grammar.day_holding(day) for day in recent}):
                # Every process derives the same id.
                digest = hashlib.sha256(f"{contract.id}/{day}".encode()).hexdigest()
                yield f"bf-{since:%Y%m%dT%H%M%S}-{digest[:12]}", (contract.id, day)
