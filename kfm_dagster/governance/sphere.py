"""The sphere: where a great circle ends, and how far out a ring's share of area lies (pure). Nothing else."""

from __future__ import annotations

import math

EARTH_RADIUS_M = 6_371_007.180918475
"""Authalic radius of WGS 84, the sphere of H3."""


def ring_radius_m(low_m: float, high_m: float, share: float) -> float:
    """Return the radius in metres within which a share (0 to 1) of a ring's area lies, well-conditioned when short."""
    # A cap's area is 4 pi R^2 sin^2(angle / 2); by cosines, short radii would drown in rounding.
    inner, outer = (math.sin(radius / EARTH_RADIUS_M / 2) ** 2 for radius in (low_m, high_m))
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(inner + share * (outer - inner)))


def displaced(latitude: float, longitude: float, *, bearing: float, distance_m: float) -> tuple[float, float]:
    """Return latitude and longitude in degrees where a great circle ends; `bearing` in radians from north by east.

    By vectors, which know no pole and no antimeridian.
    """
    phi, lam, angle = math.radians(latitude), math.radians(longitude), distance_m / EARTH_RADIUS_M
    up = (math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi))
    north = (-math.sin(phi) * math.cos(lam), -math.sin(phi) * math.sin(lam), math.cos(phi))
    east = (-math.sin(lam), math.cos(lam), 0.0)
    x, y, z = (
        math.cos(angle) * u + math.sin(angle) * (math.cos(bearing) * n + math.sin(bearing) * e)
        for u, n, e in zip(up, north, east, strict=True)
    )
    return math.degrees(math.atan2(z, math.hypot(x, y))), math.degrees(math.atan2(y, x))
