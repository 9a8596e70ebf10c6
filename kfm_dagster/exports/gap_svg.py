"""Gaps as one SVG picture: rows by hour, what is there filled, what is missing hatched.

It needs no script and no font, follows light and dark, and says in words what it shows. Belongs here: the drawing. Does
not belong here: what is drawn (`gap_picture.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from html import escape
from itertools import groupby

from kfm_dagster.contracts.cadence import HOUR
from kfm_dagster.exports.gap_picture import GapPicture, GapRow
from kfm_dagster.ledger.gaps import GapKind

LABEL, WIDTH = 200, 720
"""Pixels of the labels, and of the hours beside them."""
ROW, BAR, TOP, BOTTOM = 20, 14, 26, 24
"""Pixels from row to row, of a bar, above the rows, below them."""
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


def draw(picture: GapPicture) -> str:
    """Return the picture as an SVG document; the same rows give the same document."""
    height = TOP + ROW * max(1, len(picture.rows)) + BOTTOM
    said = picture.sentences() or ["Nothing is missing." if picture.rows else "No feed is followed here yet."]
    first, last = picture.hours[0], picture.hours[-1]
    title = f"Gaps of the feeds, {first:%Y-%m-%d %H} to {last:%Y-%m-%d %H} UTC"
    rows = "".join(_row(row, number, picture) for number, row in enumerate(picture.rows))
    empty = "" if picture.rows else f'<text x="8" y="{TOP + BAR}">{said[0]}</text>'
    return (
        f'{OPENING.decode()} width="{LABEL + WIDTH + 8}" height="{height}" role="img" '
        f'aria-labelledby="title said"><title id="title">{title}</title><desc id="said">{escape(" ".join(said))}</desc>'
        f"<style>{_STYLE}</style>"
        '<defs><pattern id="missing" width="4" height="4" patternUnits="userSpaceOnUse">'
        '<path class="h" d="M0 4L4 0" stroke-width="1.3"/></pattern></defs>'
        f'<rect class="g" width="100%" height="100%"/>{_days(picture, height)}{rows}{empty}'
        f'<text class="q" x="{LABEL}" y="{height - 8}">{LEGEND}</text></svg>'
    )


def _row(row: GapRow, number: int, picture: GapPicture) -> str:
    top = TOP + ROW * number
    label = row.label if len(row.label) <= LABEL_CHARS else f"{row.label[: LABEL_CHARS - 1]}…"
    mark = (
        f'<text class="n" x="{LABEL - 6}" y="{top + 11}" text-anchor="end">{_MARKS[row.now]}</text>' if row.now else ""
    )
    bars = "".join(_bars(row, top, picture))
    return f'<g><text x="8" y="{top + 11}">{escape(label)}</text>{mark}{bars}</g>'


def _bars(row: GapRow, top: int, picture: GapPicture) -> Iterator[str]:
    """Yield the bars of the hours, those side by side with the same share as one."""
    for share, group in groupby(picture.hours, key=row.shares.get):
        hours = list(group)
        yield from _bar(share, _x(hours[0], picture), _x(hours[-1] + HOUR, picture), top)


def _bar(share: float | None, left: float, right: float, top: int) -> Iterator[str]:
    place = f'x="{left:.1f}" width="{right - left:.1f}"'
    if share is None:
        yield f'<rect class="e" {place} y="{top + BAR - 2}" height="2"/>'
        return
    missing = BAR if share <= 0 else round(BAR * (1 - share), 1)
    if share < 1:
        # However little is missing, it is seen.
        missing = max(2.0, missing)
        yield f'<rect class="m" {place} y="{top}" height="{missing:.1f}"/>'
    if share > 0:
        yield f'<rect class="w" {place} y="{top + missing:.1f}" height="{BAR - missing:.1f}"/>'


def _days(picture: GapPicture, height: int) -> str:
    """Return a line and a date for each midnight."""
    lines = [f'<path class="d" d="M{LABEL} {TOP - 4}H{LABEL + WIDTH}"/>']
    for hour in picture.hours:
        if hour.hour == 0:
            x = _x(hour, picture)
            lines.append(f'<path class="d" d="M{x:.1f} {TOP - 10}V{height - BOTTOM + 4}"/>')
            lines.append(f'<text class="q" x="{x + 3:.1f}" y="{TOP - 12}">{hour:%m-%d}</text>')
    return "".join(lines)


def _x(hour: datetime, picture: GapPicture) -> float:
    return LABEL + WIDTH * ((hour - picture.hours[0]) / HOUR) / len(picture.hours)
