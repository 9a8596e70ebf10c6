"""The radar of a NEXRAD volume: what it reaches, and the properties that volumes and their chunks have alike.

Does not belong here: where it stands (`nexrad_position.py`), and what else their records say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfm_dagster.readers.geometry import disc
from kfm_dagster.readers.nexrad_position import Position, position_source
from kfm_dagster.readers.nexrad_sites import Site

RADAR_PROPERTIES = frozenset({
    "platform", "instruments", "processing:level", "nexrad:site", "nexrad:site-name", "nexrad:latitude",
    "nexrad:longitude", "nexrad:height-m", "nexrad:position-source",
})  # fmt: skip
"""What `radar_properties` gives."""

RANGE_M = 460_000
"""Reach of the reflectivity: 460 cells of 1 km (ICD 2620002, table III), 1840 gates of 250 m (table XVII-B)."""


def coverage(latitude: float, longitude: float) -> Mapping[str, Any]:
    """Disc of RANGE_M around the radar as GeoJSON."""
    return disc(latitude, longitude, RANGE_M)


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
        "nexrad:position-source": position_source(place, "volume data block"),
    }
