"""Footprint: a reader's geometry, rounded, checked by GeoJSON's rules, with its bounds.

Belongs here: RFC 7946's rules for any geometry. Does not belong here: how a format yields a geometry (`readers/`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kfm_dagster.contracts.bounding_box import Box, bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

_DEPTHS = {"Point": 0, "MultiPoint": 1, "Polygon": 2, "MultiPolygon": 3}
"""Geometry types of NODD datasets, and the number of arrays around a position (RFC 7946, section 3.1)."""


def footprint(geometry: Mapping[str, Any] | None, *, decimals: int) -> tuple[Mapping[str, Any], Box]:
    """Return a valid GeoJSON geometry in WGS 84 degrees, and its exact bounds.

    West > east across the antimeridian. Units of one scene share the geometry: it must not be changed. Raises
    ReadError(MISSING_GEOLOCATION, INVALID_GEOMETRY).
    """
    if not geometry:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the headers give no geometry")
    return _footprint(_Same(geometry), decimals)


class _Same:
    """A geometry, equal to itself only.

    Readers share the geometry of a fixed scene, and hashing it would cost more than rounding it. The cache's reference
    keeps Python from reusing the identity for another object.
    """

    def __init__(self, geometry: Mapping[str, Any]) -> None:
        self.geometry = geometry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.geometry is other.geometry

    def __hash__(self) -> int:
        return id(self.geometry)


@lru_cache(maxsize=512)
def _footprint(same: _Same, decimals: int) -> tuple[Mapping[str, Any], Box]:
    kind = same.geometry.get("type")
    depth = _DEPTHS.get(kind) if isinstance(kind, str) else None
    if depth is None:
        raise _invalid(f"type {str(kind)[:40]!r} is none of {', '.join(_DEPTHS)}")
    try:
        coordinates = _nested(same.geometry["coordinates"], depth, decimals)
    except (KeyError, OverflowError, TypeError, ValueError):
        raise _invalid("coordinates are not arrays of finite longitude and latitude in range") from None
    if depth >= 2 and not all(len(ring) >= 4 and ring[0] == ring[-1] for ring in _rings(coordinates, depth)):
        raise _invalid("a ring is not closed, or has fewer than four positions")
    if depth == 3:
        # Rounding may reduce a part beyond the antimeridian to nothing: the geometry then ends before it.
        coordinates = [part for part in coordinates if _has_extent(part[0])] or coordinates
    rounded = {"type": kind, "coordinates": coordinates}
    return rounded, bounding_box(rounded)


def _invalid(text: str) -> ReadError:
    return ReadError(MetadataIssue.INVALID_GEOMETRY, text)


def _nested(values: Any, depth: int, decimals: int) -> list[Any]:
    if depth:
        if not isinstance(values, list | tuple) or not values:
            raise TypeError("no array")
        return [_nested(value, depth - 1, decimals) for value in values]
    longitude, latitude = (_degrees(value, decimals) for value in values)
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
        raise ValueError("out of range")
    return [longitude, latitude]


def _rings(coordinates: list[Any], depth: int) -> Iterator[list[Any]]:
    for part in coordinates if depth == 3 else [coordinates]:
        yield from part


def _has_extent(ring: list[list[float]]) -> bool:
    return all(len(set(axis)) > 1 for axis in zip(*ring, strict=True))


def _degrees(value: Any, decimals: int) -> float:
    if not math.isfinite(value):
        raise ValueError("not finite")
    # Adding zero turns -0.0 into 0.0, so that canonical JSON has one form of zero.
    return round(float(value), decimals) + 0.0
