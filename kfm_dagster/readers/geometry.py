"""GeoJSON geometry from a ring of longitudes and latitudes: wound right-hand, split at the antimeridian.

Belongs here: RFC 7946 form. Does not belong here: where the ring comes from (`geostationary.py`, and other readers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import antimeridian
from shapely import Polygon
from shapely.geometry import mapping

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

BoundingBox = tuple[float, float, float, float]


def polygon_from_ring(ring: list[tuple[float, float]]) -> Mapping[str, Any]:
    """GeoJSON Polygon, or MultiPolygon when the ring crosses the antimeridian (RFC 7946, 3.1.6 and 3.1.9).

    `ring` holds (longitude, latitude) in degrees, closed or not, wound either way; longitudes are continuous, so they
    leave [-180, 180] where the ring crosses the antimeridian. Coordinates are nested tuples. Raises
    ReadError(INVALID_GEOMETRY) when the ring crosses itself or has no area.
    """
    polygon = Polygon(ring)
    if not polygon.is_valid or polygon.area <= 0:
        raise ReadError(MetadataIssue.INVALID_GEOMETRY, f"the outline of {len(ring)} points is no valid polygon")
    polygon = polygon if polygon.exterior.is_ccw else polygon.reverse()
    west, _, east, _ = polygon.bounds
    if west < -180 or east > 180:
        # Straight in longitude and latitude, as GeoJSON says of its lines.
        polygon = antimeridian.fix_polygon(polygon, fix_winding=True, great_circle=False)
    geojson: Mapping[str, Any] = mapping(polygon)
    return geojson


def bounds(ring: list[tuple[float, float]]) -> BoundingBox:
    """(west, south, east, north) of a ring with continuous longitudes; west > east when it crosses the antimeridian."""
    longitudes, latitudes = zip(*ring, strict=True)
    return _wrap(min(longitudes)), min(latitudes), _wrap(max(longitudes)), max(latitudes)


def _wrap(longitude: float) -> float:
    return (longitude + 180) % 360 - 180 if not -180 <= longitude <= 180 else longitude
