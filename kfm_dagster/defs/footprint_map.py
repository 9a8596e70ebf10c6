"""A small map of footprints as a picture that Dagster's Markdown shows.

Belongs here: the picture's size and its caption. Does not belong here: the drawing (`drawing/footprints.py`), which
units are drawn (`display.py`). The picture travels in the event log with each materialisation, so it is kept to some
twenty kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfm_dagster.drawing.footprints import MAX_OUTLINES, draw
from kfm_dagster.drawing.map_window import Size
from kfm_dagster.drawing.svg import data_url

__all__ = ["MAX_OUTLINES", "WIDTH", "footprint_map"]

WIDTH = 720
"""Pixels."""
_SIZE = Size(width=WIDTH, min_height=240, max_height=480, lines=10)


def footprint_map(geometries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a map of the geometries' outer rings and points as Markdown, or None where there is nothing to draw."""
    picture = draw(geometries, _SIZE)
    if picture is None:
        return None
    caption = f"Footprints: {len(geometries)}; distinct outlines: {picture.distinct}; drawn: {picture.drawn}."
    return f"![footprints]({data_url(picture.svg)})\n\n{caption}"
