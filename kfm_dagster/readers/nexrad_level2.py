"""The reader of NEXRAD Level II archive volumes: agreement with the key, position, coverage, STAC properties.

Belongs here: what a volume's head means to the catalog. Does not belong here: how it is laid out (`nexrad_volume.py`)
and where radars stood before volumes said so (`nexrad_sites.py`).

Cost: one to three range requests of 128 KiB. A bzip2 block must be decoded whole before it gives its first byte, so a
real volume takes 4 to 13 ms, nearly all of it outside the GIL; gzipped ones take less than 1 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import antimeridian
import numpy as np
from pyproj import Geod
from shapely.geometry import Polygon, mapping

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.nexrad_messages import Position
from kfm_dagster.readers.nexrad_sites import Site, sites
from kfm_dagster.readers.nexrad_volume import Volume, read_volume

TIME_TOLERANCE = timedelta(seconds=60)
"""Between the key's time and the nearer of volume header and first radial.

Less than 1 s in every real volume, whose header and first radial lie up to 11.5 s apart; the next volume of a site
follows after 3 minutes at the earliest, so that one minute cannot confuse two.
"""
RANGE_M = 460_000
"""Reach of the reflectivity: 460 cells of 1 km (ICD 2620002, table III), 1840 gates of 250 m (table XVII-B)."""
CIRCLE_POINTS = 36
_WGS84 = Geod(ellps="WGS84")


def read_nexrad_level2(request: ReadRequest) -> HeaderMetadata:
    """Read the head of a volume; `request.groups` must have `site`, `date` (YYYYMMDD) and `time` (HHMMSS).

    `start` and `end` are those of the volume header and the first radial, whichever comes first: the time of the last
    radial stands at the end of the object, which is not read. `datetime` is the start: the key's whole second may lie
    before it.
    Raises ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT, INVALID_TIME_RANGE and
    INCOMPLETE_PRODUCT_METADATA for the bytes, TIME_MISMATCH and PLATFORM_MISMATCH against the key,
    MISSING_GEOLOCATION and INVALID_GEOMETRY for the position.
    """
    nominal = datetime.strptime(request.groups["date"] + request.groups["time"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    icao = request.groups["site"]
    volume = read_volume(request.source)
    _check_platform(volume, icao)
    _check_time(volume, nominal)
    site = sites().get(icao)
    position = _position(volume, site, icao)
    times = (volume.header.time, volume.radial.time)
    return HeaderMetadata(
        start=min(times),
        end=max(times),
        datetime=min(times),
        geometry=_coverage(position.latitude, position.longitude),
        properties=_properties(volume, icao, site, position),
        native=_native(volume),
    )


def _check_platform(volume: Volume, icao: str) -> None:
    """Volumes before 2003 leave the header's ICAO blank, radials of type 1 have none: what is there must agree."""
    for where, stated in (("volume header", volume.header.icao), ("first radial", volume.radial.icao)):
        if stated not in {"", icao}:
            raise ReadError(MetadataIssue.PLATFORM_MISMATCH, f"the {where} says {stated!r}; the key says {icao!r}")


def _check_time(volume: Volume, nominal: datetime) -> None:
    header, radial = volume.header.time, volume.radial.time
    if min(abs(header - nominal), abs(radial - nominal)) > TIME_TOLERANCE:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the key says {nominal:%Y-%m-%dT%H:%M:%SZ}; the volume header says {header:%Y-%m-%dT%H:%M:%SZ}, "
            f"the first radial {radial:%Y-%m-%dT%H:%M:%SZ}; expected one within {TIME_TOLERANCE.seconds} s",
        )


