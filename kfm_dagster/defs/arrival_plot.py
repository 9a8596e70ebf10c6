"""A plot of a day's arrivals as one SVG picture: how much later than in a vacuum each beam ends, over its elevation.

Belongs here: the drawing, from rows to Markdown. Does not belong here: the rows (`ingest/path_arrivals.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 720, 300
"""Pixels."""
LEFT, BOTTOM, TOP = 60, 40, 16
"""Room for the axes' labels, in pixels."""
MAX_SITES = 200
"""Curves drawn, one for each site; a network has about 160."""
STEPS = 4
"""Lines of the grid in each direction."""


def arrival_plot(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the delay over the elevation as Markdown, one curve for each site, or None where there is nothing to draw.

    rows: of the table of arrivals; of each site the first volume is drawn, for its others differ by their pattern only.
    """
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row["site"], row["wal_id"])
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if first[row["site"]] == row["wal_id"]:
            delay = (row["t_arr_s"] - row["extent_m"] / row["c_ref_m_s"]) * 1e9
            curves.setdefault(row["site"], []).append((row["elevation_deg"], delay))
    if not curves:
        return None
    points = [point for curve in curves.values() for point in curve]
    low, high = min(0.0, *(x for x, _ in points)), max(1.0, *(x for x, _ in points))
    top = max(1.0, *(y for _, y in points)) * 1.05

    def place(elevation: float, delay: float) -> str:
        x = LEFT + (elevation - low) / (high - low) * (WIDTH - LEFT - TOP)
        return f"{x:.1f} {HEIGHT - BOTTOM - delay / top * (HEIGHT - BOTTOM - TOP):.1f}"

    drawn = list(curves.values())[:MAX_SITES]
    lines = "".join(f'<path d="M{"L".join(place(*point) for point in sorted(curve))}"/>' for curve in drawn)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#f7f9fc"/>{_grid(low, high, top)}'
        f'<g fill="none" stroke="#2a6fdb" stroke-opacity="0.5">{lines}</g></svg>'
    )
    caption = f"Delay against a vacuum (ns) over elevation (degrees). Sites: {len(curves)}; drawn: {len(drawn)}."
    return f"![arrivals](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})\n\n{caption}"


def _grid(low: float, high: float, top: float) -> str:
    lines, labels = [], []
    for step in range(STEPS + 1):
        x = LEFT + step * (WIDTH - LEFT - TOP) / STEPS
        y = HEIGHT - BOTTOM - step * (HEIGHT - BOTTOM - TOP) / STEPS
        lines.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}M{LEFT} {y:.1f}H{WIDTH - TOP}"/>')
        labels.append(
            f'<text x="{x - 10:.1f}" y="{HEIGHT - BOTTOM + 16}">{low + step * (high - low) / STEPS:.1f}</text>'
        )
        labels.append(f'<text x="8" y="{y + 4:.1f}">{step * top / STEPS:.0f}</text>')
    return f'<g stroke="#d5dbe6">{"".join(lines)}</g><g font-family="sans-serif" font-size="11">{"".join(labels)}</g>'
