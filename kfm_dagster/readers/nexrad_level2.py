"""Reader of NEXRAD Level II volumes: their records, agreement with the key, STAC properties.

Belongs here: a volume from its header to its first radial (ICD 2620010, Archive II/User: volume header, LDM records,
messages), a gzip wrapper, the limits against hostile bytes, and the Item's fields from head and end of the volume. Does
not belong here: a record's fields (`nexrad_messages.py`), the end of a volume (`nexrad_end.py`), the radar's position
(`nexrad_radar.py`).

Cost: one to three range requests of 128 KiB for the head and a request of up to 256 KiB for the end; a gzipped volume
is read whole, in requests of 1 MiB. bzip2 blocks are decoded outside the GIL.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import nexrad_radar
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError, ReadRequest, unchecked
from kfm_dagster.readers.nexrad_end import VolumeEnd, end_of_frames, end_of_gzip, end_of_records
from kfm_dagster.readers.nexrad_messages import (
    FRAME_BYTES,
    HEADER_BYTES,
    READ_BYTES,
    Pattern,
    Radial,
    VolumeHeader,
    decode_frequency,
    decode_header,
    decode_pattern,
    decode_radial,
    decode_status,
    messages,
    record_size,
)
from kfm_dagster.readers.ranges import BlockCache
from kfm_dagster.readers.unpacked import Bytes, Gunzip, Unpacked, pieces

MAX_READS = 16
METADATA_BYTES = 134 * FRAME_BYTES
"""Unpacked bytes of the first LDM record: messages 15, 13, 18, 3, 5, 2 (ICD 2620010, 7.3.5); fewer before 2008."""
RADIAL_BYTES = 16 * 1024
"""Bytes to unpack at a time: a type 31 radial has 7 to 10 KB in real volumes, and unpacking more costs time."""
MAX_HEAD_BYTES = 2 * METADATA_BYTES
MAX_RECORDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """Head and end of a volume. `compression` is the stored object's."""

    header: VolumeHeader
    compression: str
    radial: Radial
    """The first radial."""
    end: VolumeEnd
    pattern: Pattern | None
    status: tuple[str | None, str | None, str | None]
    """State, operability and build of the radar's software."""
    frequency_mhz: int | None
    """Frequency of the transmitter, from the adaptation data (message 18)."""


def read_volume(source: ByteSource) -> Volume:
    """Read head and end. Raises the ReadErrors for the bytes that `read_nexrad_level2` lists."""
    stored = BlockCache(source, block_bytes=READ_BYTES, max_blocks=MAX_READS)
    gzipped = stored.read(0, 2) == b"\x1f\x8b"
    plain: Bytes = stored
    if gzipped:
        plain = Unpacked(_pieces(stored, 0, source.size), Gunzip(), step=READ_BYTES, limit=MAX_HEAD_BYTES)
    opening = plain.read(0, HEADER_BYTES + 7)
    header = decode_header(opening[:HEADER_BYTES])
    bzipped = opening[HEADER_BYTES + 4 :] == b"BZh"
    size = None if gzipped else source.size
    radial, bodies = _head(_record_messages(plain, size) if bzipped else messages(plain, HEADER_BYTES))
    if gzipped:
        end = end_of_gzip(source, stored, radial, bzipped=bzipped)
    else:
        end = (end_of_records if bzipped else end_of_frames)(stored, radial)
    return Volume(
        header=header,
        compression="gzip" if gzipped else "bzip2" if bzipped else "none",
        radial=radial,
        end=end,
        pattern=decode_pattern(bodies[5]) if 5 in bodies else None,
        status=decode_status(bodies[2]) if 2 in bodies else (None, None, None),
        frequency_mhz=decode_frequency(bodies[18]) if 18 in bodies else None,
    )


def _head(volume_messages: Iterator[tuple[int, bytes]]) -> tuple[Radial, dict[int, bytes]]:
    """Return the first radial, and the bodies of the messages before it, keyed by type."""
    bodies: dict[int, bytes] = {}
    for kind, body in volume_messages:
        if kind in {1, 31}:
            return decode_radial(kind, body), bodies
        bodies[kind] = body
    raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "the volume ends before its first radial")


def _pieces(source: Bytes, start: int, end: int) -> Iterator[bytes]:
    """Yield [start, end) in pieces that do not cross cache blocks, to request only used blocks."""
    return pieces(source, start, end, step=READ_BYTES, first=READ_BYTES - start % READ_BYTES)


