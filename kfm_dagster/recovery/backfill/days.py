"""Backfills: list and ingest days of datasets, day by day, beside live messages (DAG-05).

A backfill is stored in the database, so that each tick can continue it. Listed objects are recorded in the bulk lane, a
chunk per transaction, and the sensor `nodd_ledger` plans the runs of their units. A further day is listed only while
fewer bulk units are in flight than `KFM_LIVE_SHARE` leaves to them. Succeeded units stay unchanged, and failed
units are requeued with the reason `backfill`, so repeating a backfill changes nothing else.

A contract's scheduled listing (`storage.scheduled_listing`) is a backfill of one day of one dataset. Its id contains
the interval and a digest of dataset and day, and the database accepts an id only once. So a day is listed at most once
per interval, even if processes crash or several processes begin the listing.
Does not belong here: Dagster (`defs/sensors.py` turns requests into runs), listing (`ingest/discovery.py`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.cadence import days_between
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, refuse_switched_off, units_in_flight
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.backfill.progress import Backfill, BackfillError, find_backfill, listed_backfills
from kfm_dagster.recovery.replay import runs
from kfm_dagster.recovery.replay.selection import Selection, selection_of_days
from kfm_dagster.storage.database import Transaction

ACTOR = "kfm_dagster"
"""The actor of the decision on a scheduled listing."""
PAUSE_SECONDS = 10.0
"""First wait for a run before a listing is requested again; doubled each time."""
MAX_PAUSE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ListingRequest:
    """A run to request: it lists and ingests a day of datasets. `run_key` names the attempt."""

    backfill_id: str
    day: str
    datasets: tuple[str, ...]
    run_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvanceReport:
    """The runs that a step requests; without requests, `reason` says why."""

    requests: tuple[ListingRequest, ...] = ()
    reason: str = "no backfill is running"


@dataclass(frozen=True, slots=True)
class Backfills:
    """The backfills of a deployment."""

    pipeline: Pipeline

    def start(
        self,
        *,
        datasets: Iterable[str],
        first_day: date,
        last_day: date,
        decision: Decision,
        selection: Selection | None = None,
    ) -> Backfill:
        """Record a backfill for the sensor `nodd_due`; earlier days extend the partition window.

        `selection` is the spec of the backfill, if a person has written one. Raises the errors of `days`.
        """
        days = self.days(datasets, first_day, last_day)
        selection = selection or selection_of_days(self.pipeline.settings.env, sorted(days), first_day, last_day)
        backfill_id = f"bf-{self.pipeline.clock():%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        with self.pipeline.ledger.database.transaction() as tx:
            self._create(backfill_id, selection, days, decision, tx)
        return find_backfill(self.pipeline.ledger.database, backfill_id)

    def begin_due(self) -> tuple[str, ...]:
        """Begin the scheduled listings that are due; return the ids of their backfills.

        A listing is due once per interval, unless the dataset is off or a running backfill has the day.
        """
        ledger, settings = self.pipeline.ledger, self.pipeline.settings
        scheduled = _scheduled(ledger.registry, now=self.pipeline.clock()) if settings.scheduled_listings else ()
        listings = dict(scheduled)
        rows = [
            {"backfill_id": backfill_id, "dataset": dataset, "day": day.isoformat()}
            for backfill_id, (dataset, day) in listings.items()
        ]
        with ledger.database.snapshot() as view:
            due = view.run("backfill.due_listings", listings=rows).scalars().all()
            off = ledger.switches.off([listings[backfill_id][0] for backfill_id in due], tx=view)
        started = []
        for backfill_id in sorted(due):
            dataset, day = listings[backfill_id]
            if dataset in off:
                continue
            selection = selection_of_days(settings.env, [dataset], day, day)
            decision = Decision(actor=ACTOR, reason=f"storage.scheduled_listing of {dataset}")
            with ledger.database.transaction() as tx:
                tx.run("replay.lock")
                # Another process can have begun the same listing.
                if tx.run("replay.run", replay_run_id=backfill_id).one_or_none() is None:
                    self._create(backfill_id, selection, {dataset: [day]}, decision, tx)
                    started.append(backfill_id)
        return tuple(started)

    def days(self, datasets: Iterable[str], first_day: date, last_day: date) -> dict[str, list[date]]:
        """Return each dataset's days to list, from its first day (storage.first_day) on.

        Raises ContractError for an unknown dataset, RefusedError for a dataset that is switched off, BackfillError for
        a window that is empty or ends in the future, or in which a dataset has no objects.
        """
        today = self.pipeline.clock().date()
        names = sorted({self.pipeline.ledger.registry[name].id for name in datasets})
        if not names or not first_day <= last_day <= today:
            raise BackfillError(
                "the window cannot be backfilled",
                observed=f"{first_day} to {last_day} of {', '.join(names) or 'no dataset'}",
                expected=f"days until {today}, the first not after the last",
                next_step="correct the days",
            )
        days = {name: self._days_of(name, first_day, last_day) for name in names}
        for name in names:
            refuse_switched_off(self.pipeline.ledger.switches, name)
        return days

    def advance(
        self,
        *,
        listing: Collection[tuple[str, str]],
        limit: int,
        known: Callable[[str], bool] = lambda _: True,
    ) -> AdvanceReport:
        """Advance every running backfill by a step: end finished backfills, request listings.

        `listing` has the (backfill, day) pairs with an active run, `limit` is the maximum number of such pairs, and
        `known` returns whether Dagster has a partition of a day; unknown days wait. If the run of a day died before the
        day was listed, the day is requested again after a pause. A further day is requested only while fewer bulk units
        are in flight than KFM_LIVE_SHARE leaves to them.
        """
        off = KillSwitchPolicy.now(self.pipeline.ledger.switches)
        active = [contract.id for contract in self.pipeline.ledger.registry if off.of(contract.id) is None]
        self._finish()
        with self.pipeline.ledger.database.snapshot() as view:
            listings = [
                _by_day(view.run(name, datasets=active)) for name in ("backfill.requested", "backfill.next_days")
            ]
            running = view.run("backfill.running").scalar_one()
        requested, waiting = ({key: rows for key, rows in days.items() if known(key[1])} for days in listings)
        unknown = sorted({day for days in listings for _, day in days if not known(day)})
        lost = [
            day for day in requested if day not in listing and _pause_is_over(requested[day], now=self.pipeline.clock())
        ]
        room = limit - len(listing) - len(requested.keys() - set(listing) - set(lost))
        units, max_units = (
            units_in_flight(self.pipeline.ledger, Lane.BULK, off, today=self.pipeline.clock().date()),
            self.pipeline.settings.max_bulk_in_flight_units,
        )
        further = list(waiting) if units < max_units else []
        requests = self._request({day: {**waiting, **requested}[day] for day in [*lost, *further][: max(0, room)]})
        if requests or not running:
            return AdvanceReport(requests=requests)
        why = _why_none(off, units, max_units, listing, waiting, running)
        if unknown:
            why = f"the code location does not know {unknown[0]} yet: reload it, then this day is listed; {why}"
        return AdvanceReport(reason=why)

    def _days_of(self, dataset: str, first_day: date, last_day: date) -> list[date]:
        grammar = self.pipeline.ledger.registry.grammars[dataset]
        begins = self.pipeline.ledger.registry[dataset].storage.first_day
        first = max(first_day, begins)
        days = [day for day in days_between(first, last_day) if grammar.day_holding(day) == day]
        if not days:
            holding = max(grammar.day_holding(first), begins)
            raise BackfillError(
                f"{dataset} has no object of these days",
                observed=f"{first_day} to {last_day}",
                expected=(
                    f"days from {holding} on, when {dataset} begins"
                    if first_day < begins
                    else f"days that include {holding}, whose objects hold the data of {first_day}"
                ),
                next_step="correct the days",
            )
        return days

    def _create(
        self,
        backfill_id: str,
        selection: Selection,
        days: Mapping[str, Sequence[date]],
        decision: Decision,
        tx: Transaction,
    ) -> None:
        runs.create(
            tx, replay_run_id=backfill_id, selection=selection, units=(), decision=decision, at=self.pipeline.clock()
        )
        first_day = min(day for dates in days.values() for day in dates)
        self.pipeline.window.lower(
            first_day, actor=decision.actor, reason=f"{backfill_id}: {decision.reason}"[:1000], tx=tx
        )
        for dataset, dates in days.items():
            tx.run("backfill.add_days", backfill_id=backfill_id, dataset=dataset, days=map(str, dates))
        run = runs.get(tx, backfill_id)
        runs.record(self.pipeline.ledger.log, GovernanceAction.REPLAY_STARTED, run, decision, tx)

    def _finish(self) -> None:
        if candidates := listed_backfills(self.pipeline.database):
            with self.pipeline.database.transaction() as tx:
                for backfill_id in candidates:
                    tx.run("backfill.finish", backfill_id=backfill_id, at=self.pipeline.clock())

    def _request(self, days: dict[tuple[str, str], list[Any]]) -> tuple[ListingRequest, ...]:
        if not days:
            return ()
        requests = []
        with self.pipeline.ledger.database.transaction() as tx:
            for (backfill_id, day), rows in days.items():
                requested = tx.run(
                    "backfill.request",
                    backfill_id=backfill_id,
                    day=day,
                    datasets=[row.dataset for row in rows],
                    at=self.pipeline.clock(),
                ).all()
                # Empty if the backfill was stopped since the snapshot.
                if requested:
                    names = tuple(sorted(row.dataset for row in requested))
                    key = f"backfill/{backfill_id}/{day}/{','.join(names)}/{max(row.requests for row in requested)}"
                    requests.append(ListingRequest(backfill_id=backfill_id, day=day, datasets=names, run_key=key))
        return tuple(requests)


def _why_none(
    off: KillSwitchPolicy,
    units: int,
    most: int,
    listing: Collection[tuple[str, str]],
    waiting: Collection[tuple[str, str]],
    running: int,
) -> str:
    if waiting and units >= most:
        return f"{units} bulk units are in flight, KFM_LIVE_SHARE allows {most}; the next day is listed later"
    if waiting or listing:
        return f"{len(listing)} days are being listed; further days wait for these"
    switches = f"; {off.sentences()}" if off.engaged else ""
    return f"{running} backfills wait for their last units{switches}"


def _by_day(rows: Iterable[Any]) -> dict[tuple[str, str], list[Any]]:
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        groups[row.backfill_id, row.day].append(row)
    return dict(groups)


def _pause_is_over(rows: Sequence[Any], *, now: datetime) -> bool:
    latest = max(rows, key=lambda row: row.requested_at)
    pause = min(PAUSE_SECONDS * 2.0 ** (latest.requests - 1), MAX_PAUSE_SECONDS)
    waited: timedelta = now - latest.requested_at
    return waited >= timedelta(seconds=pause)


def _scheduled(registry: ContractRegistry, *, now: datetime) -> Iterator[tuple[str, tuple[str, date]]]:
    """Yield id, dataset and day of the listings of the current intervals, counted from 1970."""
    for contract in registry:
        schedule = contract.storage.scheduled_listing
        if schedule is not None:
            since = datetime.fromtimestamp(now.timestamp() // schedule.every_seconds * schedule.every_seconds, UTC)
            grammar = registry.grammars[contract.id]
            recent = [now.date() - timedelta(days=number) for number in range(schedule.days_back + 1)]
            for day in sorted({grammar.day_holding(day) for day in recent if contract.is_live(day)}):
                # A digest instead of a random number, so that every process has the same id for a listing.
                digest = hashlib.sha256(f"{contract.id}/{day}".encode()).hexdigest()
                yield f"bf-{since:%Y%m%dT%H%M%S}-{digest[:12]}", (contract.id, day)
