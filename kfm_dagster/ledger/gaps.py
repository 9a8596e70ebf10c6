"""The gap table: missing objects of followed products (BEY-05), and arrival times.

All rows of the table are derived from the ledger. An arrival time is the delay of an announcement after the start of
its scan or run. These times are counted by day, product and lead (forecast hour), in classes 1 s wide up to 50 s, and 2
% wide beyond. A percentile over months is computed from the classes by nearest rank; its error is at most 0.5 s, or 1 %
beyond 50 s. Belongs here: the rows, the classes, and the followed feeds. Does not belong here: which hours lack objects
(`contracts/cadence.py`), and when hours are checked and days are counted (`ingest/feed_watch.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.contracts.cadence import ProductHour, floor_hour, products_of
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.database import Database, Transaction


@unique
class GapKind(StrEnum):
    """Fault of a product's feed."""

    SILENCE = "silence"
    """Nothing was announced for two cadences; the gap is open until the next announcement."""
    DROP = "drop"
    """Fewer than half of the objects due over four cadences were announced; open until that changes."""
    HOLE = "hole"
    """An hour has fewer objects than expected, `settles_after_seconds` after its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A gap. `hour` is the incomplete hour; for silences and drops the hour of detection."""

    dataset: str
    product: str
    hour: datetime
    kind: GapKind
    expected: int
    seen: int
    first_seen: datetime
    closed_at: datetime | None
    repaired_by: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedProduct:
    """A followed product: expected in its due hours after the hour of `followed_since`."""

    dataset: str
    product: str
    followed_since: datetime
    looked_until: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedWindow:
    """A product of a dataset, and the start times for counting its announcements."""

    dataset: str
    product: str
    groups: Mapping[str, str]
    silent_since: datetime
    since: datetime
    expected: int
    least: float


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The gap table of a database."""

    database: Database

    def follow(self, dataset: str, since: Mapping[str, datetime], *, tx: Transaction) -> None:
        """Expect products from the hour after these times, unless they are already followed."""
        if since:
            feeds = [{"product": name, "since": at} for name, at in sorted(since.items())]
            tx.run("gaps.follow", dataset=dataset, feeds=feeds)

    def listed(self, dataset: str, day: str, *, at: datetime, tx: Transaction) -> None:
        """Expect every object of a day whose bucket listing was complete."""
        tx.run("gaps.listed", dataset=dataset, day=day, at=at)

    def feeds(self) -> list[FollowedProduct]:
        """Return the followed products, by dataset and product."""
        with self.database.snapshot() as view:
            return view.rows(FollowedProduct, "gaps.feeds")

    def listed_days(self, first: date, last: date) -> set[tuple[str, date]]:
        """Return (dataset, day) of the listed days within a window."""
        with self.database.snapshot() as view:
            rows = view.run("gaps.listed_days", first=first.isoformat(), last=last.isoformat()).all()
        return {(row.dataset, date.fromisoformat(row.day)) for row in rows}

    def record(
        self, dataset: str, hours: Sequence[ProductHour], *, at: datetime, run_id: str | None = None
    ) -> tuple[int, int]:
        """Open a gap for each incomplete hour, and close the gaps of hours that are complete now.

        `run_id`: the run that ingested the objects. Returns the numbers of new or changed gaps, and of closed gaps.
        """
        if not hours:
            return 0, 0
        with self.database.transaction() as tx:
            parts = {"dataset": dataset, "hours": list(map(asdict, hours)), "at": at}
            changed = tx.run("gaps.record", parts).all()
            closed = tx.run("gaps.close", parts, run_id=run_id).all()
        return len(changed), len(closed)

    def look_at(self, windows: Iterable[FeedWindow], *, at: datetime) -> None:
        """Open and close silences and drops by the announcements in windows that end at `at`."""
        watched = {(window.dataset, window.product): window for window in windows}
        if not watched:
            return
        with self.database.snapshot() as view:
            rows = view.run("gaps.recent", feeds=list(map(asdict, watched.values()))).all()
        amiss: list[dict[str, object]] = []
        over: list[dict[str, object]] = []
        for row in rows:
            window = watched[row.dataset, row.product]
            silent, seen = not row.newest, int(row.seen)
            # A silence is a drop, too, but is reported only as a silence.
            dropped = not silent and seen < window.least
            for kind, holds, known in (
                (GapKind.SILENCE, silent, 0),
                (GapKind.DROP, dropped, seen),
            ):
                gap = {"dataset": window.dataset, "product": window.product, "kind": kind.value}
                (amiss if holds else over).append({**gap, "expected": window.expected, "seen": known})
        with self.database.transaction() as tx:
            # Locked, because two processes may check concurrently.
            tx.lock("nodd_gaps")
            tx.run("gaps.close_now", gaps=over, at=at)
            tx.run("gaps.open_now", gaps=amiss, hour=floor_hour(at), at=at)

    def close_unwatched(self, windows: Iterable[FeedWindow], *, at: datetime) -> None:
        """Close silences and drops of products without a window; nothing else would close them."""
        watched = [{"dataset": window.dataset, "product": window.product} for window in windows]
        with self.database.transaction() as tx:
            tx.run("gaps.close_unwatched", watched=watched, at=at)

    def looked(self, dataset: str, *, until: datetime) -> None:
        """Record the hour until which a dataset was checked."""
        with self.database.transaction() as tx:
            tx.run("gaps.looked", dataset=dataset, until=until)

    def open_days(self, dataset: str, *, since: datetime) -> list[date]:
        """Return the days with open holes, earliest first."""
        with self.database.snapshot() as view:
            rows = view.run("gaps.open_days", dataset=dataset, since=since).scalars()
            return [date.fromisoformat(day) for day in rows]

    def list(
        self,
        *,
        since: datetime,
        dataset: str | None = None,
        closed: bool = False,
        limit: int = 1_000_000,
    ) -> list[Gap]:
        """Return the open gaps of hours from `since` on, and open silences and drops of any age.

        With `closed`, closed gaps of these hours are returned, too.
        """
        where = {"since": since, "dataset": dataset, "closed": int(closed), "limit": limit}
        with self.database.snapshot() as tx:
            return tx.rows(Gap, "gaps.list", where)


def followed_in(tx: Transaction, dataset: str, day: str) -> Mapping[str, datetime] | None:
    """Return each product's `followed_since`; None for a listed day, which must be complete."""
    if any(row.dataset == dataset for row in tx.run("gaps.listed_days", first=day, last=day)):
        return None
    return {row.product: row.followed_since for row in tx.run("gaps.feeds") if row.dataset == dataset}


