"""The radar of a NEXRAD object: its position, kind, reach, and the common properties.

Belongs here: the tables of WSR-88D and TDWR sites, the choice between a radar's own position and its site's, and the
differences of the two kinds. Volumes of message type 1 (1991 to 2008) and status messages have no position. Does not
belong here: the other content of records. `nexrad_sites.csv` and `nexrad_tdwr_sites.csv` state their source (NOAA
NCEI's station list, public domain) and exceptions in their first lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyproj import Geod

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError, table
from kfm_dagster.readers.geometry import disc
from kfm_dagster.readers.nexrad_messages import MOMENTS, Position, Radial, VolumeHeader

POSITION_TOLERANCE_M = 50_000
"""Maximum metres between the position that a radar states and the position of its site. Real objects differ by 100 m.
But the table has one position per site, and RKSG moved by 36 km, the farthest known move. WSR-88Ds are at least 59 km
apart, except two test radars in Norman. A TDWR may be nearer to a WSR-88D, so only the name in header and radials
distinguishes them."""
_WGS84 = Geod(ellps="WGS84")


RANGE_M = 460_000
"""Reach of the reflectivity: 460 cells of 1 km (ICD 2620002, table III), 1840 gates of 250 m (table XVII-B)."""

_CODES = ("below-threshold", "range-folded")
"""Meaning of the stored values 0 and 1 of a moment."""
_BINARY_DEGREES = 0.006
"""Tolerance in degrees: one step of a binary angle is 360 / 65536 degrees (ICD 2620002, table XI)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RadarKind:
    """Common values of the radars of a kind. `patterns` are numbers of coverage patterns."""

    name: str
    range_m: int
    highest_cut: float
    """Highest elevation of the antenna, in degrees."""
    patterns: frozenset[int]


WSR_88D = RadarKind(
    name="wsr-88d",
    range_m=RANGE_M,
    highest_cut=45,
    patterns=frozenset({11, 12, 21, 31, 32, 35, 112, 121, 211, 212, 215, 221}),
)
"""Antenna: ICD 2620001, table V. Patterns: Federal Meteorological Handbook 11, part C, all editions."""
TDWR = RadarKind(name="tdwr", range_m=416_000, highest_cut=60, patterns=frozenset({80, 90}))
"""Long range scan of 225 nautical miles, patterns of hazardous weather and monitoring (ICD 2620063)."""
TDWR_VERSION = "08"
"""Format version of a TDWR's volumes, in their headers and names (AR2V0008, _V08)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site(Position):
    """The position of a radar site, with its names, and the kind of its radar."""

    icao: str
    name: str
    kind: RadarKind


@cache
def sites() -> Mapping[str, Site]:
    """Return all sites by ICAO identifier, in the order of the tables: WSR-88D, then TDWR."""
    return {
        row["icao"]: Site(
            icao=row["icao"],
            name=f"{row['name']}, {row['region']}",
            kind=kind,
            latitude=float(row["latitude"]),
            longitude=float(row["longitude"]),
            height_m=float(row["height_m"]),
        )
        for name, kind in (("nexrad_sites.csv", WSR_88D), ("nexrad_tdwr_sites.csv", TDWR))
        for row in table(name)
    }


def site_named(identifier: str) -> Site | None:
    """Return a site by the last three letters of its ICAO identifier, as in AWIPS identifiers."""
    return next((site for site in sites().values() if site.icao[1:] == identifier), None)


def radar_position(stated: Position | None, site: Site | None, name: str) -> Position:
    """Return the radar's own position, or the site's when the object states none (or zeros).

    Raises ReadError: MISSING_GEOLOCATION if there is neither, INVALID_GEOMETRY for a position that is impossible, or
    farther than POSITION_TOLERANCE_M from the site.
    """
    if stated is None or (stated.latitude == 0 and stated.longitude == 0):
        if site is None:
            raise ReadError(
                MetadataIssue.MISSING_GEOLOCATION, f"the object states no position and {name} is not in the site table"
            )
        return site
    # A NaN fails this test. No radar is beyond 65 degrees of latitude; beyond 85 the disc would contain a pole.
    if not (-85 <= stated.latitude <= 85 and -180 <= stated.longitude <= 180):
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY, f"impossible position of the radar: {stated.latitude}, {stated.longitude}"
        )
    if site is not None:
        _refuse_distant(stated, site)
    return stated


def position_source(position: Position, stated_by: str) -> str:
    """Return the source of a position: `stated_by`, or the site table."""
    return "site table" if isinstance(position, Site) else stated_by


def _refuse_distant(stated: Position, site: Site) -> None:
    *_, distance = _WGS84.inv(stated.longitude, stated.latitude, site.longitude, site.latitude)
    if distance > POSITION_TOLERANCE_M:
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY,
            f"the radar states the position {stated.latitude:.4f}, {stated.longitude:.4f}, {distance / 1000:.0f} km "
            f"from the position of {site.icao}; expected {POSITION_TOLERANCE_M // 1000} km at most",
        )


def kind_of(icao: str, version: str = "") -> RadarKind:
    """Return TDWR for a volume of version TDWR_VERSION or a site of a TDWR, else WSR-88D."""
    site = sites().get(icao)
    return TDWR if version == TDWR_VERSION else site.kind if site else WSR_88D


def check_platform(parts: Mapping[str, VolumeHeader | Radial | None], icao: str) -> None:
    """Compare each part's radar with the radar in the key. Raises ReadError(PLATFORM_MISMATCH).

    The radar's name is blank in headers before 2003, and absent in radials of type 1.
    """
    for name, part in parts.items():
        if part is not None and part.icao not in {"", icao}:
            raise ReadError(MetadataIssue.PLATFORM_MISMATCH, f"the {name} names {part.icao!r}, the key names {icao!r}")


def check_version(header: VolumeHeader, groups: Mapping[str, str]) -> None:
    """Compare the header's format version with the version in the key, if any. Raises ReadError."""
    version = groups.get("version", header.version)
    if header.version != version:
        raise ReadError(
            MetadataIssue.KEY_MISMATCH, f"the volume header has {header.magic!r}; the key is of version {version!r}"
        )


