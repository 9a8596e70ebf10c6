"""The ABI fixed grid: scan angles to the ground, outlines of images, the reference system.

Belongs here: geometry of a geostationary imager that sweeps in x. Does not belong here: how a file states the geometry,
and the projection's formulas (PROJ has them).

Source: GOES-R Product Definition and Users' Guide (PUG), volume 3, section 5.1.2.8. Scan angles in radians, x to the
east and y to the north of the sub-satellite point; lengths in metres; longitudes and latitudes in degrees, geodetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Proj

from kfm_dagster.contracts.bounding_box import Box
from kfm_dagster.readers import geometry

Angles: TypeAlias = npt.NDArray[np.float64]

POINTS_PER_SIDE = 16
LIMB_POINTS = 128
"""Vertices of an outline: on each side of the image, and around the whole limb."""
_BISECTIONS = 40
"""Bisections to find where a side crosses the limb; 40 reduce a step of 0.02 rad to 2e-14 rad."""


class FixedGrid(NamedTuple):
    """The projection: origin, height of the perspective point above the ellipsoid, two axes."""

    longitude_of_origin: float
    perspective_point_height: float
    semi_major_axis: float
    semi_minor_axis: float


Footprint: TypeAlias = tuple[Mapping[str, Any], tuple[float, float] | None]
"""The Earth in an image: its outline by RFC 7946 (split at the antimeridian), and the longitude and latitude at the
image's centre, None if the centre is space."""


@lru_cache(maxsize=1024)
def footprint(grid: FixedGrid, image: Box) -> Footprint | None:
    """Return an image's footprint, None without Earth in it. Raises ReadError(INVALID_GEOMETRY).

    `image` has the scan angles of its outer edges, half a pixel beyond the outermost centres. Cached, because the full
    disk and CONUS never move, and the sixteen bands of a mesoscale scan share their bounds.
    """
    x, y = _visible_outline(grid, image)
    if len(x) < 3:
        return None
    west, south, east, north = image
    # The last point is the image's centre.
    middle = (west + east) / 2, (south + north) / 2
    longitude, latitude = navigate(grid, np.append(x, middle[0]), np.append(y, middle[1]))
    ring = list(zip(longitude[:-1].tolist(), latitude[:-1].tolist(), strict=True))
    centre = (float((longitude[-1] + 180) % 360 - 180), float(latitude[-1]))
    return geometry.polygon_from_ring(ring), centre if math.isfinite(centre[0]) else None


def navigate(grid: FixedGrid, x: Angles, y: Angles) -> tuple[Angles, Angles]:
    """Return longitude and latitude of scan angles; NaN when the line of sight misses the Earth.

    Longitudes are continuous around the origin, so they may leave [-180, 180].
    """
    crs, _ = reference_system(grid)
    ground = Proj(crs)(x * grid.perspective_point_height, y * grid.perspective_point_height, inverse=True)
    longitude, latitude = (np.where(np.isfinite(axis), axis, np.nan) for axis in ground)
    return grid.longitude_of_origin + (longitude - grid.longitude_of_origin + 180) % 360 - 180, latitude


def _visible_outline(grid: FixedGrid, image: Box) -> tuple[Angles, Angles]:
    """Return scan angles of the outline of the image's part that shows the Earth."""
    west, south, east, north = image
    x, y = geometry.border(*(np.linspace(*ends, POINTS_PER_SIDE + 1) for ends in ((west, east), (south, north))))
    visible = np.isfinite(navigate(grid, x, y)[0])
    if visible.all():
        return x, y
    cross_x, cross_y = _limb_crossings(grid, x, y, visible)
    limb_x, limb_y = _limb(grid)
    inside = (limb_x >= west) & (limb_x <= east) & (limb_y >= south) & (limb_y <= north)
    all_x = np.concatenate([x[visible], cross_x, limb_x[inside]])
    all_y = np.concatenate([y[visible], cross_y, limb_y[inside]])
    if not len(all_x):
        return all_x, all_y
    # Image and Earth are convex in scan angles, so their intersection is convex, and its outline has these points in
    # the order of their bearings.
    bearing = np.arctan2(all_y - all_y.mean(), all_x - all_x.mean())
    order = np.argsort(bearing)
    return all_x[order], all_y[order]


def _limb_crossings(grid: FixedGrid, x: Angles, y: Angles, seen: npt.NDArray[np.bool_]) -> tuple[Angles, Angles]:
    """Return border points just inside the limb, by bisection of seen and unseen neighbours."""
    after = np.roll(np.arange(len(x)), -1)
    edge = np.flatnonzero(seen != seen[after])
    inner = np.where(seen[edge], edge, after[edge])
    outer = np.where(seen[edge], after[edge], edge)
    near, far = np.stack([x[inner], y[inner]]), np.stack([x[outer], y[outer]])
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        on = np.isfinite(navigate(grid, *middle)[0])
        near, far = np.where(on, middle, near), np.where(on, far, middle)
    return near[0], near[1]


def _limb(grid: FixedGrid) -> tuple[Angles, Angles]:
    """Return scan angles of the Earth's edge, just inside it.

    Lines from the perspective point, (H, 0, 0) from the Earth's centre, touch the ellipsoid where that point's polar
    plane, x = a^2/H, cuts the ellipsoid.
    """
    distance = grid.perspective_point_height + grid.semi_major_axis
    radius = math.sqrt(1 - (grid.semi_major_axis / distance) ** 2)
    turn = np.linspace(0, 2 * np.pi, LIMB_POINTS, endpoint=False)
    s_x = distance - grid.semi_major_axis**2 / distance
    s_y = -grid.semi_major_axis * radius * np.cos(turn)
    s_z = grid.semi_minor_axis * radius * np.sin(turn)
    # PUG 5.1.2.8.2. A tangent that rounding moves outside the limb would have no ground point.
    inward = 1 - 1e-9
    return np.arcsin(-s_y / np.sqrt(s_x**2 + s_y**2 + s_z**2)) * inward, np.arctan(s_z / s_x) * inward


@lru_cache(maxsize=64)
def reference_system(grid: FixedGrid) -> tuple[CRS, str]:
    """Return the projection in metres (scan angle times height), and its WKT 2:2019."""
    crs = CRS.from_cf(
        {
            "grid_mapping_name": "geostationary",
            "perspective_point_height": grid.perspective_point_height,
            "semi_major_axis": grid.semi_major_axis,
            "semi_minor_axis": grid.semi_minor_axis,
            "latitude_of_projection_origin": 0.0,
            "longitude_of_projection_origin": grid.longitude_of_origin,
            "sweep_angle_axis": "x",
        }
    )
    return crs, str(crs.to_wkt("WKT2_2019"))
