"""The reader of NEXRAD Level II archive volumes: agreement with the key, STAC properties.

Belongs here: what a volume's head and end mean to the catalog. Does not belong here: how it is laid out
(`nexrad_volume.py`, `nexrad_end.py`) and where the radar stands (`nexrad_radar.py`).

Cost: one to three range requests of 128 KiB for the head and one of up to 256 KiB for the end; a gzipped volume is read
whole, in requests of 1 MiB. bzip2 blocks are decoded outside the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.nexrad_radar import (
    RADAR_PROPERTIES,
    RadarKind,
    check_cuts,
    check_platform,
    check_version,
    coverage,
    kind_of,
    moment_bands,
    pattern_findings,
    radar_properties,
)
from kfm_dagster.readers.nexrad_records import READ_BYTES
from kfm_dagster.readers.nexrad_sites import radar_position, radar_site
from kfm_dagster.readers.nexrad_volume import Volume, read_volume

PROPERTIES = RADAR_PROPERTIES | {
    "processing:software", "nexrad:message-type", "nexrad:archive-version", "nexrad:compression", "nexrad:moments",
    "bands", "nexrad:vcp", "nexrad:elevations", "nexrad:frequency-mhz", "nexrad:volume-number", "nexrad:rda-status",
    "nexrad:operability-status", "nexrad:gate-spacing-m",
}  # fmt: skip
"""What a volume can have."""
FIRST_BYTES = READ_BYTES
"""Of a volume, by its first request."""

TIME_TOLERANCE = timedelta(seconds=60)
"""Between the key's time, the volume header's and the first radial's.

The key follows one of the others, and those two lie up to 11.5 s apart, in real volumes; the next volume of a site
follows after 3 minutes at the earliest, so that one minute cannot confuse two.
"""
LONGEST_VOLUME = timedelta(minutes=30)
"""From the first radial to the last: patterns take 4 to 10 minutes (Federal Meteorological Handbook 11, part C)."""


def read_nexrad_level2(request: ReadRequest) -> HeaderMetadata:
    """Read the head of a volume; `request.groups` must have `site`, `date` (YYYYMMDD) and `time` (HHMMSS).

    `start` is that of the volume header or the first radial, whichever comes first; `end` is the last radial's, and the
    start again where that is not known (`nexrad:end-known`). `datetime` is the start: the key's whole second may lie
    before it. A volume that may be incomplete has a finding COMPLETENESS_UNCHECKED.
    Raises ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT, INVALID_TIME_RANGE and
    INCOMPLETE_PRODUCT_METADATA for the bytes, TIME_MISMATCH, PLATFORM_MISMATCH and KEY_MISMATCH against the key,
    MISSING_GEOLOCATION and INVALID_GEOMETRY for the position and the cuts.
    """
    nominal = datetime.strptime(request.groups["date"] + request.groups["time"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    icao = request.groups["site"]
    volume = read_volume(request.source)
    radials = {"first radial": volume.radial, "last radial": volume.end.radial}
    check_platform({"volume header": volume.header, **radials}, icao)
    _check_time(volume, nominal)
    check_version(volume.header, request.groups)
    site, kind = radar_site(icao), kind_of(icao, volume.header.version)
    position = radar_position(volume.radial.position, site, icao)
    start, last, unchecked = min(volume.header.time, volume.radial.time), volume.end.radial, volume.end.unchecked
    properties = _properties(volume, kind)
    return HeaderMetadata(
        start=start,
        end=last.time if last else start,
        datetime=start,
        geometry=coverage(kind, position, volume.radial),
        properties=radar_properties(kind, icao, site, position) | properties,
        native=_native(volume),
        findings=(
            *(((MetadataIssue.COMPLETENESS_UNCHECKED, unchecked),) if unchecked else ()),
            *pattern_findings(kind, properties.get("nexrad:vcp")),
        ),
    )


def _check_time(volume: Volume, nominal: datetime) -> None:
    header, first, last = volume.header.time, volume.radial.time, volume.end.radial
    if max(header, first, nominal) - min(header, first, nominal) > TIME_TOLERANCE:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the key says {nominal:%Y-%m-%dT%H:%M:%SZ}; the volume header says {header:%Y-%m-%dT%H:%M:%SZ}, "
            f"the first radial {first:%Y-%m-%dT%H:%M:%SZ}; expected all within {TIME_TOLERANCE.seconds} s",
        )
    if last and not first <= last.time <= first + LONGEST_VOLUME:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the first radial says {first:%Y-%m-%dT%H:%M:%SZ}, the last one {last.time:%Y-%m-%dT%H:%M:%SZ}; expected "
            f"up to {LONGEST_VOLUME.seconds} s after it",
        )


def _properties(volume: Volume, kind: RadarKind) -> dict[str, Any]:
    radial, status, end = volume.radial, volume.status, volume.end
    planned = volume.pattern.elevations if volume.pattern else ()
    angles = _distinct(planned[: end.radial.cut] if end.radial else planned)
    check_cuts(kind, angles)
    optional = {
        # An all-zero message 5 is real (2005): the radial's own pattern number comes first.
        "nexrad:vcp": radial.vcp or (volume.pattern.number if volume.pattern else 0) or None,
        # What is known of the whole has the short names; what is not says whose it is.
        "bands": moment_bands(end.moments or radial.moments) or None,
        "nexrad:moments": list(end.moments) if end.moments else None,
        "nexrad:first-radial-moments": None if end.moments else list(radial.moments),
        "nexrad:elevations": (angles if end.radial else None) or None,
        "nexrad:pattern-elevations": (None if end.radial else angles) or None,
        "nexrad:end-known": None if end.radial else False,
        "nexrad:frequency-mhz": volume.frequency_mhz,
        "nexrad:gate-spacing-m": radial.gate_spacing_m,
        "nexrad:volume-number": int(volume.header.extension) if volume.header.extension.isdigit() else None,
        "nexrad:rda-status": status.rda if status else None,
        "nexrad:operability-status": status.operability if status else None,
        "processing:software": {f"{kind.name.upper()} RDA": status.build} if status and status.build else None,
    }
    return {
        "nexrad:message-type": radial.message_type,
        "nexrad:archive-version": volume.header.magic.removesuffix("."),
        "nexrad:compression": volume.compression,
    } | {name: value for name, value in optional.items() if value is not None}


def _distinct(angles: Sequence[float]) -> list[float]:
    """Distinct target elevations in degrees, ascending; the pattern has one for each cut, in the order of the cuts."""
    # A binary angle: what points below the horizon counts from the full turn.
    return sorted({round(angle - 360 if angle > 180 else angle, 3) for angle in angles})


def _native(volume: Volume) -> dict[str, Any]:
    position, pattern, last = volume.radial.position, volume.pattern, volume.end.radial
    return {
        "uncompressed_magic": volume.header.magic,
        "extension": volume.header.extension,
        "icao_header": volume.header.icao,
        "volume_header_time": volume.header.time,
        "first_ray_time": volume.radial.time,
        "last_ray_time": last.time if last else None,
        "last_ray_status": last.status if last else None,
        "nsweeps": last.cut if last else None,
        "msg_type": volume.radial.message_type,
        "first_ray_moments": list(volume.radial.moments),
        "moments": list(volume.end.moments or ()),
        "lat": position.latitude if position else None,
        "lon": position.longitude if position else None,
        "alt_m": position.height_m if position else None,
        "vcp": volume.radial.vcp,
        "vcp_message_5": pattern.number if pattern else None,
        "target_elev_deg": list(pattern.elevations) if pattern else [],
    }
