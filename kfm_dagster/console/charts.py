"""Pictures of the console as SVG with the page's colours: bars, lines, a state machine.

Does not belong here: scales and graphs (`drawing/`), or the transitions themselves (`ledger/state_machine.py`; a test
compares ARROWS with them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from kfm_dagster.console.pages import duration, rendered
from kfm_dagster.drawing.svg import Arrow, Scale, StateGraph, line
from kfm_dagster.ledger.state_machine import Status

ROUND_SECONDS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)
"""Possible ends of the axis of durations in seconds, shown as 1 ms, 10 s, 10 min or 10 h."""
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
    # Dashed: the transition needs a recorded decision.
    (Status.QUARANTINED, Status.PENDING): Arrow(bend=0.62, dashed=True),
    (Status.SUCCEEDED, Status.PENDING): Arrow(bend=-0.3, dashed=True),
}


def state_diagram(counts: Mapping[Status, int]) -> Markup:
    """Return the state machine with numbers of units as SVG; the page sets the colours."""
    words = {status: status.replace("_", " ") for status in Status}
    boxes = "".join(
        f'<a href="/units?status={status}" aria-label="{units} {words[status]}">'
        f"{_GRAPH.box(status, [f'{units:,}', words[status]])}</a>"
        for status, units in counts.items()
    )
    summary = ", ".join(f"{counts[status]} {words[status]}" for status in Status)
    width, height = _GRAPH.size
    return Markup(  # noqa: S704, its own words and numbers
        f'<svg class="states" viewBox="0 0 {width} {height}" role="group" aria-label="Units by state: {summary}">'
        f"{_GRAPH.arrows(ARROWS)}{boxes}</svg>"
    )


_ACROSS, _UP = (76, 476), (126, 10)
"""Pixels of the ends of a chart's axes (`templates/chart.svg`)."""
HOUR = timedelta(hours=1)


def strip(hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]]) -> Markup:
    """Return a small strip of stacked bars by hour, without a scale; its label names the sum."""
    x, y = Scale(0, len(hours), 0, 144), _counts(counts, (23, 2))
    total = sum(map(sum, counts.values()))
    return rendered("strip.svg", total=total, hours=len(hours), bars=_bars(hours, counts, x, y))


def bar_chart(name: str, hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]]) -> Markup:
    """Return stacked bars by hour: below, units that succeeded; above, units that did not."""
    x, y = Scale(0, len(hours), *_ACROSS), _counts(counts, _UP)
    good, bad = (sum(pair[part] for pair in counts.values()) for part in (0, 1))
    summary = f"{name}: {good:,} succeeded, {bad:,} did not"
    return _chart(summary, hours, x, high=f"{y.high:,.0f}", low="0", bars=_bars(hours, counts, x, y))


def _counts(counts: Mapping[datetime, tuple[int, int]], ends: tuple[int, int]) -> Scale:
    """Return the scale of counts, which ends at the next round number above the highest bar."""
    most = max((sum(pair) for pair in counts.values()), default=0)
    unit = 10 ** max(len(str(most)) - 1, 0)
    return Scale(0, most // unit * unit + unit, *ends)


def _bars(
    hours: Sequence[datetime], counts: Mapping[datetime, tuple[int, int]], x: Scale, y: Scale
) -> Iterator[dict[str, Any]]:
    for number, hour in enumerate(hours):
        bottom = y(0)
        for kind, count in zip(("good", "bad"), counts.get(hour, (0, 0)), strict=True):
            if count:
                height = max(1.0, y(0) - y(count))
                bottom -= height
                place = {"x": x(number) + 0.5, "y": bottom, "width": max(1.0, x(1) - x(0) - 1), "height": height}
                yield {"kind": kind, "hour": _hour(hour), "count": count, **place}


def line_chart(name: str, hours: Sequence[datetime], lines: Mapping[str, Mapping[datetime, float]]) -> Markup:
    """Return lines of durations by hour, on a logarithmic scale; the second line is dashed."""
    values = [value for of_name in lines.values() for value in of_name.values()]
    low, high = _ends(values) if values else (1.0, 10.0)
    x, y = Scale(0, len(hours), *_ACROSS), Scale(_log(low), _log(high), *_UP)
    drawn = []
    for (label, seconds), kind in zip(lines.items(), ("", "-high"), strict=False):
        points = [
            (x(hours.index(hour) + 0.5), y(_log(value)), f"{_hour(hour)}, {label}: {duration(value)}")
            for hour, value in sorted(seconds.items())
        ]
        drawn += [(kind, line(point[:2] for point in points), points)] if points else []
    newest = ", ".join(f"{label} {duration(of_name[max(of_name)])}" for label, of_name in lines.items() if of_name)
    summary = f"{name}, newest hour: {newest or 'none'}"
    return _chart(summary, hours, x, lines=drawn, high=duration(high), low=duration(low))


def _chart(summary: str, hours: Sequence[datetime], x: Scale, **content: Any) -> Markup:
    noons = [
        (x(number), f"{hour:%H:%M}")
        for number, hour in enumerate(hours)
        if hour.hour % 12 == 0 and number < len(hours) - 4
    ]
    return rendered("chart.svg", **{"bars": (), "lines": (), "summary": summary, "noons": noons, **content})


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the nearest of ROUND_SECONDS below and above all values, as the ends of their axis."""
    low = max((end for end in ROUND_SECONDS[:-1] if end <= min(values)), default=ROUND_SECONDS[0])
    return low, min((end for end in ROUND_SECONDS if end > low and end >= max(values)), default=ROUND_SECONDS[-1])


def _log(seconds: float) -> float:
    return math.log10(max(seconds, 0.001))


def _hour(hour: datetime) -> str:
    return f"{hour:%m-%d %H} UTC"