def _record_messages(volume: Bytes, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of the first LDM records (ICD 2620010, 7.3.4).

    `end` is the volume's size in bytes, if known. If a record ends beyond this size, the object was cut, even when the
    first radial is complete.
    """
    offset = HEADER_BYTES
    for index in range(MAX_RECORDS):
        word = volume.read(offset, 4)
        if len(word) < 4:
            return
        size, last = record_size(word)
        start, offset = offset + 4, offset + 4 + size
        if end is not None and offset > end:
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT, f"LDM record {index} ends {offset - end} bytes past the object"
            )
        step = RADIAL_BYTES if index else METADATA_BYTES
        record = _pieces(volume, start, offset)
        yield from messages(Unpacked(record, bz2.BZ2Decompressor(), step=step, limit=MAX_HEAD_BYTES), 0)
        if last:
            raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, "the volume has no radial")
    raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"no radial in the first {MAX_RECORDS} LDM records")


FIRST_BYTES = READ_BYTES
"""Length of the first request for a volume."""

TIME_TOLERANCE = timedelta(seconds=60)
"""Maximum difference between the times of the key, the volume header and the first radial.

In real volumes, the key has the time of the header or that of the first radial; these two are up to 11.5 s apart. The
next volume of a site follows after 3 minutes at the earliest, so a tolerance of a minute cannot confuse two volumes.
"""
LONGEST_VOLUME = timedelta(minutes=30)
"""Maximum time from first to last radial; patterns take 4 to 10 min (Federal Meteorological Handbook 11, part C)."""


def read_nexrad_level2(request: ReadRequest) -> HeaderMetadata:
    """Read the head and end of a volume. Conforms to `Reader`.

    `request.groups` must have `site`, `date` (YYYYMMDD), `time` (HHMMSS). `start` is the time of volume header or first
    radial, whichever is earlier; `end` is the last radial's time, or the start if the last radial was not read
    (`nexrad:end-known` is False). `datetime` is the start, not the key's time, which is cut to seconds. A volume that
    may be incomplete has a finding COMPLETENESS_UNCHECKED. Raises ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT,
    RESOURCE_LIMIT, INVALID_TIME_RANGE and INCOMPLETE_PRODUCT_METADATA for the bytes, TIME_MISMATCH, PLATFORM_MISMATCH
    and KEY_MISMATCH against the key, MISSING_GEOLOCATION and INVALID_GEOMETRY for the position and the cuts.
    """
    nominal = datetime.strptime(request.groups["date"] + request.groups["time"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    icao = request.groups["site"]
    volume = read_volume(request.source)
    radials = {"first radial": volume.radial, "last radial": volume.end.radial}
    nexrad_radar.check_platform({"volume header": volume.header, **radials}, icao)
    _check_time(volume, nominal)
    nexrad_radar.check_version(volume.header, request.groups)
    site, kind = nexrad_radar.sites().get(icao), nexrad_radar.kind_of(icao, volume.header.version)
    position = nexrad_radar.radar_position(volume.radial.position, site, icao)
    start, last = min(volume.header.time, volume.radial.time), volume.end.radial
    properties = _properties(volume, kind)
    return HeaderMetadata(
        start=start,
        end=last.time if last else start,
        datetime=start,
        geometry=nexrad_radar.coverage(kind, position, volume.radial),
        properties=nexrad_radar.radar_properties(kind, icao, site, position) | properties,
        native=asdict(volume),
        findings=(
            *unchecked(volume.end.unchecked),
            *nexrad_radar.pattern_findings(kind, properties.get("nexrad:vcp")),
        ),
    )


def _check_time(volume: Volume, nominal: datetime) -> None:
    header, first, last = volume.header.time, volume.radial.time, volume.end.radial
    if max(header, first, nominal) - min(header, first, nominal) > TIME_TOLERANCE:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the key has {nominal:%Y-%m-%dT%H:%M:%SZ}; the volume header has {header:%Y-%m-%dT%H:%M:%SZ}, "
            f"the first radial {first:%Y-%m-%dT%H:%M:%SZ}; expected all within {TIME_TOLERANCE.seconds} s",
        )
    if last and not first <= last.time <= first + LONGEST_VOLUME:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the first radial has {first:%Y-%m-%dT%H:%M:%SZ}, the last {last.time:%Y-%m-%dT%H:%M:%SZ}; expected "
            f"at most {LONGEST_VOLUME.seconds} s later",
        )


def _properties(volume: Volume, kind: nexrad_radar.RadarKind) -> dict[str, Any]:
    radial, end, (state, operability, build) = volume.radial, volume.end, volume.status
    planned = volume.pattern.elevations if volume.pattern else ()
    recorded = planned[: end.radial.cut] if end.radial else planned
    # Binary angles below the horizon count down from 360 degrees. Several cuts may have the same angle.
    angles = sorted({round(angle - 360 if angle > 180 else angle, 3) for angle in recorded})
    nexrad_radar.check_cuts(kind, angles)
    optional = {
        # Volumes of 2005 have a message 5 of zeros, so the radial's own pattern number has priority.
        "nexrad:vcp": radial.vcp or (volume.pattern.number if volume.pattern else 0) or None,
        # `nexrad:moments` is a value of the whole volume; the name of any other value includes the part of the volume.
        "bands": nexrad_radar.moment_bands(end.moments or radial.moments) or None,
        "nexrad:moments": list(end.moments) if end.moments else None,
        "nexrad:first-radial-moments": None if end.moments else list(radial.moments),
        "nexrad:elevations": (angles if end.radial else None) or None,
        "nexrad:pattern-elevations": (None if end.radial else angles) or None,
        "nexrad:end-known": None if end.radial else False,
        "nexrad:frequency-mhz": volume.frequency_mhz,
        "nexrad:gate-spacing-m": radial.gate_spacing_m,
        "nexrad:volume-number": int(volume.header.extension) if volume.header.extension.isdigit() else None,
        "nexrad:rda-status": state,
        "nexrad:operability-status": operability,
        "processing:software": {f"{kind.name.upper()} RDA": build} if build else None,
    }
    return {
        "nexrad:message-type": radial.message_type,
        "nexrad:archive-version": volume.header.magic.removesuffix("."),
        "nexrad:compression": volume.compression,
    } | {name: value for name, value in optional.items() if value is not None}
