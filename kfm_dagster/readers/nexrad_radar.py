"""The radar of a NEXRAD volume: its kind, what it reaches, and the properties that volumes and chunks have alike.

Belongs here: what differs between WSR-88D and Terminal Doppler Weather Radars. Does not belong here: where a radar
stands (`nexrad_sites.py`), and what else their records say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.geometry import disc
from kfm_dagster.readers.nexrad_messages import MOMENTS, Radial, VolumeHeader
from kfm_dagster.readers.nexrad_sites import Position, Site, position_source, tdwr_sites

RADAR_PROPERTIES = frozenset({
    "platform", "instruments", "processing:level", "nexrad:site", "nexrad:site-name", "nexrad:latitude",
    "nexrad:longitude", "nexrad:height-m", "nexrad:position-source",
})  # fmt: skip
"""What `radar_properties` gives."""

RANGE_M = 460_000
"""Reach of the reflectivity: 460 cells of 1 km (ICD 2620002, table III), 1840 gates of 250 m (table XVII-B)."""

_CODES = ("below-threshold", "range-folded")
"""Meaning of the stored values 0 and 1 of a moment."""
_BINARY_DEGREES = 0.006
"""One step of a binary angle is 360 / 65536 degrees (ICD 2620002, table XI)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RadarKind:
    """What the radars of one kind have in common. `patterns` are numbers of volume coverage patterns."""

    name: str
    range_m: int
    highest_cut: float
    """Degrees."""
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
"""Format version of a TDWR's volumes, as their headers and names say it (AR2V0008, _V08)."""


def kind_of(icao: str, version: str = "") -> RadarKind:
    """Return the kind of a radar by its site; of one in no table by the format version."""
    return TDWR if icao in tdwr_sites() or version == TDWR_VERSION else WSR_88D


def check_platform(parts: Mapping[str, VolumeHeader | Radial | None], icao: str) -> None:
    """Hold the radar that each part names against the key's. Raises ReadError(PLATFORM_MISMATCH).

    Headers before 2003 leave it blank, and radials of type 1 have none.
    """
    for name, part in parts.items():
        if part is not None and part.icao not in {"", icao}:
            raise ReadError(MetadataIssue.PLATFORM_MISMATCH, f"the {name} says {part.icao!r}; the key says {icao!r}")


def check_version(header: VolumeHeader, groups: Mapping[str, str]) -> None:
    """Hold the header's format version against the one that the key names or implies. Raises ReadError."""
    named = groups.get("version", header.version)
    if header.version != named:
        raise ReadError(
            MetadataIssue.KEY_MISMATCH, f"the volume header says {header.magic!r}; the key is of version {named!r}"
        )


def pattern_findings(kind: RadarKind, number: int | None) -> tuple[tuple[MetadataIssue, str], ...]:
    """Return a finding for the number of a coverage pattern that radars of the kind do not have; 0 is none."""
    if not number or number in kind.patterns:
        return ()
    expected = ", ".join(map(str, sorted(kind.patterns)))
    text = f"coverage pattern {number} is not in the table of the {kind.name}; expected one of {expected}"
    return ((MetadataIssue.OUT_OF_TABLE, text),)


def check_cuts(kind: RadarKind, angles: list[float]) -> None:
    """Raise ReadError for a target elevation in degrees that is above what the radar's antenna reaches."""
    if angles and max(angles) > kind.highest_cut + _BINARY_DEGREES:
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY,
            f"the pattern has a cut at {max(angles)} degrees; expected {kind.highest_cut} at most of a {kind.name}",
        )


def coverage(kind: RadarKind, place: Position | Site, lowest: Radial | None) -> Mapping[str, Any]:
    """Return the disc around the radar as GeoJSON: as far as its lowest cut's gates reach, else as its kind does."""
    own = lowest.reach_m if lowest is not None and lowest.cut == 1 else None
    return disc(place.latitude, place.longitude, min(own or kind.range_m, RANGE_M))


def moment_bands(moments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the bands of these moments, with the two codes that are no values (ICD 2620002, table XVII-B)."""
    codes = [{"value": value, "name": name, "nodata": True} for value, name in enumerate(_CODES)]
    return [
        {
            "name": moment,
            "description": MOMENTS[moment][0],
            "unit": MOMENTS[moment][1],
            # The clutter filter's codes say which filter was applied.
            **({} if moment == "CFP" else {"classification:classes": codes}),
        }
        for moment in moments
    ]


def radar_properties(kind: RadarKind, icao: str, site: Site | None, place: Position | Site) -> dict[str, Any]:
    """Return the radar's STAC properties; a site that is in no table has no name."""
    named = {"nexrad:site-name": site.name} if site else {}
    return {
        "platform": kind.name,
        "instruments": [kind.name],
        "processing:level": "L2",
        "nexrad:site": icao,
        **named,
        "nexrad:latitude": round(place.latitude, 6),
        "nexrad:longitude": round(place.longitude, 6),
        "nexrad:height-m": place.height_m,
        "nexrad:position-source": position_source(place, "volume data block"),
    }
