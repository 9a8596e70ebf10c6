"""Cadence: the expected and the observed objects of each product in each hour of a day.

Belongs here: the arithmetic that gate G6 and the gap table share. Does not belong here: the declarations
(`quality.py`), counting (`sql/queries/gates.sql`), the gap table (`ledger/gaps.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from kfm_dagster.contracts.quality import Coverage, ExpectedProduct

HOUR = timedelta(hours=1)
LEAST_CADENCE = timedelta(minutes=1)
"""Minimum cadence for the check: announcements come in batches some seconds apart; a faster product seems to pause."""
SILENT_AFTER = 2
"""A product is silent after this number of cadences without an announcement."""
DROP_OVER = 4
"""Number of cadences over which the rate is measured, so that a single late object is not a drop."""
DROP_BELOW = 0.5
"""Share of the expected rate; a lower rate is a drop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductCount:
    """Distinct objects of an hour with these extension fields, not failed and not quarantined."""

    hour: int
    groups: Mapping[str, Any]
    objects: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductHour:
    """An hour of a product: the expected and the known objects that begin in it."""

    product: str
    hour: datetime
    expected: int
    seen: int

    @property
    def whole(self) -> bool:
        """Whether no object is missing; surplus objects are not a fault."""
        return self.seen >= self.expected


def floor_hour(at: datetime) -> datetime:
    """Return the beginning of the hour of a time."""
    return at.replace(minute=0, second=0, microsecond=0)


def days_between(first: date, last: date) -> list[date]:
    """Return the days from `first` to `last`, both included."""
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def settled_until(coverage: Coverage, at: datetime) -> datetime:
    """Return the beginning of the first hour that need not be complete yet at the time `at`."""
    return floor_hour(at - timedelta(seconds=coverage.settles_after_seconds))


def hours_due(
    product: ExpectedProduct, day: date, *, until: datetime, followed_since: datetime | None = None
) -> list[datetime]:
    """Return a product's due hours of a day, before `until`.

    followed_since: start of the first announced object. The hour of this start is left out, because earlier objects of
    the hour may not have been announced to this deployment.
    """
    midnight = datetime.combine(day, time(), UTC)
    hours = (midnight + number * HOUR for number in range(24))
    begin = floor_hour(followed_since) if followed_since is not None else None
    return [hour for hour in hours if hour < until and product.is_due(hour) and (begin is None or hour > begin)]


def product_hours(
    coverage: Coverage,
    day: date,
    counts: Iterable[ProductCount],
    *,
    at: datetime,
    followed: Mapping[str, datetime] | None = None,
) -> list[ProductHour]:
    """Return the expected and the known objects of each product's hours that must be complete.

    followed: since when each product is followed; products without an entry are not expected. None: the whole day was
    listed, so every product is expected in each hour when it is due.
    """
    until = settled_until(coverage, at)
    seen = _by_product(coverage, counts)
    rows = []
    for product in coverage.products:
        if followed is not None and product.name not in followed:
            continue
        since = None if followed is None else followed[product.name]
        for hour in hours_due(product, day, until=until, followed_since=since):
            count = seen[product.name, hour.hour]
            rows.append(ProductHour(product=product.name, hour=hour, expected=product.per_hour, seen=count))
    return rows


def products_of(coverage: Coverage, groups: Mapping[str, Any], at: datetime) -> list[ExpectedProduct]:
    """Return the products that count an object with these extension fields in its hour."""
    hour = floor_hour(at)
    return [product for product in coverage.products if product.is_due(hour) and _holds(product, groups)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The pace of a product: two windows before now, and the objects due in the longer window."""

    silent_after: timedelta
    over: timedelta
    expected: int

    @property
    def least(self) -> float:
        """Minimum number of objects; fewer are a drop."""
        return self.expected * DROP_BELOW


def pace_of(product: ExpectedProduct) -> Pace:
    """Return the windows before now that must contain announcements of a product."""
    cadence = max(product.cadence, LEAST_CADENCE)
    over = DROP_OVER * cadence
    # A product that is due only in some hours arrives in a burst per cadence; any other product arrives in every hour.
    expected = DROP_OVER * product.per_hour if product.hours else product.per_hour * over / HOUR
    return Pace(silent_after=SILENT_AFTER * cadence, over=over, expected=max(1, int(expected)))


def _holds(product: ExpectedProduct, groups: Mapping[str, Any]) -> bool:
    return all(groups.get(name) == value for name, value in product.groups.items())


def _by_product(coverage: Coverage, counts: Iterable[ProductCount]) -> Counter[tuple[str, int]]:
    """Count objects by product and hour; groups that do not distinguish products are ignored."""
    names = tuple(sorted({name for product in coverage.products for name in product.groups}))
    totals: Counter[tuple[int, tuple[Any, ...]]] = Counter()
    for count in counts:
        totals[count.hour, tuple(map(count.groups.get, names))] += count.objects
    matching: dict[tuple[Any, ...], Sequence[str]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for (hour, values), objects in totals.items():
        if values not in matching:
            groups = dict(zip(names, values, strict=True))
            matching[values] = [product.name for product in coverage.products if _holds(product, groups)]
        for name in matching[values]:
            seen[name, hour] += objects
    return seen
