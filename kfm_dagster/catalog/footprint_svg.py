"""A small map of footprints as one SVG picture.

Belongs here: the drawing, from GeoJSON to SVG. Does not belong here: which footprints are drawn, and where the picture
goes (`assets.py`, and `footprint_map.py` of Dagster's materialisations).

A picture is kept to some kilobytes: outlines are thinned to what a pixel shows, and there are no coastlines, only a
labelled graticule. It is made of geometry alone, so that the same geometry has the same picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import shapely

MAX_OUTLINES = 200
"""Distinct outlines drawn; a day of one radar network has about 160."""
MARGIN = 0.06
"""Free space at each side, as a part of the footprints' extent."""
MIN_SPAN = 2.0
"""Degrees of longitude and latitude that the map shows at least."""
STEPS = (0.25, 0.5, 1, 2, 5, 10, 15, 30, 60)
"""Degrees between two lines of the graticule."""
LABEL = (36, 16)
"""Room that a label of the graticule takes, in pixels."""
TOLERANCE = 0.5
"""Pixels by which a thinned outline may be off (Douglas and Peucker)."""

DOT = 2.5
"""Radius of a place that has no extent, in pixels."""

Ring = tuple[tuple[float, float], ...]
"""An outline: (longitude, latitude) in degrees, the first point repeated at the end; one point for a place."""


class Size(NamedTuple):
    """Of a picture, in pixels: width, the least and the greatest height, and meridians at most.

    With more meridians, their labels would touch.
    """

    width: int
    min_height: int
    max_height: int
    lines: int


THUMBNAIL = Size(width=240, min_height=120, max_height=240, lines=4)
"""Of an Item; the STAC specification asks for at most 600 pixels on a side (best practices, thumbnails)."""


class Picture(NamedTuple):
    """A picture, how many outlines differ, and how many of them are drawn."""

    svg: str
    distinct: int
    drawn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _View:
    """The window of the map: an equirectangular projection, true to scale at its middle latitude. Degrees, pixels."""

    west: float
    north: float
    east: float
    south: float
    width: int
    height: int

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels per degree of longitude and latitude."""
        return self.width / (self.east - self.west), self.height / (self.north - self.south)

    def x(self, longitude: float) -> float:
        return (longitude - self.west) * self.scale[0]

    def y(self, latitude: float) -> float:
        return (self.north - latitude) * self.scale[1]


def draw(geometries: Sequence[Mapping[str, Any]], size: Size) -> Picture | None:
    """Return a map of the geometries' outer rings and points, or None where there is nothing to draw.

    geometries are GeoJSON points, polygons and the like, split at the antimeridian; equal outlines are drawn once, and
    of too many some from all over.
    """
    every = sorted({ring for geometry in geometries for ring in _rings(geometry)})
    if not every:
        return None
    shown = min(len(every), MAX_OUTLINES)
    rings = _joined([every[number * len(every) // shown] for number in range(shown)])
    view = _view(rings, size)
    outlines = "".join(_dot(ring[0], view) if len(ring) == 1 else _path(ring, view) for ring in rings)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size.width}" height="{view.height}">'
        f'<rect width="{size.width}" height="{view.height}" fill="#f7f9fc"/>{_graticule(view, size.lines)}'
        '<g fill="#2a6fdb" fill-opacity="0.12" stroke="#2a6fdb" stroke-linejoin="round" stroke-linecap="round">'
        f"{outlines}</g></svg>"
    )
    return Picture(svg, len(every), len(rings))


def _rings(geometry: Mapping[str, Any]) -> Iterator[Ring]:
    several = geometry["type"].startswith("Multi")
    for part in geometry["coordinates"] if several else [geometry["coordinates"]]:
        outer = part[0] if geometry["type"].endswith("Polygon") else [part]
        yield tuple((float(point[0]), float(point[1])) for point in outer)


def _joined(rings: Sequence[Ring]) -> Sequence[Ring]:
    """Move what lies east of Greenwich by a turn where that makes the map narrower.

    The two halves of a footprint over the antimeridian then stand side by side, as GOES-West's do.
    """
    moved = [
        tuple((longitude - 360, latitude) for longitude, latitude in ring)
        if min(longitude for longitude, _ in ring) >= 0
        else ring
        for ring in rings
    ]
    return min((rings, moved), key=_width)


def _width(rings: Iterable[Ring]) -> float:
    longitudes = [longitude for ring in rings for longitude, _ in ring]
    return max(longitudes) - min(longitudes)


def _view(rings: Iterable[Ring], size: Size) -> _View:
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
    return _View(
        west=middle - wide / 2,
        east=middle + wide / 2,
        south=centre - high / 2,
        north=centre + high / 2,
        width=size.width,
        height=height,
    )


def _path(ring: Ring, view: _View) -> str:
    pixels = [(view.x(longitude), view.y(latitude)) for longitude, latitude in ring]
    thinned = shapely.get_coordinates(shapely.simplify(shapely.LineString(pixels), TOLERANCE))
    lines = "L".join(f"{x:.1f} {y:.1f}" for x, y in thinned)
    return f'<path d="M{lines}Z"/>'


def _dot(point: tuple[float, float], view: _View) -> str:
    return f'<circle cx="{view.x(point[0]):.1f}" cy="{view.y(point[1]):.1f}" r="{DOT}"/>'


def _graticule(view: _View, most: int) -> str:
    span = max(view.east - view.west, view.north - view.south)
    step = next((step for step in STEPS if span / step <= most), STEPS[-1])
    lines, labels = [], []
    for longitude in _multiples(step, view.west, view.east):
        x = view.x(longitude)
        lines.append(f'<path d="M{x:.1f} 0V{view.height}"/>')
        if x < view.width - LABEL[0]:
            labels.append(f'<text x="{x + 3:.1f}" y="{view.height - 4}">{_label(_turned(longitude), "EW")}</text>')
    for latitude in _multiples(step, view.south, view.north):
        y = view.y(latitude)
        lines.append(f'<path d="M0 {y:.1f}H{view.width}"/>')
        if LABEL[1] < y < view.height - LABEL[1]:
            labels.append(f'<text x="3" y="{y - 3:.1f}">{_label(latitude, "NS")}</text>')
    return f'<g stroke="#d5dbe6">{"".join(lines)}</g><g font-family="sans-serif" font-size="11">{"".join(labels)}</g>'


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _turned(longitude: float) -> float:
    return (longitude + 180) % 360 - 180


def _label(degrees: float, sides: str) -> str:
    side = "" if degrees in {0, -180} else sides[degrees < 0]
    return f"{abs(degrees):g}\N{DEGREE SIGN}{side}"
