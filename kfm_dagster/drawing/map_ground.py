"""The window of a map, and its ground: land, and borders of countries and of US states.

`map_ground.txt` states its sources, which are in the public domain, and its form in its first lines. Does not belong
here: the drawing above the ground (`footprints.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import shapely

MARGIN = 0.06
"""Free space at each side, as a part of the footprints' extent."""
MIN_SPAN = 2.0
"""Minimum span of the map, in degrees of longitude and of latitude."""

Pixels: TypeAlias = npt.NDArray[np.float64]
"""Rows of x and y in pixels."""
Ring: TypeAlias = tuple[tuple[float, float], ...]
"""An outline: (longitude, latitude) in degrees, the first point repeated at the end; one point for a place."""


class Size(NamedTuple):
    """Size of a picture in pixels, and `lines`, the maximum steps of the graticule along a side.

    With more steps, the labels would touch.
    """

    width: int
    min_height: int
    max_height: int
    lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MapWindow:
    """An equirectangular projection, true at its middle latitude; width and height in pixels."""

    west: float
    north: float
    east: float
    south: float
    width: int
    height: int

    def pixels(self, places: npt.ArrayLike) -> Pixels:
        """Return the pixels of places: rows of longitude and latitude become rows of x and y."""
        scale = (self.width / (self.east - self.west), -self.height / (self.north - self.south))
        return (np.asarray(places, dtype=float) - (self.west, self.north)) * scale


def window_of(rings: Iterable[Ring], size: Size) -> MapWindow:
    """Return the window that shows all outlines, with a margin."""
    corners = np.array([point for ring in rings for point in ring])
    (west, south), (east, north) = corners.min(axis=0), corners.max(axis=0)
    middle, centre = (west + east) / 2, (south + north) / 2
    wide = max(east - west, MIN_SPAN) * (1 + 2 * MARGIN)
    high = max(north - south, MIN_SPAN) * (1 + 2 * MARGIN)
    # Length of a degree of longitude in degrees of latitude; at least 0.2, because the cosine is 0 at the poles.
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


SEA, LAND, COAST, BORDER = "#eaf1f7", "#fbfaf5", "#a9b4c2", "#c2bcac"
STEP = 0.5
"""Resolution of the ground in pixels; whole numbers of steps take few bytes in a path."""
TOLERANCE = 0.8
"""Maximum error of a thinned line in pixels (Douglas and Peucker)."""
LEAST_AREA = 6.0
"""Minimum area of a drawn island, in square pixels."""
LEAST_LENGTH = 6.0
"""Minimum length of a drawn border, in pixels."""
STATES_FROM = 5.0
"""Minimum pixels per degree of longitude to draw borders of states; on a map of the world they would hide the land."""
_DEGREES = 0.01
"""Factor from the numbers of the file to degrees."""
_LAND, _STATE = "land", "state"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A ring of land, or a border: `places` are longitude, latitude within `west` and `east`."""

    kind: str
    places: npt.NDArray[np.float64]
    west: float
    east: float


@lru_cache(maxsize=64)
def ground(window: MapWindow) -> str:
    """Return sea, land and borders as SVG; cached, because the days of a dataset share a window."""
    land, borders = "", ""
    for line, turn in _lines_in(window):
        pixels = window.pixels(line.places + np.array([turn, 0]))
        is_land = line.kind == _LAND
        shape = shapely.make_valid(shapely.Polygon(pixels)) if is_land else shapely.LineString(pixels)
        # The clip is two pixels larger at each side, so that no coast runs along the frame.
        visible = shapely.clip_by_rect(shape, -2, -2, window.width + 2, window.height + 2)
        for part in shapely.get_parts(visible):
            if not is_land and part.length >= LEAST_LENGTH:
                borders += _path(part)
            elif is_land and part.geom_type == "Polygon" and part.area >= LEAST_AREA:
                land += "".join(map(_path, shapely.get_rings(part)))
    return (
        f'<rect width="{window.width}" height="{window.height}" fill="{SEA}"/>'
        f'<g transform="scale({STEP:g})" stroke-width="{0.8 / STEP:g}" stroke-linejoin="round">'
        f'<path d="{land}" fill="{LAND}" fill-rule="evenodd" stroke="{COAST}"/>'
        f'<path d="{borders}" fill="none" stroke="{BORDER}"/></g>'
    )


def _lines_in(window: MapWindow) -> Iterator[tuple[_Line, int]]:
    """Yield lines that may be visible, each with the degrees that move it east into the window."""
    with_states = window.width / (window.east - window.west) >= STATES_FROM
    for line in _lines():
        if line.kind == _STATE and not with_states:
            continue
        for turn in (-720, -360, 0, 360, 720):
            if line.west + turn <= window.east and line.east + turn >= window.west:
                yield line, turn


def _path(line: shapely.Geometry) -> str:
    """Return a line's path: a start, then steps; a minus sign replaces the blank before it."""
    points = np.rint(shapely.get_coordinates(shapely.simplify(line, TOLERANCE)) / STEP).astype(int)
    x, y = points[0]
    return f"M{x} {y}l" + " ".join(f"{dx} {dy}" for dx, dy in np.diff(points, axis=0)).replace(" -", "-")


@cache
def _lines() -> tuple[_Line, ...]:
    """Read the file: each line is a kind, the first place, and the steps from place to place."""
    lines = []
    for row in files(__package__).joinpath("map_ground.txt").read_text(encoding="utf-8").splitlines():
        if not row or row.startswith("#"):
            continue
        kind, *numbers = row.split()
        places = np.cumsum(np.array(numbers, dtype=float).reshape(-1, 2), axis=0) * _DEGREES
        west, east = places[:, 0].min(), places[:, 0].max()
        lines.append(_Line(kind=kind, places=places, west=west, east=east))
    return tuple(lines)
