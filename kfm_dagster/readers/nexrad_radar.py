"""The radar of a NEXRAD volume: where it stands, held against the site table, and what it reaches.

Belongs here: what volumes and their chunks say alike. Does not belong here: the site table (`nexrad_sites.py`), and
what else their records say.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import antimeridian
import numpy as np
from pyproj import Geod
from shapely.geometry import Polygon, mapping

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.nexrad_messages import Position
from kfm_dagster.readers.nexrad_sites import Site

RADAR_PROPERTIES = frozenset({
    "platform", "instruments", "processing:level", "nexrad:site", "nexrad:site-name", "nexrad:latitude",
    "nexrad:longitude", "nexrad:height-m", "nexrad:position-source",
})  # fmt: skip
"""What `radar_properties` gives."""

POSITION_TOLERANCE_M = 50_000
"""Between a volume's own position and its site's: 100 m in real volumes, but the table has one place a site, and the
farthest known move is RKSG's, by 36 km. The nearest other radar is 59 km off, but for two tested in Norman."""
RANGE_M = 460_000
"""Reach of the reflectivity: 460 cells of 1 km (ICD 2620002, table III), 1840 gates of 250 m (table XVII-B)."""
CIRCLE_POINTS = 36
_WGS84 = Geod(ellps="WGS84")


def place_of(stated: Position | None, site: Site | None, icao: str) -> Position | Site:
    """Take the radar's own position, or the site's where a volume states none (type 1, or a block of zeros).

    Raises ReadError(MISSING_GEOLOCATION, INVALID_GEOMETRY).
    """
    if stated is None or (stated.latitude == 0 and stated.longitude == 0):
        if site is None:
            raise ReadError(
                MetadataIssue.MISSING_GEOLOCATION, f"no position is stated and {icao} is not in the site table"
            )
        return site
    # Written so that NaN fails. No WSR-88D stands beyond 65 degrees; past 85 the disc would hold a pole.
    if not (-85 <= stated.latitude <= 85 and -180 <= stated.longitude <= 180):
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY, f"the radar is said to be at {stated.latitude}, {stated.longitude}"
        )
    if site is not None:
        _check_distance(stated, site)
    return stated


def _check_distance(stated: Position, site: Site) -> None:
    *_, distance = _WGS84.inv(stated.longitude, stated.latitude, site.longitude, site.latitude)
    if distance > POSITION_TOLERANCE_M:
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY,
            f"the radar is said to be at {stated.latitude:.4f}, {stated.longitude:.4f}, {distance / 1000:.0f} km from "
            f"where {site.icao} is; expected {POSITION_TOLERANCE_M // 1000} km at most",
        )


@lru_cache(maxsize=1024)
def coverage(latitude: float, longitude: float) -> Mapping[str, Any]:
    """Disc of RANGE_M around the radar as GeoJSON, counterclockwise, split at the antimeridian.

    Cached because a network has 160 positions and a day 40,000 volumes.
    """
    azimuths = np.linspace(360, 0, CIRCLE_POINTS, endpoint=False)
    around = np.full(CIRCLE_POINTS, 1.0)
    longitudes, latitudes, _ = _WGS84.fwd(around * longitude, around * latitude, azimuths, around * RANGE_M)
    disc: Mapping[str, Any] = mapping(antimeridian.fix_polygon(Polygon(zip(longitudes, latitudes, strict=True))))
    return disc


def radar_properties(icao: str, site: Site | None, place: Position | Site) -> dict[str, Any]:
    """STAC properties of the radar; a site that is in no table has no name."""
    named = {"nexrad:site-name": site.name} if site else {}
    return {
        "platform": "wsr-88d",
        "instruments": ["wsr-88d"],
        "processing:level": "L2",
        "nexrad:site": icao,
        **named,
        "nexrad:latitude": round(place.latitude, 6),
        "nexrad:longitude": round(place.longitude, 6),
        "nexrad:height-m": place.height_m,
        "nexrad:position-source": "site table" if isinstance(place, Site) else "volume data block",
    }
