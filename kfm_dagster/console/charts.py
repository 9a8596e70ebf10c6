"""Charts over hours as SVG that a page has the colours of: bars of counts, and lines of durations. Only the drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape

from kfm_dagster.console.pages import duration

WIDTH, HEIGHT = 480, 150
LEFT, RIGHT, TOP, BOTTOM = 76, 4, 10, 24
"""Pixels of a chart, and around its plot."""
HOUR = timedelta(hours=1)


def bar_chart(name: str, hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]]) -> str:
    """Return bars of two counts each hour, the second above the first: what succeeded, and what did not."""
    most = max((sum(pair) for pair in counts.values()), default=0)
    step = (WIDTH - LEFT - RIGHT) / len(hours)
    bars = []
    for number, hour in enumerate(hours):
        good, bad = counts.get(hour, (0, 0))
        bottom = float(HEIGHT - BOTTOM)
        for kind, count in (("good", good), ("bad", bad)):
            if count:
                height = max(1.0, count / most * (HEIGHT - TOP - BOTTOM))
                bottom -= height
                bars.append(
                    f'<rect class="bar-{kind}" x="{LEFT + number * step + 0.5:.1f}" y="{bottom:.1f}" '
                    f'width="{max(1.0, step - 1):.1f}" height="{height:.1f}">'
                    f"<title>{_hour(hour)}: {count:,}</title></rect>"
                )
    good, bad = (sum(pair[part] for pair in counts.values()) for part in (0, 1))
    return _chart(f"{name}: {good:,} succeeded, {bad:,} did not", hours, "".join(bars), [f"{most:,}", "0"])


def line_chart(name: str, hours: Sequence[datetime], lines: Mapping[str, Mapping[datetime, float]]) -> str:
    """Return lines of seconds by hour on a logarithmic scale, one for each name; the second one is dashed."""
    values = [value for line in lines.values() for value in line.values()]
    low, high = (math.floor(_log(min(values))), math.ceil(_log(max(values)))) if values else (0, 1)
    high = max(high, low + 1)
    step = (WIDTH - LEFT - RIGHT) / len(hours)
    drawn = []
    for (said, line), kind in zip(lines.items(), ("", "-high"), strict=False):
        points = [
            (
                LEFT + (hours.index(hour) + 0.5) * step,
                HEIGHT - BOTTOM - (_log(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM),
                f"{_hour(hour)}, {said}: {duration(value)}",
            )
            for hour, value in sorted(line.items())
        ]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
        drawn.append(f'<path class="line{kind}" d="M{path}"/>' if points else "")
        drawn += [
            f'<circle class="dot{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{escape(text)}</title></circle>'
            for x, y, text in points
        ]
    newest = ", ".join(f"{said} {duration(line[max(line)])}" for said, line in lines.items() if line)
    return _chart(
        f"{name}, newest hour: {newest or 'none'}", hours, "".join(drawn), [duration(10.0**high), duration(10.0**low)]
    )


def _chart(said: str, hours: Sequence[datetime], plot: str, labels: Sequence[str]) -> str:
    step = (WIDTH - LEFT - RIGHT) / len(hours)
    days = "".join(
        f'<path class="frame" d="M{LEFT + number * step:.1f} {TOP}V{HEIGHT - BOTTOM + 4}"/>'
        f'<text class="soft" x="{LEFT + number * step + 3:.1f}" y="{HEIGHT - 8}">{hour:%H:%M}</text>'
        for number, hour in enumerate(hours)
        if hour.hour % 12 == 0 and number < len(hours) - 4
    )
    scale = "".join(
        f'<text class="soft" x="{LEFT - 6}" y="{y}" text-anchor="end">{escape(label)}</text>'
        for label, y in zip(labels, (TOP + 10, HEIGHT - BOTTOM), strict=True)
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
        f'<path class="frame" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>{days}{scale}{plot}</svg>'
    )


def _log(seconds: float) -> float:
    return math.log10(max(seconds, 0.001))


def _hour(hour: datetime) -> str:
    return f"{hour:%m-%d %H} UTC"
