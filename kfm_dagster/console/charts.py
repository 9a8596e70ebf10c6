"""Pictures of the console as SVG with the page's colours: bars, lines, a state machine.

Does not belong here: scales and graphs (`drawing/`), or the transitions themselves (`ledger/state_machine.py`; a test
makes the two agree).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape

from kfm_dagster.console.pages import duration
from kfm_dagster.drawing.svg import Arrow, Scale, StateGraph, line
from kfm_dagster.ledger.state_machine import Status

_GRAPH = StateGraph(
    places={
        Status.PENDING: (0, 0),
        Status.IN_PROGRESS: (1, 0),
        Status.SUCCEEDED: (2, 0),
        Status.FAILED: (1, 1),
        Status.QUARANTINED: (2, 1),
    },
    column=171,
)
ARROWS: Mapping[tuple[str, str], Arrow] = {
    (Status.PENDING, Status.IN_PROGRESS): Arrow(),
    (Status.IN_PROGRESS, Status.SUCCEEDED): Arrow(),
    (Status.IN_PROGRESS, Status.FAILED): Arrow(),
    (Status.FAILED, Status.PENDING): Arrow(bend=0.15),
    (Status.FAILED, Status.QUARANTINED): Arrow(),
    (Status.PENDING, Status.QUARANTINED): Arrow(),
    # Dashed: needs a decision on record.
    (Status.QUARANTINED, Status.PENDING): Arrow(bend=0.62, dashed=True),
    (Status.SUCCEEDED, Status.PENDING): Arrow(bend=-0.3, dashed=True),
}


def state_diagram(counts: Mapping[Status, int]) -> str:
    """Return the state machine with its counts as SVG for a page, which sets the colours."""
    words = {status: status.replace("_", " ") for status in Status}
    boxes = "".join(
        f'<a href="/units?status={status}" aria-label="{units} {words[status]}">'
        f"{_GRAPH.box(status, [f'{units:,}', words[status]])}</a>"
        for status, units in counts.items()
    )
    summary = ", ".join(f"{counts[status]} {words[status]}" for status in Status)
    width, height = _GRAPH.size
    return (
        f'<svg class="states" viewBox="0 0 {width} {height}" role="group" aria-label="Units by state: {summary}">'
        f"{_GRAPH.arrows(ARROWS)}{boxes}</svg>"
    )


STRIP_WIDTH, STRIP_HEIGHT = 144, 24


def strip(hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]]) -> str:
    """Return a small strip of stacked bars for each hour, without a scale; it names its total."""
    x, y = Scale(0, len(hours), 0, STRIP_WIDTH), _counts(counts, (STRIP_HEIGHT - 1, 2))
    total = sum(map(sum, counts.values()))
    return (
        f'<svg class="strip" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" role="img" '
        f'aria-label="{total:,} objects in {len(hours)} hours"><path class="frame" d="M0 {STRIP_HEIGHT - 0.5}'
        f'H{STRIP_WIDTH}"/>{_bars(hours, counts, x, y)}</svg>'
    )


WIDTH, HEIGHT = 480, 150
LEFT, RIGHT, TOP, BOTTOM = 76, 4, 10, 24
"""Pixels of a chart, and of the margins around its plot."""
_ACROSS, _UP = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
HOUR = timedelta(hours=1)


def bar_chart(name: str, hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]]) -> str:
    """Return stacked bars for each hour: succeeded units below, others above."""
    x, y = Scale(0, len(hours), *_ACROSS), _counts(counts, _UP)
    good, bad = (sum(pair[part] for pair in counts.values()) for part in (0, 1))
    labels = [f"{y.high:,.0f}", "0"]
    return _chart(f"{name}: {good:,} succeeded, {bad:,} did not", hours, _bars(hours, counts, x, y), labels)


def _counts(counts: Mapping[datetime, tuple[int, int]], ends: tuple[int, int]) -> Scale:
    """Return the scale of counts: it ends at the next round number above the highest bar."""
    most = max((sum(pair) for pair in counts.values()), default=0)
    unit = 10 ** max(len(str(most)) - 1, 0)
    return Scale(0, most // unit * unit + unit, *ends)


def _bars(hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]], x: Scale, y: Scale) -> str:
    bars = ""
    for number, hour in enumerate(hours):
        bottom = y(0)
        for kind, count in zip(("good", "bad"), counts.get(hour, (0, 0)), strict=True):
            if count:
                height = max(1.0, y(0) - y(count))
                bottom -= height
                bars += (
                    f'<rect class="bar-{kind}" x="{x(number) + 0.5:.1f}" y="{bottom:.1f}" '
                    f'width="{max(1.0, x(1) - x(0) - 1):.1f}" height="{height:.1f}">'
                    f"<title>{_hour(hour)}: {count:,}</title></rect>"
                )
    return bars


def line_chart(name: str, hours: Sequence[datetime], lines: Mapping[str, Mapping[datetime, float]]) -> str:
    """Return lines of seconds by hour on a logarithmic scale, by name; the second is dashed."""
    values = [value for of_name in lines.values() for value in of_name.values()]
    low, high = (math.floor(_log(min(values))), math.ceil(_log(max(values)))) if values else (0, 1)
    high = max(high, low + 1)
    x, y = Scale(0, len(hours), *_ACROSS), Scale(low, high, *_UP)
    drawn = ""
    for (label, seconds), kind in zip(lines.items(), ("", "-high"), strict=False):
        points = [(x(hours.index(hour) + 0.5), y(_log(value))) for hour, value in sorted(seconds.items())]
        drawn += f'<path class="line{kind}" d="{line(points)}"/>' if points else ""
        drawn += "".join(
            f'<circle class="dot{kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="2.5">'
            f"<title>{escape(f'{_hour(hour)}, {label}: {duration(value)}')}</title></circle>"
            for (cx, cy), (hour, value) in zip(points, sorted(seconds.items()), strict=True)
        )
    newest = ", ".join(f"{label} {duration(of_name[max(of_name)])}" for label, of_name in lines.items() if of_name)
    labels = [duration(10.0**high), duration(10.0**low)]
    return _chart(f"{name}, newest hour: {newest or 'none'}", hours, drawn, labels)


def _chart(summary: str, hours: Sequence[datetime], plot: str, labels: Sequence[str]) -> str:
    x = Scale(0, len(hours), *_ACROSS)
    days = "".join(
        f'<path class="frame" d="M{x(number):.1f} {TOP}V{HEIGHT - BOTTOM + 4}"/>'
        f'<text class="soft" x="{x(number) + 3:.1f}" y="{HEIGHT - 8}">{hour:%H:%M}</text>'
        for number, hour in enumerate(hours)
        if hour.hour % 12 == 0 and number < len(hours) - 4
    )
    scale = "".join(
        f'<text class="soft" x="{LEFT - 6}" y="{y}" text-anchor="end">{escape(label)}</text>'
        for label, y in zip(labels, (TOP + 10, HEIGHT - BOTTOM), strict=True)
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(summary)}">'
        f'<path class="frame" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>{days}{scale}{plot}</svg>'
    )


def _log(seconds: float) -> float:
    return math.log10(max(seconds, 0.001))


def _hour(hour: datetime) -> str:
    return f"{hour:%m-%d %H} UTC"
