"""The bounding box of a GeoJSON geometry (RFC 7946, 5): only this module derives it.

Belongs here: values derived from a geometry alone. Does not belong here: reading geometries (`readers/`), and the
extent that a file declares, which is a property.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Box = tuple[float, float, float, float]
"""(west, south, east, north) in degrees; west > east when it crosses the antimeridian (RFC 7946, 5.2)."""

_PARTS_AT = {"Point": 0, "MultiPoint": 1, "Polygon": 0, "MultiPolygon": 1}
"""1 if the coordinates are an array of parts, 0 if they are a single part."""


def bounding_box(geometry: Mapping[str, Any]) -> Box:
    """Return the exact bounds of a (multi)point or (multi)polygon split at the antimeridian.

    A geometry crosses the antimeridian if one part reaches 180 degrees and another part reaches -180. The box then
    excludes the widest range of longitudes without a part. Raises KeyError, TypeError or ValueError for other values.
    """
    coordinates = geometry["coordinates"]
    parts = [list(_positions(part)) for part in (coordinates if _PARTS_AT[geometry["type"]] else [coordinates])]
    latitudes = [latitude for part in parts for _, latitude in part]
    spans = [_span(part) for part in parts]
    west, east = _sides(spans)
    return west, min(latitudes), east, max(latitudes)


def _positions(nested: Any) -> Iterator[Sequence[float]]:
    if nested and isinstance(nested[0], int | float):
        yield nested
        return
    for inner in nested:
        yield from _positions(inner)


def _span(part: list[Sequence[float]]) -> tuple[float, float]:
    longitudes = [longitude for longitude, _ in part]
    return min(longitudes), max(longitudes)


def _sides(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the west and east bounds of spans of longitude."""
    west, east = min(first for first, _ in spans), max(last for _, last in spans)
    if (west, east) != (-180, 180):
        return west, east
    reached, gaps = -180.0, []
    for first, last in sorted(spans):
        if first > reached:
            gaps.append((first - reached, first, reached))
        reached = max(reached, last)
    if not gaps:
        return west, east
    _, first, last = max(gaps)
    return first, last
