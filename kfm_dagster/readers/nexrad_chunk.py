"""Reader of NEXRAD Level II chunks: describes an unfinished volume by its newest chunk.

A chunk is one LDM record (ICD 2620010, 7.3.4): the first chunk (S) begins with the volume header and holds the
metadata, every other chunk (I, and E at the end) holds radials. Chunks are numbered from 1, so chunk n proves that n
chunks were written. Each radial states position and coverage pattern, so no other chunk has to be read. Concatenated in
order, the chunks are the archive's volume.

Belongs here: the state of a volume, derived from one chunk. Does not belong here: records (`nexrad_messages.py`), the
radar (`nexrad_radar.py`), and chunks that arrive out of order (`catalog/`).

Cost: the whole chunk, in one or two range requests of 128 KiB; real chunks have 2 to 120 KB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import nexrad_radar
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError, ReadRequest, unchecked
from kfm_dagster.readers.nexrad_level2 import LONGEST_VOLUME, TIME_TOLERANCE
from kfm_dagster.readers.nexrad_messages import (
    END_OF_VOLUME,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    READ_BYTES,
    Pattern,
    Radial,
    VolumeHeader,
    decode_header,
    decode_pattern,
    decode_radial,
    messages_of_record,
    record_size,
)
from kfm_dagster.readers.ranges import BlockCache

FIRST_BYTES = READ_BYTES
"""Length of the first request for a chunk."""
START, END = "S", "E"
"""Kinds of chunks: first and last of a volume; the chunks between are I."""
LATER_VOLUME = "a later volume of the radar"
"""Value of `nexrad:closed-by` for a volume without an end."""
_MAX_BLOCKS = -(-(HEADER_BYTES + 4 + MAX_RECORD_BYTES) // READ_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk: volume header and pattern in the first chunk, radials in every other."""

    header: VolumeHeader | None
    pattern: Pattern | None
    first: Radial | None
    last: Radial | None
    radials: int
    is_last_record: bool
    """Whether the record is marked as the last, by a negative size."""


def read_nexrad_chunk(request: ReadRequest) -> HeaderMetadata:
    """Read a chunk. Conforms to `Reader`.

    `request.groups` has `site`, `volume`, `date` (YYYYMMDD), `time` (HHMMSS), `chunk` and `kind` from the key, and
    `version` from the contract. The header of a first chunk must have this version. `start` and `datetime` are the
    key's time, common to all chunks of a volume. `end` is the last radial's time; it is `start` for a first chunk,
    which has no radials. A volume is complete when its last radial has the status "end of volume"; a last chunk without
    such a radial has a finding COMPLETENESS_UNCHECKED. With `request.closed`, a volume that is not complete is marked
    as closed. Raises ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT, INVALID_TIME_RANGE and
    INCOMPLETE_PRODUCT_METADATA for the bytes, TIME_MISMATCH, PLATFORM_MISMATCH and KEY_MISMATCH against the key,
    MISSING_GEOLOCATION and INVALID_GEOMETRY for the position.
    """
    groups = request.groups
    start = datetime.strptime(groups["date"] + groups["time"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    icao = groups["site"]
    chunk = _read(request.source, starts=groups["kind"] == START)
    nexrad_radar.check_platform(
        {"volume header": chunk.header, "first radial": chunk.first, "last radial": chunk.last}, icao
    )
    _check_times(chunk, start)
    if chunk.header:
        nexrad_radar.check_version(chunk.header, groups)
    site, kind = nexrad_radar.sites().get(icao), nexrad_radar.kind_of(icao, groups.get("version", ""))
    place = nexrad_radar.radar_position(chunk.first.position if chunk.first else None, site, icao)
    complete = chunk.last is not None and chunk.last.status == END_OF_VOLUME
    properties = _properties(chunk, groups)
    unfinished = f"the last chunk does not end its volume: {_last_words(chunk)}"
    return HeaderMetadata(
        start=start,
        # The key's time may be later than the first radials.
        end=max(start, chunk.last.time) if chunk.last else start,
        datetime=start,
        geometry=nexrad_radar.coverage(kind, place, chunk.first),
        properties=nexrad_radar.radar_properties(kind, icao, site, place)
        | properties
        | _end(complete=complete, closed=request.closed),
        native=asdict(chunk),
        findings=(
            *unchecked(unfinished if groups["kind"] == END and not complete else ""),
            *nexrad_radar.pattern_findings(kind, properties.get("nexrad:vcp")),
        ),
    )


def _read(source: ByteSource, *, starts: bool) -> Chunk:
    stored = BlockCache(source, block_bytes=READ_BYTES, max_blocks=_MAX_BLOCKS)
    opening = stored.read(0, FIRST_BYTES)
    place = HEADER_BYTES if starts else 0
    header = decode_header(opening[:HEADER_BYTES]) if starts else None
    word = opening[place : place + 4]
    if len(word) < 4:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"{source.size} bytes are less than an LDM record")
    size, is_last = record_size(word)
    missing = place + 4 + size - source.size
    if missing > 0:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the LDM record ends {missing} bytes past the object")
    if missing < 0:
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"{-missing} bytes follow the only LDM record of the chunk")
    pattern: Pattern | None = None
    first: tuple[int, bytes] | None = None
    last: tuple[int, bytes] | None = None
    radials = 0
    for kind, body in messages_of_record(stored.read(place + 4, size)):
        if kind == 5:
            pattern = decode_pattern(body)
        elif kind in {1, 31}:
            first, last, radials = first or (kind, body), (kind, body), radials + 1
    if not starts and first is None:
        raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, "the chunk has no radial")
    return Chunk(
        header=header,
        pattern=pattern,
        first=decode_radial(*first) if first else None,
        last=decode_radial(*last) if last else None,
        radials=radials,
        is_last_record=is_last,
    )


