"""The window of a map of footprints: which longitudes and latitudes it shows, and where on the picture a place is.

Does not belong here: what is drawn in it (`footprints.py`, `map_ground.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

MARGIN = 0.06
"""Free space at each side, as a part of the footprints' extent."""
MIN_SPAN = 2.0
"""Degrees of longitude and latitude that the map shows at least."""

Ring: TypeAlias = tuple[tuple[float, float], ...]
"""An outline: (longitude, latitude) in degrees, the first point repeated at the end; one point for a place."""


class Size(NamedTuple):
    """Of a picture, in pixels: width, the least and the greatest height, and meridians at most.

    With more meridians, their labels would touch.
    """

    width: int
    min_height: int
    max_height: int
    lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MapWindow:
    """An equirectangular projection, true to scale at its middle latitude. Degrees, and pixels for width and height."""

    west: float
    north: float
    east: float
    south: float
    width: int
    height: int

    def pixels(self, places: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return where on the picture places are: rows of longitude and latitude to rows of x and y."""
        scale = (self.width / (self.east - self.west), -self.height / (self.north - self.south))
        return (np.asarray(places, dtype=float) - (self.west, self.north)) * scale


def window_of(rings: Iterable[Ring], size: Size) -> MapWindow:
    """Return the window that shows all outlines, with a margin."""
    corners = np.array([point for ring in rings for point in ring])
    (west, south), (east, north) = corners.min(axis=0), corners.max(axis=0)
    middle, centre = (west + east) / 2, (south + north) / 2
    wide = max(east - west, MIN_SPAN) * (1 + 2 * MARGIN)
    high = max(north - south, MIN_SPAN) * (1 + 2 * MARGIN)
    # A degree of longitude is shorter than one of latitude by the cosine; bounded, for it vanishes at the poles.
    shortened = max(math.cos(math.radians(centre)), 0.2)
    height = round(min(max(size.width * high / (wide * shortened), size.min_height), size.max_height))
    wide = max(wide, size.width * high / (height * shortened))
    high = max(high, height * wide * shortened / size.width)
    return MapWindow(
        west=middle - wide / 2,
        east=middle + wide / 2,
        south=centre - high / 2,
        north=centre + high / 2,
        width=size.width,
        height=height,
    )
