"""The ABI fixed grid: scan angles to the ground, outlines of images, the reference system.

Belongs here: geometry of a geostationary imager that sweeps in x. Does not belong here: how a file states it.

Formulas: GOES-R Product Definition and Users' Guide (PUG), volume 3, section 5.1.2.8. Scan angles in radians, x to the
east and y to the north of the sub-satellite point; lengths in metres; longitudes and latitudes in degrees, geodetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pyproj import CRS

from kfm_dagster.readers import geometry

Angles: TypeAlias = npt.NDArray[np.float64]

POINTS_PER_SIDE = 16
LIMB_POINTS = 128
"""Vertices of an outline: on each side of the image, and around the whole limb."""
_BISECTIONS = 40
"""Bisections to find where a side crosses the limb; 40 reduce a step of 0.02 rad below the precision of a double."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedGrid:
    """The projection: origin, height of the perspective point above the ellipsoid, two axes."""

    longitude_of_origin: float
    perspective_point_height: float
    semi_major_axis: float
    semi_minor_axis: float

    @property
    def distance(self) -> float:
        """Distance from the Earth's centre to the perspective point, H of the PUG."""
        return self.perspective_point_height + self.semi_major_axis

    @property
    def axes_ratio(self) -> float:
        """(semi-major / semi-minor) squared."""
        return (self.semi_major_axis / self.semi_minor_axis) ** 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageBounds:
    """Outer edges of the image in scan angles: its pixels' edges, not their centres."""

    west: float
    east: float
    south: float
    north: float


Footprint: TypeAlias = tuple[Mapping[str, Any], tuple[float, float] | None]
"""The Earth in an image: its outline by RFC 7946 (split at the antimeridian), and the longitude and latitude at the
image's centre, None if the centre is space."""


@lru_cache(maxsize=1024)
def footprint(grid: FixedGrid, image: ImageBounds) -> Footprint | None:
    """Return an image's footprint; None without the Earth. Raises ReadError(INVALID_GEOMETRY).

    Cached, because the full disk and CONUS never move, and the sixteen bands of a mesoscale scan share their bounds.
    """
    x, y = _visible_outline(grid, image)
    if len(x) < 3:
        return None
    longitude, latitude = navigate(grid, x, y)
    ring = list(zip(longitude.tolist(), latitude.tolist(), strict=True))
    middle = np.array([[(image.west + image.east) / 2], [(image.south + image.north) / 2]])
    centre_longitude, centre_latitude = navigate(grid, middle[0], middle[1])
    centre = (float((centre_longitude[0] + 180) % 360 - 180), float(centre_latitude[0]))
    return geometry.polygon_from_ring(ring), centre if math.isfinite(centre[0]) else None


def navigate(grid: FixedGrid, x: Angles, y: Angles) -> tuple[Angles, Angles]:
    """Return longitude and latitude of scan angles; NaN when the line of sight misses the Earth.

    PUG 5.1.2.8.1. Longitudes are continuous around the origin, so they may leave [-180, 180].
    """
    a, b, c = _sight(grid, x, y)
    with np.errstate(invalid="ignore"):
        range_ = (-b - np.sqrt(b * b - 4 * a * c)) / (2 * a)
    east_west = grid.distance - range_ * np.cos(x) * np.cos(y)
    s_y, s_z = -range_ * np.sin(x), range_ * np.cos(x) * np.sin(y)
    latitude = np.degrees(np.arctan(grid.axes_ratio * s_z / np.hypot(east_west, s_y)))
    longitude = grid.longitude_of_origin - np.degrees(np.arctan2(s_y, east_west))
    return longitude, latitude


def _sight(grid: FixedGrid, x: Angles, y: Angles) -> tuple[Angles, Angles, float]:
    """Return a, b, c of the quadratic equation for the distance along the line of sight."""
    cos_x, cos_y = np.cos(x), np.cos(y)
    a = np.sin(x) ** 2 + cos_x**2 * (cos_y**2 + grid.axes_ratio * np.sin(y) ** 2)
    return a, -2 * grid.distance * cos_x * cos_y, grid.distance**2 - grid.semi_major_axis**2


def _on_earth(grid: FixedGrid, x: Angles, y: Angles) -> npt.NDArray[np.bool_]:
    a, b, c = _sight(grid, x, y)
    return b * b - 4 * a * c >= 0


