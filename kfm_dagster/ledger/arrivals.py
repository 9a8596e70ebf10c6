"""Arrival times: announcement delays after a scan or run, by day, product and lead.

A day is counted once, in classes of whole seconds up to 50 s and of 2 % beyond. A percentile over months is computed
from the classes by nearest rank; it is off by half a second and 1 % at most. Belongs here: the classes and their table.
Does not belong here: when a day is counted (`ingest/feed_watch.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

from kfm_dagster.contracts.cadence import products_of
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.database import Database, Transaction

GROWTH = math.log(1.02)
"""Logarithmic step between the classes' bounds: the middle of a class is off by 1 % at most."""
EXACT_BELOW = 50
"""Up to here each second is a class; beyond, a second is less than 2 %."""
NO_LEAD = ""
PERCENTILES = (50, 95, 99)


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
    """Return the middle of a class, in seconds."""
    if number <= EXACT_BELOW:
        return float(number)
    return float(EXACT_BELOW * math.exp((number - EXACT_BELOW - 0.5) * GROWTH))


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Return by nearest rank the time that a share (0 to 1) of the objects does not exceed."""
    rank = max(1, math.ceil(share * sum(counts.values())))
    total = 0
    for number in sorted(counts):
        total += counts[number]
        if total >= rank:
            return seconds_of(number)
    raise ValueError("nothing is counted")


def count_day(contract: DatasetContract, day: date, *, tx: Transaction) -> int:
    """Recount a day's arrivals; return the number of objects, 0 for a contract without coverage."""
    if contract.coverage is None:
        return 0
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
    return sum(row["objects"] for row in batch)


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
    p50, p95, p99 = (percentile(counts, share / 100) for share in PERCENTILES)
    return ArrivalTimes(
        dataset=dataset, product=product, lead=lead, objects=sum(counts.values()), p50=p50, p95=p95, p99=p99
    )
