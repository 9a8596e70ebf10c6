"""Gap picture: the hours of each feed in an SVG, hatched where the gap table has a gap.

The picture needs no script and no font, follows light and dark mode, and describes itself in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import groupby

from kfm_dagster.contracts.cadence import HOUR, days_between, floor_hour, hours_due, settled_until
from kfm_dagster.contracts.quality import Coverage
from kfm_dagster.drawing.svg import Scale
from kfm_dagster.ledger.gaps import Gap, GapKind, Gaps
from kfm_dagster.views.view import Parts

LABEL, WIDTH = 200, 720
"""Pixels of the labels, and of the hours beside them."""
ROW, BAR, TOP, BOTTOM = 20, 14, 26, 24
"""Pixels from row to row, of a bar, above and below all rows."""
LABEL_CHARS = 30
OPENING = b'<svg xmlns="http://www.w3.org/2000/svg" class="kfm-gaps"'
LEGEND = "filled: there; hatched: missing; empty: not due, or not settled yet"
_MARKS = {GapKind.SILENCE: "silent", GapKind.DROP: "slow"}
_STYLE = (
    "svg{color-scheme:light dark;font:11px sans-serif}.g{fill:#fff}text{fill:#1d2733}.q{fill:#5b6b7d}"
    ".d{stroke:#c8d1dc}.e{fill:#eef2f6}.w{fill:#2a6fdb}.m{fill:url(#missing)}.h{stroke:#c2410c}.n{fill:#c2410c}"
    "@media (prefers-color-scheme:dark){.g{fill:#12181f}text{fill:#e6ebf1}.q{fill:#9fb0c2}.d{stroke:#3a4653}"
    ".e{fill:#1d2630}.w{fill:#6aa5f8}.h{stroke:#fb923c}.n{fill:#fb923c}}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GapRow:
    """A dataset or one of its products: the present share of each due hour, and the current gap."""

    label: str
    shares: Mapping[datetime, float]
    """Share of each due hour, from 0 to 1; of a dataset the least of its products'."""
    now: GapKind | None = None

    @property
    def short(self) -> list[datetime]:
        """The hours that lack something."""
        return sorted(hour for hour, share in self.shares.items() if share < 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class GapPicture:
    """Rows over the same hours; `hours` are in order, the last is the present."""

    hours: Sequence[datetime]
    rows: Sequence[GapRow]
    gaps: Sequence[Gap]
    """Open gaps of these rows."""

    def sentences(self) -> list[str]:
        """Return the picture in words: a line for each row with a gap."""
        return [sentence for row in self.rows if (sentence := _sentence(row))]


def gap_picture(parts: Parts, *, days: int, dataset: str | None = None) -> GapPicture:
    """Return the rows of all followed or listed datasets, or of a single dataset's products."""
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
        rows += products if dataset else _merged(contract.id, products)
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


def _sentence(row: GapRow) -> str | None:
    parts = []
    if short := row.short:
        least = min(row.shares[hour] for hour in short)
        count = f"{len(short)} of {len(row.shares)} hours are short, the worst has {least:.0%}"
        parts.append(f"{count}, the first is {short[0]:%Y-%m-%d %H} UTC")
    if row.now is not None:
        parts.append({GapKind.SILENCE: "silent now", GapKind.DROP: "slower now than it should be"}[row.now])
    return f"{row.label}: {'; '.join(parts)}" if parts else None


def draw(picture: GapPicture) -> str:
    """Return the picture as an SVG document; equal rows give equal documents."""
    height = TOP + ROW * max(1, len(picture.rows)) + BOTTOM
    desc = picture.sentences() or ["Nothing is missing." if picture.rows else "No feed is followed here yet."]
    first, last = picture.hours[0], picture.hours[-1]
    title = f"Gaps of the feeds, {first:%Y-%m-%d %H} to {last:%Y-%m-%d %H} UTC"
    rows = "".join(_row(row, number, picture) for number, row in enumerate(picture.rows))
    empty = "" if picture.rows else f'<text x="8" y="{TOP + BAR}">{desc[0]}</text>'
    return (
        f'{OPENING.decode()} width="{LABEL + WIDTH + 8}" height="{height}" role="img" '
        f'aria-labelledby="title desc"><title id="title">{title}</title><desc id="desc">{escape(" ".join(desc))}</desc>'
        f"<style>{_STYLE}</style>"
        '<defs><pattern id="missing" width="4" height="4" patternUnits="userSpaceOnUse">'
        '<path class="h" d="M0 4L4 0" stroke-width="1.3"/></pattern></defs>'
        f'<rect class="g" width="100%" height="100%"/>{_midnights(picture, height)}{rows}{empty}'
        f'<text class="q" x="{LABEL}" y="{height - 8}">{LEGEND}</text></svg>'
    )


def _row(row: GapRow, number: int, picture: GapPicture) -> str:
    top = TOP + ROW * number
    label = row.label if len(row.label) <= LABEL_CHARS else f"{row.label[: LABEL_CHARS - 1]}…"
    mark = (
        f'<text class="n" x="{LABEL - 6}" y="{top + 11}" text-anchor="end">{_MARKS[row.now]}</text>' if row.now else ""
    )
    bars = ""
    # Adjacent hours with the same share form a single bar.
    for share, group in groupby(picture.hours, key=row.shares.get):
        hours = list(group)
        bars += "".join(_bar(share, _x(hours[0], picture), _x(hours[-1] + HOUR, picture), top))
    return f'<g><text x="8" y="{top + 11}">{escape(label)}</text>{mark}{bars}</g>'


def _bar(share: float | None, left: float, right: float, top: int) -> Iterator[str]:
    position = f'x="{left:.1f}" width="{right - left:.1f}"'
    if share is None:
        yield f'<rect class="e" {position} y="{top + BAR - 2}" height="2"/>'
        return
    missing = BAR if share <= 0 else round(BAR * (1 - share), 1)
    if share < 1:
        # Even the smallest gap stays visible.
        missing = max(2.0, missing)
        yield f'<rect class="m" {position} y="{top}" height="{missing:.1f}"/>'
    if share > 0:
        yield f'<rect class="w" {position} y="{top + missing:.1f}" height="{BAR - missing:.1f}"/>'


def _midnights(picture: GapPicture, height: int) -> str:
    """Return a line and a date for each midnight."""
    lines = [f'<path class="d" d="M{LABEL} {TOP - 4}H{LABEL + WIDTH}"/>']
    for hour in picture.hours:
        if hour.hour == 0:
            x = _x(hour, picture)
            lines.append(f'<path class="d" d="M{x:.1f} {TOP - 10}V{height - BOTTOM + 4}"/>')
            lines.append(f'<text class="q" x="{x + 3:.1f}" y="{TOP - 12}">{hour:%m-%d}</text>')
    return "".join(lines)


def _x(hour: datetime, picture: GapPicture) -> float:
    return Scale(0, len(picture.hours), LABEL, LABEL + WIDTH)((hour - picture.hours[0]) / HOUR)