def _check_times(chunk: Chunk, start: datetime) -> None:
    """Check the times of header and radials against the key, and their order. Raises ReadError."""
    header = chunk.header.time if chunk.header else start
    first, last = (radial.time if radial else start for radial in (chunk.first, chunk.last))
    in_order = first <= last or chunk.first is None
    within_volume = start - TIME_TOLERANCE <= first and last <= start + LONGEST_VOLUME
    if abs(header - start) > TIME_TOLERANCE or not in_order or not within_volume:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the key has {start:%Y-%m-%dT%H:%M:%SZ}; the chunk has {header:%Y-%m-%dT%H:%M:%SZ} in its header and "
            f"{first:%Y-%m-%dT%H:%M:%SZ} to {last:%Y-%m-%dT%H:%M:%SZ} in its radials; expected the header within "
            f"{TIME_TOLERANCE.seconds} s, the radials within {LONGEST_VOLUME.seconds} s",
        )


def _last_words(chunk: Chunk) -> str:
    radial = chunk.last
    return f"its last radial is of cut {radial.cut}, status {radial.status}" if radial else "it has no radial"


def _end(*, complete: bool, closed: bool) -> dict[str, Any]:
    without_end = {"nexrad:closed": True, "nexrad:closed-by": LATER_VOLUME} if closed and not complete else {}
    return {"nexrad:complete": complete, **without_end}


def _properties(chunk: Chunk, groups: Mapping[str, str]) -> dict[str, Any]:
    optional = {
        # Volumes of 2005 have a message 5 of zeros.
        "nexrad:vcp": (chunk.first.vcp if chunk.first else 0) or (chunk.pattern.number if chunk.pattern else 0) or None,
        "nexrad:message-type": chunk.first.message_type if chunk.first else None,
        "nexrad:cuts": chunk.last.cut if chunk.last else None,
        "bands": nexrad_radar.moment_bands(chunk.last.moments) or None if chunk.last else None,
    }
    return {
        "nexrad:volume-number": int(groups["volume"]),
        "nexrad:chunks": int(groups["chunk"]),
    } | {name: value for name, value in optional.items() if value is not None}
