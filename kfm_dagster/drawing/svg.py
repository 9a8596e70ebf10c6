"""Common parts of pictures: a linear scale, lines of points, and a picture's data URL."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple


class Scale(NamedTuple):
    """An axis: the pixels of its ends, and the values there."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def steps(self, number: int) -> list[tuple[float, float]]:
        """Return value and pixel of the ends and of `number` - 1 points between them."""
        values = [self.low + step * (self.high - self.low) / number for step in range(number + 1)]
        return [(value, self(value)) for value in values]


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return a path through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def data_url(svg: str) -> str:
    """Return a picture as a data URL (RFC 2397)."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
