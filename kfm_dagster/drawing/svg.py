"""Common parts of pictures: scales, lines of points, state machines, data URLs."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import NamedTuple, TypeAlias

BOX = (122, 54)
"""Width and height of a state's box, in pixels."""
MARGIN, ROW, GAP = 40, 102, 3
"""Pixels around the grid, from row to row, and between an arrow and its boxes."""

Edge: TypeAlias = tuple[str, str]
"""A transition's start and end."""


class Scale(NamedTuple):
    """An axis: the values at its ends, `low` and `high`, and their pixels, `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return a path through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def data_url(svg: str) -> str:
    """Return a picture as a data URL (RFC 2397)."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


class Arrow(NamedTuple):
    """An arrow with lines of text (`labels`: id and text).

    Its middle is shifted sideways by `bend` / 2 of its length.
    """

    bend: float = 0.0
    labels: Iterable[tuple[str, str]] = ()
    dashed: bool = False


class StateGraph(NamedTuple):
    """A state machine on a grid: column and row of each state, and pixels from column to column."""

    places: Mapping[str, tuple[int, int]]
    column: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture in pixels."""
        columns, rows = (max(place[axis] for place in self.places.values()) for axis in (0, 1))
        return columns * self.column + BOX[0] + 2 * MARGIN, rows * ROW + BOX[1] + 2 * MARGIN

    def arrows(self, arrows: Mapping[Edge, Arrow]) -> str:
        """Return the arrows of the transitions, to be drawn before the boxes, which may cover them."""
        return (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
            + "".join(self._arrow(edge, arrow) for edge, arrow in arrows.items())
        )

    def box(self, state: str, lines: Collection[str], *, name: str = "") -> str:
        """Return a state's box with its lines of text; the first of two lines is bold."""
        x, y = self._centre(state)
        first, classes = (y - 3, ("count", "")) if len(lines) > 1 else (y + 4, ("",))
        texts = "".join(
            f'<text class="{kind}" x="{x}" y="{first + 18 * number}" text-anchor="middle">{escape(line)}</text>'
            for number, (line, kind) in enumerate(zip(lines, classes, strict=True))
        )
        place = f'x="{x - BOX[0] // 2}" y="{y - BOX[1] // 2}" width="{BOX[0]}" height="{BOX[1]}"'
        return f'<g id="{name or state}"><rect class="state {state}" {place} rx="8"/>{texts}</g>'

    def _centre(self, state: str) -> tuple[int, int]:
        column, row = self.places[state]
        return MARGIN + BOX[0] // 2 + column * self.column, MARGIN + BOX[1] // 2 + row * ROW

    def _arrow(self, edge: Edge, arrow: Arrow) -> str:
        (x, y), (to_x, to_y) = map(self._centre, edge)
        turn = (x + to_x) / 2 + arrow.bend * (to_y - y), (y + to_y) / 2 - arrow.bend * (to_x - x)
        begin, end = _border((x, y), turn), _border((to_x, to_y), turn)
        middle_x, middle_y = ((begin[axis] + 2 * turn[axis] + end[axis]) / 4 for axis in (0, 1))
        path = "M{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}".format(*begin, *turn, *end)
        labels = "".join(
            f'<text class="label" id="{name}" x="{middle_x:.1f}" y="{middle_y - 5 + 18 * number:.1f}" '
            f'text-anchor="middle">{escape(text)}</text>'
            for number, (name, text) in enumerate(arrow.labels)
        )
        kind = "edge override" if arrow.dashed else "edge"
        return f'<path class="{kind}" d="{path}" marker-end="url(#head)"/>{labels}'


def _border(centre: tuple[float, float], toward: tuple[float, float]) -> tuple[float, float]:
    """Return the point where a line from a box's centre leaves the box."""
    x, y = toward[0] - centre[0], toward[1] - centre[1]
    share = min(BOX[0] / 2 / max(abs(x), 1e-9), BOX[1] / 2 / max(abs(y), 1e-9)) + GAP / math.hypot(x, y)
    return centre[0] + share * x, centre[1] + share * y
