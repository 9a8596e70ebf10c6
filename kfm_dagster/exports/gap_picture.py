"""Gap picture: the hours of each feed in an SVG, hatched where the gap table has a gap.

The picture needs no script and no font, follows light and dark mode, and describes itself in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from kfm_dagster.contracts.cadence import HOUR, days_between, floor_hour, hours_due, settled_until
from kfm_dagster.contracts.quality import Coverage
from kfm_dagster.drawing.svg import Scale
from kfm_dagster.ledger.gaps import Gap, GapKind, Gaps
from kfm_dagster.views.view import Parts

LABEL, WIDTH = 200, 720
"""Pixels of the labels, and of the hours beside them."""
ROW, TOP, BOTTOM = 20, 26, 24
"""Pixels from row to row, above and below all rows."""
NOTHING_EXPECTED = "Nothing is expected until a product's first live object arrives, nor in a demo (docs/gaps.md)"
OPENING = b'<svg xmlns="http://www.w3.org/2000/svg" class="kfm-gaps"'


@dataclass(frozen=True, kw_only=True, slots=True)
class GapRow:
    """A dataset or a product, with its share of objects per due hour, and its current gap."""

    label: str
    shares: Mapping[datetime, float]
    """Share of the expected objects by due hour, 0 to 1; for a dataset, the minimum over its products."""
    now: GapKind | None = None

    @property
    def sentence(self) -> str | None:
        """The hours that lack objects and the present gap, in words; None if the row has no gap."""
        parts = []
        if short := sorted(hour for hour, share in self.shares.items() if share < 1):
            least = min(self.shares[hour] for hour in short)
            count = f"{len(short)} of {len(self.shares)} hours are short, the worst has {least:.0%}"
            parts.append(f"{count}, the first is {short[0]:%Y-%m-%d %H} UTC")
        if self.now is not None:
            parts.append({GapKind.SILENCE: "silent now", GapKind.DROP: "slower now than it should be"}[self.now])
        return f"{self.label}: {'; '.join(parts)}" if parts else None


@dataclass(frozen=True, kw_only=True, slots=True)
class GapPicture:
    """Rows over the same hours; `hours` are in order, and the last hour is the present."""

    hours: Sequence[datetime]
    rows: Sequence[GapRow]
    gaps: Sequence[Gap]
    """Open gaps of these rows."""

    def sentences(self) -> list[str]:
        """Return the picture in words: a line for each row with a gap."""
        return [row.sentence for row in self.rows if row.sentence]


def gap_picture(parts: Parts, *, days: int, dataset: str | None = None) -> GapPicture:
    """Return a row for each dataset with expected objects, or for each product of `dataset`."""
    table = Gaps(database=parts.database)
    last = floor_hour(parts.clock())
    hours = [last - number * HOUR for number in reversed(range(days * 24))]
    gaps = table.list(since=hours[0], dataset=dataset)
    rows = []
    for contract in parts.registry:
        if contract.coverage is None or dataset not in {None, contract.id}:
            continue
        dataset_gaps = [gap for gap in gaps if gap.dataset == contract.id]
        products = list(_products(parts, contract.id, contract.coverage, hours, dataset_gaps))
        label = f"{contract.id} (retired)" if contract.metadata.retired else contract.id
        rows += products if dataset else _merged(label, products)
    return GapPicture(hours=hours, rows=rows, gaps=gaps)


def _products(
    parts: Parts, dataset: str, coverage: Coverage, hours: Sequence[datetime], gaps: Sequence[Gap]
) -> Iterator[GapRow]:
    until = settled_until(coverage, parts.clock())
    table = Gaps(database=parts.database)
    followed = {feed.product: feed.followed_since for feed in table.feeds() if feed.dataset == dataset}
    days = days_between(hours[0].date(), hours[-1].date())
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


def _merged(label: str, products: Sequence[GapRow]) -> list[GapRow]:
    """Return a dataset's row: each hour has the least share of its products."""
    if not products:
        return []
    shares: dict[datetime, float] = defaultdict(lambda: 1.0)
    for product in products:
        for hour, share in product.shares.items():
            shares[hour] = min(shares[hour], share)
    kinds = {product.now for product in products}
    now = next((kind for kind in (GapKind.SILENCE, GapKind.DROP) if kind in kinds), None)
    return [GapRow(label=label, shares=dict(shares), now=now)]


def draw(picture: GapPicture) -> str:
    """Return the picture as an SVG document; equal rows give equal documents."""
    x = Scale(0, len(picture.hours), LABEL, LABEL + WIDTH)
    import jinja2  # noqa: PLC0415, takes 20 ms, and few runs draw

    templates = jinja2.PackageLoader("kfm_dagster.exports")
    environment = jinja2.Environment(loader=templates, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("gaps.svg").render(
        picture=picture,
        sentences=picture.sentences() or ["Nothing is missing." if picture.rows else NOTHING_EXPECTED],
        rows=[(row, list(_bars(row, picture.hours, x))) for row in picture.rows],
        midnights=[(x(number), hour) for number, hour in enumerate(picture.hours) if hour.hour == 0],
        left=LABEL,
        width=WIDTH,
        top=TOP,
        height=TOP + ROW * max(1, len(picture.rows)) + BOTTOM,
    )


def _bars(row: GapRow, hours: Sequence[datetime], x: Scale) -> Iterator[tuple[float | None, float, float]]:
    """Yield share, start and width of a bar for consecutive hours that have the same share."""
    for share, group in groupby(range(len(hours)), key=lambda number: row.shares.get(hours[number])):
        numbers = list(group)
        yield share, x(numbers[0]), x(numbers[-1] + 1) - x(numbers[0])