def pattern_findings(kind: RadarKind, number: int | None) -> tuple[tuple[MetadataIssue, str], ...]:
    """Return a finding if radars of the kind do not have the pattern number; no finding for 0."""
    if not number or number in kind.patterns:
        return ()
    expected = ", ".join(map(str, sorted(kind.patterns)))
    text = f"coverage pattern {number} is not in the table of the {kind.name}; expected one of {expected}"
    return ((MetadataIssue.OUT_OF_TABLE, text),)


def check_cuts(kind: RadarKind, angles: list[float]) -> None:
    """Raise ReadError for a target elevation, in degrees, above the antenna's highest."""
    if angles and max(angles) > kind.highest_cut + _BINARY_DEGREES:
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY,
            f"the pattern has a cut at {max(angles)} degrees; expected at most {kind.highest_cut} for a {kind.name}",
        )


def coverage(kind: RadarKind, place: Position, lowest: Radial | None) -> Mapping[str, Any]:
    """Return a GeoJSON disc of the lowest cut's reach, else the kind's range; at most RANGE_M."""
    reach_m = lowest.reach_m if lowest is not None and lowest.cut == 1 else None
    return disc(place.latitude, place.longitude, min(reach_m or kind.range_m, RANGE_M))


def moment_bands(moments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the bands of moments, with their two codes (ICD 2620002, table XVII-B)."""
    codes = [{"value": value, "name": name, "nodata": True} for value, name in enumerate(_CODES)]
    return [
        {
            "name": moment,
            "description": MOMENTS[moment][0],
            "unit": MOMENTS[moment][1],
            # CFP's codes mean something else: the applied clutter filter.
            **({} if moment == "CFP" else {"classification:classes": codes}),
        }
        for moment in moments
    ]


def radar_properties(kind: RadarKind, icao: str, site: Site | None, place: Position) -> dict[str, Any]:
    """Return the radar's STAC properties; an unknown site has no name."""
    site_name = {"nexrad:site-name": site.name} if site else {}
    return {
        "platform": kind.name,
        "instruments": [kind.name],
        "processing:level": "L2",
        "nexrad:site": icao,
        **site_name,
        "nexrad:latitude": round(place.latitude, 6),
        "nexrad:longitude": round(place.longitude, 6),
        "nexrad:height-m": place.height_m,
        "nexrad:position-source": position_source(place, "volume data block"),
    }