def _visible_outline(grid: FixedGrid, image: ImageBounds) -> tuple[Angles, Angles]:
    """Return scan angles of the common outline of image and Earth."""
    x, y = _border(image)
    visible = _on_earth(grid, x, y)
    if visible.all():
        return x, y
    cross_x, cross_y = _limb_crossings(grid, x, y, visible)
    limb_x, limb_y = _limb(grid)
    inside = (limb_x >= image.west) & (limb_x <= image.east) & (limb_y >= image.south) & (limb_y <= image.north)
    all_x = np.concatenate([x[visible], cross_x, limb_x[inside]])
    all_y = np.concatenate([y[visible], cross_y, limb_y[inside]])
    if not len(all_x):
        return all_x, all_y
    # Image and Earth are convex in scan angles, so their intersection is convex: its outline is its points by bearing.
    bearing = np.arctan2(all_y - all_y.mean(), all_x - all_x.mean())
    order = np.argsort(bearing)
    return all_x[order], all_y[order]


def _border(image: ImageBounds) -> tuple[Angles, Angles]:
    """Return points along the four sides, counter-clockwise from the south-west, corners once."""
    step = np.arange(POINTS_PER_SIDE) / POINTS_PER_SIDE
    to_east, to_north = image.west + (image.east - image.west) * step, image.south + (image.north - image.south) * step
    to_west, to_south = image.east - (image.east - image.west) * step, image.north - (image.north - image.south) * step
    flat = np.ones(POINTS_PER_SIDE)
    x = np.concatenate([to_east, image.east * flat, to_west, image.west * flat])
    y = np.concatenate([image.south * flat, to_north, image.north * flat, to_south])
    return x, y


def _limb_crossings(grid: FixedGrid, x: Angles, y: Angles, seen: npt.NDArray[np.bool_]) -> tuple[Angles, Angles]:
    """Return border points just inside the limb, by bisection of seen and unseen neighbours."""
    after = np.roll(np.arange(len(x)), -1)
    edge = np.flatnonzero(seen != seen[after])
    inner = np.where(seen[edge], edge, after[edge])
    outer = np.where(seen[edge], after[edge], edge)
    near_x, near_y, far_x, far_y = x[inner], y[inner], x[outer], y[outer]
    for _ in range(_BISECTIONS):
        mid_x, mid_y = (near_x + far_x) / 2, (near_y + far_y) / 2
        on = _on_earth(grid, mid_x, mid_y)
        near_x, near_y = np.where(on, mid_x, near_x), np.where(on, mid_y, near_y)
        far_x, far_y = np.where(on, far_x, mid_x), np.where(on, far_y, mid_y)
    return near_x, near_y


def _limb(grid: FixedGrid) -> tuple[Angles, Angles]:
    """Return scan angles of the Earth's edge, just inside it.

    Lines from (H, 0, 0) touch the ellipsoid where its polar plane x = a^2/H cuts it.
    """
    touch = grid.semi_major_axis**2 / grid.distance
    radius = math.sqrt(1 - (grid.semi_major_axis / grid.distance) ** 2)
    turn = np.linspace(0, 2 * np.pi, LIMB_POINTS, endpoint=False)
    s_x = grid.distance - touch
    s_y = -grid.semi_major_axis * radius * np.cos(turn)
    s_z = grid.semi_minor_axis * radius * np.sin(turn)
    # PUG 5.1.2.8.2; rounding must not put a tangent outside, where it has no ground point.
    inward = 1 - 1e-9
    return np.arcsin(-s_y / np.sqrt(s_x**2 + s_y**2 + s_z**2)) * inward, np.arctan(s_z / s_x) * inward


@lru_cache(maxsize=64)
def wkt2(grid: FixedGrid) -> str:
    """Return WKT 2:2019 of the projection in metres: scan angles times perspective height."""
    return str(
        CRS.from_cf(
            {
                "grid_mapping_name": "geostationary",
                "perspective_point_height": grid.perspective_point_height,
                "semi_major_axis": grid.semi_major_axis,
                "semi_minor_axis": grid.semi_minor_axis,
                "latitude_of_projection_origin": 0.0,
                "longitude_of_projection_origin": grid.longitude_of_origin,
                "sweep_angle_axis": "x",
            }
        ).to_wkt("WKT2_2019")
    )
