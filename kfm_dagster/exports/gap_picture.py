"""What is missing, hour by hour: the rows of the picture that `kfm gaps --svg` writes and Dagster shows.

Belongs here: which hours were due, and what share of each is there, from the gap table alone. Does not belong here:
drawing (`gap_svg.py`), and the words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from kfm_dagster.contracts.cadence import HOUR, floor_hour, hours_due, settled_until
from kfm_dagster.contracts.quality import Coverage
from kfm_dagster.ledger.gaps import Gap, GapKind, Gaps
from kfm_dagster.views.view import Parts


@dataclass(frozen=True, kw_only=True, slots=True)
class GapRow:
    """A dataset, or a product of it: the share that is there of each hour that was due, and what is amiss now."""

    label: str
    shares: Mapping[datetime, float]
    """Of each hour that was due, from 0 to 1; of a dataset the least of its products'."""
    now: GapKind | None = None

    @property
    def short(self) -> list[datetime]:
        """The hours that lack something."""
        return sorted(hour for hour, share in self.shares.items() if share < 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class GapPicture:
    """Rows over the same hours; `hours` are in order, the last one is the present."""

    hours: Sequence[datetime]
    rows: Sequence[GapRow]
    gaps: Sequence[Gap]
    """What is open of these rows."""

    def sentences(self) -> list[str]:
        """Say what is missing, a line for each row that lacks something; the picture in words."""
        return [said for row in self.rows if (said := _said(row))]


def gap_picture(parts: Parts, *, days: int, dataset: str | None = None) -> GapPicture:
    """Return the rows of every dataset that is followed or was listed, or those of one dataset's products."""
    table = Gaps(database=parts.database)
    last = floor_hour(parts.clock())
    hours = [last - number * HOUR for number in reversed(range(days * 24))]
    gaps = table.list(since=hours[0], dataset=dataset)
    rows = []
    for contract in parts.registry:
        if contract.coverage is None or dataset not in {None, contract.id}:
            continue
        mine = [gap for gap in gaps if gap.dataset == contract.id]
        products = list(_products(parts, contract.id, contract.coverage, hours, mine))
        rows += products if dataset else _merged(contract.id, products)
    return GapPicture(hours=hours, rows=rows, gaps=gaps)


def _products(
    parts: Parts, dataset: str, coverage: Coverage, hours: Sequence[datetime], gaps: Sequence[Gap]
) -> Iterator[GapRow]:
    until = settled_until(coverage, parts.clock())
    table = Gaps(database=parts.database)
    followed = {feed.product: feed.followed_since for feed in table.feeds() if feed.dataset == dataset}
    days = _days(hours)
    listed = {day for name, day in table.listed_days(days[0], days[-1]) if name == dataset}
    missing = {(gap.product, gap.hour): gap.seen / gap.expected for gap in gaps if gap.kind is GapKind.HOLE}
    now = {gap.product: gap.kind for gap in gaps if gap.kind is not GapKind.HOLE}
    for product in coverage.products:
        shares: dict[datetime, float] = {}
        for day in days:
            if day in listed or product.name in followed:
                since = None if day in listed else followed[product.name]
                due = hours_due(product, day, until=until, followed_since=since)
                shares |= {hour: missing.get((product.name, hour), 1.0) for hour in due if hour >= hours[0]}
        if shares or product.name in now:
            yield GapRow(label=product.name, shares=shares, now=now.get(product.name))


def _days(hours: Sequence[datetime]) -> list[date]:
    first, last = hours[0].date(), hours[-1].date()
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _merged(label: str, products: Sequence[GapRow]) -> list[GapRow]:
    """Return one row of a dataset: an hour is as whole as the product that lacks most."""
    if not products:
        return []
    shares: dict[datetime, float] = defaultdict(lambda: 1.0)
    for product in products:
        for hour, share in product.shares.items():
            shares[hour] = min(shares[hour], share)
    kinds = {product.now for product in products}
    now = next((kind for kind in (GapKind.SILENCE, GapKind.DROP) if kind in kinds), None)
    return [GapRow(label=label, shares=dict(shares), now=now)]


def _said(row: GapRow) -> str | None:
    parts = []
    if short := row.short:
        least = min(row.shares[hour] for hour in short)
        count = f"{len(short)} of {len(row.shares)} hours are short, the worst has {least:.0%}"
        parts.append(f"{count}, the first is {short[0]:%Y-%m-%d %H} UTC")
    if row.now is not None:
        parts.append({GapKind.SILENCE: "silent now", GapKind.DROP: "slower now than it should be"}[row.now])
    return f"{row.label}: {'; '.join(parts)}" if parts else None