GROWTH = math.log(1.02)
"""Logarithmic step between the classes' bounds: the middle of a class is off by 1 % at most."""
EXACT_BELOW = 50
"""Up to this number of seconds each second is a class; above it classes are 2 % wide."""
NO_LEAD = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrivalTimes:
    """Seconds from the start of a scan or run to its announcement; `lead` None means all leads."""

    dataset: str
    product: str
    lead: str | None
    objects: int
    p50: float
    p95: float
    p99: float


def class_of(seconds: int) -> int:
    """Return the class of a time; a negative time (announced before the scan began) counts as 0."""
    if seconds <= EXACT_BELOW:
        return max(0, seconds)
    return EXACT_BELOW + 1 + int(math.log(seconds / EXACT_BELOW) / GROWTH)


def seconds_of(number: int) -> float:
    """Return the midpoint of a class, in seconds."""
    if number <= EXACT_BELOW:
        return float(number)
    return float(EXACT_BELOW * math.exp((number - EXACT_BELOW - 0.5) * GROWTH))


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Return the time within which a share (0 to 1) of the objects arrived, by nearest rank."""
    rank = max(1, math.ceil(share * sum(counts.values())))
    total = 0
    for number in sorted(counts):
        total += counts[number]
        if total >= rank:
            return seconds_of(number)
    raise ValueError("no arrival is counted")


def count_day(contract: DatasetContract, day: date, *, tx: Transaction) -> None:
    """Recount a day's arrivals if the contract declares a coverage."""
    if contract.coverage is None:
        return
    lead = contract.storage.key_grammar.end_offset_hours
    counters: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in tx.run("gaps.arrivals_of_day", dataset=contract.id, day=day.isoformat()):
        began = datetime.combine(day, time(row.hour), UTC)
        lead_name = str(row.extension.get(lead, NO_LEAD)) if lead else NO_LEAD
        for product in products_of(contract.coverage, row.extension, began):
            counters[product.name][lead_name][str(class_of(row.seconds))] += row.objects
    batch = [_row(product, leads) for product, leads in sorted(counters.items())]
    if batch:
        tx.run("gaps.keep_arrivals", dataset=contract.id, day=day.isoformat(), arrivals=batch)


def _row(product: str, leads: Mapping[str, Counter[str]]) -> dict[str, Any]:
    classes = sum(leads.values(), Counter[str]())
    return {
        "product": product,
        "objects": classes.total(),
        "classes": classes,
        "leads": {name: counts for name, counts in leads.items() if name != NO_LEAD},
    }


def counted_days(dataset: str, *, since: date, tx: Transaction) -> set[date]:
    """Return the counted days from `since` on."""
    rows = tx.run("gaps.arrival_days", dataset=dataset, since=since.isoformat()).scalars()
    return {date.fromisoformat(day) for day in rows}


def arrival_times(
    database: Database, *, first: date, last: date, dataset: str | None = None, by_lead: bool = False
) -> list[ArrivalTimes]:
    """Return the percentiles over a window of days, by product and, with `by_lead`, by lead."""
    window = {"first": first.isoformat(), "last": last.isoformat(), "dataset": dataset}
    totals: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    with database.snapshot() as view:
        for row in view.run("gaps.arrivals_by_lead" if by_lead else "gaps.arrivals", window):
            parts = row.leads if by_lead and row.leads else {NO_LEAD: row.classes}
            for lead, classes in parts.items():
                totals[row.dataset, row.product, lead].update(classes)
    return [
        _times(dataset, product, lead or None, {int(number): objects for number, objects in counts.items()})
        for (dataset, product, lead), counts in sorted(totals.items())
    ]


def _times(dataset: str, product: str, lead: str | None, counts: Mapping[int, int]) -> ArrivalTimes:
    p50, p95, p99 = (percentile(counts, share) for share in (0.5, 0.95, 0.99))
    return ArrivalTimes(
        dataset=dataset, product=product, lead=lead, objects=sum(counts.values()), p50=p50, p95=p95, p99=p99
    )