def _position(volume: Volume, site: Site | None, icao: str) -> Position | Site:
    """Take the radar's own position, or the site's where the volume states none (type 1, or a block of zeros)."""
    stated = volume.radial.position
    if stated is None or (stated.latitude == 0 and stated.longitude == 0):
        if site is None:
            raise ReadError(
                MetadataIssue.MISSING_GEOLOCATION, f"the volume states no position and {icao} is not in the site table"
            )
        return site
    # Written so that NaN fails. No WSR-88D stands beyond 65 degrees; past 85 the disc would hold a pole.
    if not (-85 <= stated.latitude <= 85 and -180 <= stated.longitude <= 180):
        raise ReadError(
            MetadataIssue.INVALID_GEOMETRY, f"the radar is said to be at {stated.latitude}, {stated.longitude}"
        )
    return stated


@lru_cache(maxsize=1024)
def _coverage(latitude: float, longitude: float) -> Mapping[str, Any]:
    """Disc of RANGE_M around the radar as GeoJSON, counterclockwise, split at the antimeridian.

    Cached because a network has 160 positions and a day 40,000 volumes.
    """
    azimuths = np.linspace(360, 0, CIRCLE_POINTS, endpoint=False)
    around = np.full(CIRCLE_POINTS, 1.0)
    longitudes, latitudes, _ = _WGS84.fwd(around * longitude, around * latitude, azimuths, around * RANGE_M)
    disc: Mapping[str, Any] = mapping(antimeridian.fix_polygon(Polygon(zip(longitudes, latitudes, strict=True))))
    return disc


def _properties(volume: Volume, icao: str, site: Site | None, position: Position | Site) -> dict[str, Any]:
    radial, status = volume.radial, volume.status
    optional = {
        "nexrad:site-name": site.name if site else None,
        # An all-zero message 5 is real (2005): the radial's own pattern number comes first.
        "nexrad:vcp": radial.vcp or (volume.pattern.number if volume.pattern else 0) or None,
        "nexrad:elevations": _elevations(volume) or None,
        "nexrad:frequency-mhz": volume.frequency_mhz,
        "nexrad:volume-number": int(volume.header.extension) if volume.header.extension.isdigit() else None,
        "nexrad:rda-status": status.rda if status else None,
        "nexrad:operability-status": status.operability if status else None,
        "processing:software": {"WSR-88D RDA": status.build} if status and status.build else None,
    }
    return {
        "platform": "wsr-88d",
        "instruments": ["wsr-88d"],
        "processing:level": "L2",
        "nexrad:site": icao,
        "nexrad:message-type": radial.message_type,
        "nexrad:archive-version": volume.header.magic.removesuffix("."),
        "nexrad:compression": volume.compression,
        "nexrad:moments": list(radial.moments),
        "nexrad:latitude": round(position.latitude, 6),
        "nexrad:longitude": round(position.longitude, 6),
        "nexrad:height-m": position.height_m,
        "nexrad:position-source": "site table" if isinstance(position, Site) else "volume data block",
    } | {name: value for name, value in optional.items() if value is not None}


def _elevations(volume: Volume) -> list[float]:
    """Distinct target elevations of the pattern in degrees, ascending; AVSET may end the volume before the highest."""
    angles = volume.pattern.elevations if volume.pattern else ()
    # A binary angle: what points below the horizon counts from the full turn.
    return sorted({round(angle - 360 if angle > 180 else angle, 3) for angle in angles})


def _native(volume: Volume) -> dict[str, Any]:
    position, pattern = volume.radial.position, volume.pattern
    return {
        "uncompressed_magic": volume.header.magic,
        "extension": volume.header.extension,
        "icao_header": volume.header.icao,
        "volume_header_time": volume.header.time,
        "first_ray_time": volume.radial.time,
        "msg_type": volume.radial.message_type,
        "moments": list(volume.radial.moments),
        "lat": position.latitude if position else None,
        "lon": position.longitude if position else None,
        "alt_m": position.height_m if position else None,
        "vcp": volume.radial.vcp,
        "vcp_message_5": pattern.number if pattern else None,
        "target_elev_deg": list(pattern.elevations) if pattern else [],
    }
