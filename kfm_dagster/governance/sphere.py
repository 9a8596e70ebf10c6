"""The sphere: its great circles, and how far out a ring's share of area lies (pure). Nothing else."""

from __future__ import annotations

import math

from pyproj import Geod

EARTH_RADIUS_M = 6_371_007.180918475
"""Authalic radius of WGS 84, the sphere of H3."""
GREAT_CIRCLES = Geod(a=EARTH_RADIUS_M, b=EARTH_RADIUS_M)


def ring_radius_m(low_m: float, high_m: float, share: float) -> float:
    """Return the radius in metres within which a share (0 to 1) of a ring's area lies, well-conditioned when short."""
    # A cap's area is 4 pi R^2 sin^2(angle / 2); by cosines, short radii would drown in rounding.
    inner, outer = (math.sin(radius / EARTH_RADIUS_M / 2) ** 2 for radius in (low_m, high_m))
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(inner + share * (outer - inner)))
