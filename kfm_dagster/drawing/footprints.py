"""A small map of footprints as an SVG picture.

A picture has some kilobytes: outlines and coastlines are thinned to a pixel's precision. The same geometries, size
and links give the same picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import shapely

from kfm_dagster.drawing.map_ground import MapWindow, Ring, Size, ground, window_of
from kfm_dagster.drawing.svg import line

MAX_OUTLINES = 200
"""Maximum distinct outlines that are drawn; a day of a radar network has about 160."""
STEPS = (0.25, 0.5, 1, 2, 5, 10, 15, 30, 60)
"""Possible degrees between two lines of the graticule."""
LABEL = (36, 16)
"""Size of a label of the graticule, in pixels."""
TOLERANCE = 0.5
"""Maximum error of a thinned outline in pixels (Douglas and Peucker)."""
DOT = 3.5
"""Radius of a point, in pixels."""
INK = "#1f5fc4"


def draw(
    geometries: Sequence[Mapping[str, Any]], size: Size, *, links: Sequence[str] = ()
) -> tuple[str, int, int] | None:
    """Return a map of outer rings and points, and the numbers of distinct and drawn outlines.

    Returns None without geometries.

    geometries are GeoJSON points, polygons and the like, split at the antimeridian. Equal outlines are drawn once; if
    there are too many, an even sample is drawn. Land and borders take at most 17 kB. `links` are the opening tags of
    the geometries' links; among equal outlines, the last link is used.
    """
    tags = dict(zip_longest((tuple(_rings(geometry)) for geometry in geometries), links))
    every = sorted(tags)
    if not every:
        return None
    shown = min(len(every), MAX_OUTLINES)
    drawn = [every[number * len(every) // shown] for number in range(shown)]
    footprints = _joined(drawn)
    window = window_of(chain.from_iterable(footprints), size)
    lines, labels = _graticule(window, size.lines)
    outlines = "".join(_outline(rings, tags[name], window) for name, rings in zip(drawn, footprints, strict=True))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size.width}" height="{window.height}">{ground(window)}{lines}'
        f'<g fill="{INK}" fill-opacity="0.12" stroke="{INK}" stroke-linejoin="round" stroke-linecap="round">'
        f"{outlines}</g>{labels}</svg>"
    )
    return svg, len(every), shown


def _rings(geometry: Mapping[str, Any]) -> Iterator[Ring]:
    several = geometry["type"].startswith("Multi")
    for part in geometry["coordinates"] if several else [geometry["coordinates"]]:
        outer = part[0] if geometry["type"].endswith("Polygon") else [part]
        yield tuple((float(point[0]), float(point[1])) for point in outer)


def _joined(footprints: Sequence[Sequence[Ring]]) -> Sequence[Sequence[Ring]]:
    """Move rings east of Greenwich west by 360 degrees if that makes the map narrower.

    The two halves of a footprint over the antimeridian, such as GOES-West's, are then joined.
    """
    moved = [_merged([_west_of_greenwich(ring) for ring in parts]) for parts in footprints]
    return min((footprints, moved), key=_width)


def _west_of_greenwich(ring: Ring) -> Ring:
    if min(longitude for longitude, _ in ring) < 0:
        return ring
    return tuple((longitude - 360, latitude) for longitude, latitude in ring)


def _merged(parts: Sequence[Ring]) -> Sequence[Ring]:
    if len(parts) == 1 or len(parts[0]) == 1:
        return parts
    whole = shapely.union_all(shapely.make_valid([shapely.Polygon(ring) for ring in parts]))
    return [tuple(map(tuple, part.exterior.coords)) for part in shapely.get_parts(whole) if part.area]


def _width(footprints: Sequence[Sequence[Ring]]) -> float:
    longitudes = [longitude for ring in chain.from_iterable(footprints) for longitude, _ in ring]
    return max(longitudes) - min(longitudes)


def _outline(rings: Sequence[Ring], tag: str | None, window: MapWindow) -> str:
    outline = "".join(_dot(ring[0], window) if len(ring) == 1 else _path(ring, window) for ring in rings)
    return f"{tag}{outline}</a>" if tag else outline


def _path(ring: Ring, window: MapWindow) -> str:
    thinned = shapely.simplify(shapely.LineString(window.pixels(ring)), TOLERANCE)
    return f'<path d="{line(shapely.get_coordinates(thinned))}Z"/>'


def _dot(point: tuple[float, float], window: MapWindow) -> str:
    x, y = window.pixels(point)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill-opacity="0.9" stroke="#fff"/>'


def _graticule(window: MapWindow, most: int) -> tuple[str, str]:
    """Return the lines, and their labels with a halo, so that they are legible above footprints."""
    span = max(window.east - window.west, window.north - window.south)
    step = next((step for step in STEPS if span / step <= most), STEPS[-1])
    lines, labels = [], []
    for longitude in _multiples(step, window.west, window.east):
        x, _ = window.pixels((longitude, window.south))
        lines.append(f'<path d="M{x:.1f} 0V{window.height}"/>')
        if x < window.width - LABEL[0]:
            labels.append(
                f'<text x="{x + 3:.1f}" y="{window.height - 4}">{_label((longitude + 180) % 360 - 180, "EW")}</text>'
            )
    for latitude in _multiples(step, max(window.south, -90), min(window.north, 90)):
        _, y = window.pixels((window.west, latitude))
        lines.append(f'<path d="M0 {y:.1f}H{window.width}"/>')
        if LABEL[1] < y < window.height - LABEL[1]:
            labels.append(f'<text x="3" y="{y - 3:.1f}">{_label(latitude, "NS")}</text>')
    halo = 'paint-order="stroke" stroke="#fff" stroke-width="2.5" stroke-opacity="0.8" stroke-linejoin="round"'
    return (
        f'<g stroke="#8fa3bd" stroke-opacity="0.45" stroke-width="0.7">{"".join(lines)}</g>',
        f'<g font-family="sans-serif" font-size="11" {halo}>{"".join(labels)}</g>',
    )


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _label(degrees: float, sides: str) -> str:
    side = "" if degrees in {0, -180} else sides[degrees < 0]
    return f"{abs(degrees):g}\N{DEGREE SIGN}{side}"
