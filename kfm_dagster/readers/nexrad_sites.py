"""WSR-88D and TDWR sites: where a radar stood, for objects that do not carry their own position.

Belongs here: the tables and their look-up. Does not belong here: positions that an object states itself (those win,
`nexrad_position.py`). Volumes of message type 1 (1991 to 2008) and status messages carry no position.
`nexrad_sites.csv` and `nexrad_tdwr_sites.csv` state their source (NOAA NCEI's station list, public domain) and
exceptions in their first lines.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


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
