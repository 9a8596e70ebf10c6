"""Position of a radar: from its object, checked against the table of sites, or from the table alone.

Belongs here: the tables of WSR-88D and TDWR sites, and the choice between the two, for every NEXRAD reader. Does not
belong here: what the radar covers from there (`geometry.py`). Volumes of message type 1 (1991 to 2008) and status
messages carry no position.
`nexrad_sites.csv` and `nexrad_tdwr_sites.csv` state their source (NOAA NCEI's station list, public domain) and
exceptions in their first lines.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pyproj import Geod

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

POSITION_TOLERANCE_M = 50_000
"""Between a radar's own position and its site's: 100 m in real objects, but the table has one place a site, and the
farthest known move is RKSG's, by 36 km. The nearest other WSR-88D is 59 km off, but for two tested in Norman; of a TDWR
that is nearer only the name in header and radials tells."""
_WGS84 = Geod(ellps="WGS84")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One radar site: WGS 84 degrees, and metres of the feedhorn above mean sea level."""

    icao: str
    name: str
    latitude: float
    longitude: float
    height_m: float


@cache
def sites() -> Mapping[str, Site]:
    """All sites of the WSR-88D network by ICAO identifier, in the order of the table."""
    return _table("nexrad_sites.csv")


@cache
def tdwr_sites() -> Mapping[str, Site]:
    """All sites of Terminal Doppler Weather Radars by ICAO identifier, in the order of the table."""
    return _table("nexrad_tdwr_sites.csv")


def radar_site(icao: str) -> Site | None:
    """Return the site of either network by its ICAO identifier."""
    return sites().get(icao) or tdwr_sites().get(icao)


def site_named(identifier: str) -> Site | None:
    """Site of either network by its three-letter identifier: ICAO's without the first, as in AWIPS identifiers."""
    return _by_identifier().get(identifier)


@cache
def _by_identifier() -> Mapping[str, Site]:
    return {icao[1:]: site for icao, site in (*sites().items(), *tdwr_sites().items())}


def _table(name: str) -> Mapping[str, Site]:
    text = files("kfm_dagster.readers").joinpath(name).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        row["icao"]: Site(
            icao=row["icao"],
            name=f"{row['name']}, {row['region']}",
            latitude=float(row["latitude"]),
            longitude=float(row["longitude"]),
            height_m=float(row["height_m"]),
        )
        for row in rows
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """WGS 84 degrees as the radar states them, and metres of the feedhorn above mean sea level."""

    latitude: float
    longitude: float
    height_m: float


def radar_position(stated: Position | None, site: Site | None, name: str) -> Position | Site:
    """Take the radar's own position, or the site's where the object states none (or zeros).

    Raises ReadError: MISSING_GEOLOCATION where there is neither, INVALID_GEOMETRY for a position that cannot be, or is
    farther than POSITION_TOLERANCE_M from the site's.
    """
    if stated is None or (stated.latitude == 0 and stated.longitude == 0):
        if site is None:
            raise ReadError(
                MetadataIssue.MISSING_GEOLOCATION, f"the object states no position and {name} is not in the site table"
            )
        return site
    # Written so that NaN fails. No radar stands beyond 65 degrees; past 85 the disc would hold a pole.
    if not (-85 <= stated.latitude <= 85 and -180 <= stated.longitude <= 180):
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY, f"the radar is said to be at {stated.latitude}, {stated.longitude}"
        )
    if site is not None:
        _refuse_distant(stated, site)
    return stated


def position_source(position: Position | Site, stated_by: str) -> str:
    """Say where a position is from: `stated_by`, or the site table."""
    return "site table" if isinstance(position, Site) else stated_by


def _refuse_distant(stated: Position, site: Site) -> None:
    *_, distance = _WGS84.inv(stated.longitude, stated.latitude, site.longitude, site.latitude)
    if distance > POSITION_TOLERANCE_M:
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY,
            f"the radar is said to be at {stated.latitude:.4f}, {stated.longitude:.4f}, {distance / 1000:.0f} km from "
            f"where {site.icao} is; expected {POSITION_TOLERANCE_M // 1000} km at most",
        )
