"""WSR-88D sites: where a radar stood, for volumes that do not carry their own position.

Belongs here: the table and its look-up. Does not belong here: positions that a volume states itself (those win).
Volumes of message type 1 (1991 to 2008) carry no position. `nexrad_sites.csv` states its source (NOAA NCEI's station
list, public domain) and its exceptions in its first lines.
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
    """All sites by ICAO identifier, in the order of the table."""
    text = files("kfm_dagster.readers").joinpath("nexrad_sites.csv").read_text(encoding="utf-8")
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
