"""Pictures of a materialisation as Markdown: footprints on a map, and a day's arrivals.

The event log stores a picture with each materialisation, so that it has at most some twenty kilobytes. Belongs here:
sizes and captions, and the plot of how much later than in a vacuum each beam ends. Does not belong here: the map
(`drawing/footprints.py`), the choice of units (`display.py`), or the rows (`ingest/path_arrivals.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfm_dagster.drawing.footprints import MAX_OUTLINES, draw
from kfm_dagster.drawing.map_ground import Size
from kfm_dagster.drawing.svg import Scale, data_url, line

__all__ = ["MAX_OUTLINES", "WIDTH", "arrival_plot", "footprint_map"]

WIDTH, HEIGHT = 720, 300
"""Pixels; a map uses the width only."""
_SIZE = Size(width=WIDTH, min_height=240, max_height=480, lines=10)


def footprint_map(geometries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a map of the geometries' outer rings and points as Markdown; None without any."""
    picture = draw(geometries, _SIZE)
    if picture is None:
        return None
    svg, distinct, drawn = picture
    caption = f"Footprints: {len(geometries)}; distinct outlines: {distinct}; drawn: {drawn}."
    return f"![footprints]({data_url(svg)})\n\n{caption}"


LEFT, BOTTOM, TOP = 60, 40, 16
"""Room for the axes' labels, in pixels."""
MAX_SITES = 200
"""Curves drawn, one for each site; a network has about 160."""
STEPS = 4
"""Lines of the grid in each direction."""


def arrival_plot(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a plot of delay over elevation as Markdown, a curve by site; None without rows.

    rows: those of the table of arrivals. Each site's first volume is drawn: its others differ in their pattern only.
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
    elevations, delays = zip(*(point for curve in curves.values() for point in curve), strict=True)
    x = Scale(min(0.0, *elevations), max(1.0, *elevations), LEFT, WIDTH - TOP)
    y = Scale(0.0, max(1.0, *delays) * 1.05, HEIGHT - BOTTOM, TOP)
    drawn = list(curves.values())[:MAX_SITES]
    lines = "".join(
        f'<path d="{line((x(elevation), y(delay)) for elevation, delay in sorted(curve))}"/>' for curve in drawn
    )
    grid = "".join(f"M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" for _, at in x.steps(STEPS))
    grid += "".join(f"M{LEFT} {at:.1f}H{WIDTH - TOP}" for _, at in y.steps(STEPS))
    labels = "".join(
        f'<text x="{at - 10:.1f}" y="{HEIGHT - BOTTOM + 16}">{elevation:.1f}</text>' for elevation, at in x.steps(STEPS)
    )
    labels += "".join(f'<text x="8" y="{at + 4:.1f}">{delay:.0f}</text>' for delay, at in y.steps(STEPS))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#f7f9fc"/><path d="{grid}" stroke="#d5dbe6"/>'
        f'<g font-family="sans-serif" font-size="11">{labels}</g>'
        f'<g fill="none" stroke="#2a6fdb" stroke-opacity="0.5">{lines}</g></svg>'
    )
    caption = f"Delay against a vacuum (ns) over elevation (degrees). Sites: {len(curves)}; drawn: {len(drawn)}."
    return f"![arrivals]({data_url(svg)})\n\n{caption}"
