"""Positions of a GeoJSON geometry, for its form (G1) and range (G4). Not here: the rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DEPTHS = {"Point": -1, "MultiPoint": 0, "Polygon": 1, "MultiPolygon": 2}
"""Geometry types of NODD datasets > arrays around a line of positions (RFC 7946, section 3.1)."""
_LEAST = 4
"""Positions of a closed ring (RFC 7946, section 3.1.6)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A measured geometry: its fault, or the extremes of its coordinates, in degrees."""

    fault: str | None = None
    longitudes: Sequence[float] = ()
    latitudes: Sequence[float] = ()


def measure(geometry: Any) -> Measured:
    """Measure a geometry. Never raises, whatever its content."""
    if not isinstance(geometry, Mapping) or geometry.get("type") not in _DEPTHS:
        return Measured(fault=f"geometry is none of {', '.join(_DEPTHS)}")
    depth = _DEPTHS[geometry["type"]]
    longitudes: list[float] = []
    latitudes: list[float] = []
    try:
        for line in _lines(geometry["coordinates"], depth):
            if depth >= 1 and (len(line) < _LEAST or list(line[0]) != list(line[-1])):
                return Measured(fault="geometry has a ring that is not closed, or of fewer than four positions")
            along, across = zip(*line, strict=True)
            # A NaN hides from min and max, never from a sum.
            if not math.isfinite(sum(along) + sum(across)):
                return Measured(fault="geometry has a position that is not finite")
            longitudes += (min(along), max(along))
            latitudes += (min(across), max(across))
    except (KeyError, TypeError, ValueError):
        return Measured(fault="geometry has no arrays of positions")
    if not longitudes:
        return Measured(fault="geometry is empty")
    return Measured(longitudes=longitudes, latitudes=latitudes)


def _lines(coordinates: Any, depth: int) -> Sequence[Any]:
    """Return lines of positions: rings, or points."""
    if depth < 0:
        return [[coordinates]]
    if depth == 0:
        return [coordinates]
    return coordinates if depth == 1 else [ring for polygon in coordinates for ring in polygon]
