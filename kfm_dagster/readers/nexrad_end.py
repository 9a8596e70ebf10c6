"""The end of a NEXRAD Level II volume: last radial, moments of the cuts, completeness.

Three marks show the end of a volume: the last LDM record ends with the object (ICD 2620010, 7.3.4), a gzip stream has
its own end, and the last radial has the status "end of volume" (ICD 2620002, tables III and XVII). An object cut within
a record, a frame or a gzip stream is refused as TRUNCATED_OBJECT. An object cut exactly between two records looks like
a volume that the radar did not finish (it was restarted, or lost its power): no reader can tell which it is, so the
volume is read as it is, and `VolumeEnd.unchecked` states why it may be incomplete. A loss of records between the first
and the last is not detected, because a volume has 30 to 80 records, and each would take a request.

Belongs here: reading the end with one or two range requests, or by a bounded read of the whole object if nothing else
works. Does not belong here: the head (`nexrad_level2.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.nexrad_messages import (
    END_OF_VOLUME,
    FRAME_BYTES,
    HEADER_BYTES,
    INTERMEDIATE,
    MAX_RECORD_BYTES,
    MESSAGE_BYTES,
    MOMENTS,
    READ_BYTES,
    Radial,
    decode_radial,
    message_at,
    messages,
    messages_of_record,
    radial_status,
    record_size,
)
from kfm_dagster.readers.ranges import BlockCache, BytesSource
from kfm_dagster.readers.unpacked import Bytes, Gunzip, Unpacked, pieces

TAIL_BLOCKS = 2
"""Blocks of the tail that take one request: 128 to 256 KiB; last records take 28 to 95 KB in real volumes."""
GZIP_READ_BYTES = 1024 * 1024
MAX_GZIP_BYTES = 16 * 1024 * 1024
"""Largest gzip stream that is read, in requests of 1 MiB: only a complete read reaches its end."""
MAX_VOLUME_BYTES = 256 * 1024 * 1024
"""Maximum unpacked bytes of a volume; 17 cuts of 720 radials of 10 KB are 120 MB."""
MAX_STARTS = 16
"""Maximum positions tried as the start of a radial in an unpacked tail; in real tails the first is right."""
_RECORD_START = b"BZh"


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeEnd:
    """The end of a volume."""

    radial: Radial | None = None
    """The last radial; None when it was not reached."""
    moments: tuple[str, ...] | None = None
    """Moments of all cuts; None if the radials that were read do not show the moments of all cuts."""
    unchecked: str | None = None
    """Why the volume may be incomplete; None when its last radial has the status "end of volume"."""


def end_of_records(stored: BlockCache, first: Radial) -> VolumeEnd:
    """Read the last LDM record: its size must lead to the object's end. Raises ReadError."""
    size, near = stored.size, _tail_start(stored.size)
    far = max(min(near, size - MAX_RECORD_BYTES - 4), HEADER_BYTES)
    for start in dict.fromkeys((near, far)):
        record = _last_record(stored.read(start, size - start))
        if record is not None:
            return _of_ends(first, messages_of_record(record))
    raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "no LDM record ends where the object ends")


def end_of_frames(stored: BlockCache, first: Radial) -> VolumeEnd:
    """Read an uncompressed volume's last messages up to the object's end. Raises ReadError."""
    start = _tail_start(stored.size)
    tail = stored.read(start, stored.size - start)
    # Without messages of type 31, all messages are frames of equal size from the volume header on.
    frames = [(HEADER_BYTES - start) % FRAME_BYTES]
    for place in frames if first.message_type == 1 else _radial_starts(tail, first.icao):
        if _leads_to_the_end(tail, place):
            return _of_ends(first, messages(BytesSource(tail), place))
    raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "no message ends where the object ends")


def end_of_gzip(source: ByteSource, stored: BlockCache, first: Radial, *, bzipped: bool) -> VolumeEnd:
    """Read a gzipped volume of up to MAX_GZIP_BYTES to its end. Raises ReadError."""
    if source.size > MAX_GZIP_BYTES:
        return VolumeEnd(unchecked=f"the end was not read: {source.size} gzipped bytes, the limit is {MAX_GZIP_BYTES}")
    # First the cached block with the head, then larger blocks, which are not cached.
    rest = pieces(source, READ_BYTES, source.size, step=GZIP_READ_BYTES)
    stream = Unpacked(chain([stored.read(0, READ_BYTES)], rest), Gunzip(), step=2 * READ_BYTES, limit=MAX_VOLUME_BYTES)
    stream.read(0, HEADER_BYTES)
    if bzipped:
        volume_end = _of_ends(first, messages_of_record(_chained_record(stream)))
    else:
        last, moments = _survey(messages(stream, HEADER_BYTES))
        volume_end = VolumeEnd(radial=last, moments=_ordered(moments), unchecked=_unchecked(last))
    if not stream.complete:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the gzip stream continues past the {source.size} bytes")
    return volume_end


def _tail_start(size: int) -> int:
    return max(((size - 1) // READ_BYTES - TAIL_BLOCKS + 1) * READ_BYTES, HEADER_BYTES)


def _of_ends(first: Radial, volume_messages: Iterable[tuple[int, bytes]]) -> VolumeEnd:
    """Return the volume's end by its first radial and its last messages.

    A cut is for surveillance (reflectivity and polarimetry), for Doppler (velocity and width), or for both (ICD
    2620002, table XI, waveform). A volume begins with a cut for surveillance, so its first and last cut together have
    all moments if reflectivity and velocity are among them.
    """
    last, moments = _survey(volume_messages)
    moments |= set(first.moments)
    return VolumeEnd(
        radial=last,
        moments=_ordered(moments) if {"REF", "VEL"} <= moments else None,
        unchecked=_unchecked(last),
    )


def _survey(volume_messages: Iterable[tuple[int, bytes]]) -> tuple[Radial | None, set[str]]:
    """Return the last radial, and the moments of the radials that begin or end a cut."""
    last: tuple[int, bytes] | None = None
    moments: set[str] = set()
    for kind, body in volume_messages:
        if kind in {1, 31}:
            last = kind, body
            if radial_status(kind, body) != INTERMEDIATE:
                moments |= set(decode_radial(kind, body).moments)
    if last is None:
        return None, moments
    radial = decode_radial(*last)
    return radial, moments | set(radial.moments)


def _ordered(moments: set[str]) -> tuple[str, ...]:
    return tuple(moment for moment in MOMENTS if moment in moments)


def _unchecked(last: Radial | None) -> str | None:
    if last is None:
        return "the last record has no radial"
    if last.status != END_OF_VOLUME:
        return (
            f"the last radial (cut {last.cut}, status {last.status}) is not the end of a volume: the radar stopped, or "
            f"the object was cut between two records"
        )
    return None


def _last_record(tail: bytes) -> bytes | None:
    place = tail.find(_RECORD_START)
    while place >= 0:
        length = len(tail) - place
        if place >= 4 and abs(int.from_bytes(tail[place - 4 : place], "big", signed=True)) == length:
            return tail[place:]
        place = tail.find(_RECORD_START, place + 1)
    return None


def _chained_record(stream: Bytes) -> bytes:
    """Return the last LDM record, located by the sizes of all records before it."""
    offset, record = HEADER_BYTES, b""
    while len(word := stream.read(offset, 4)) == 4:
        size, _ = record_size(word)
        record = stream.read(offset + 4, size)
        if len(record) < size:
            raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"an LDM record ends {size - len(record)} bytes early")
        offset += 4 + size
    return record


def _radial_starts(tail: bytes, icao: str) -> Iterator[int]:
    """Yield possible starts of messages of type 31, whose body begins with the radar's name."""
    name = icao.encode("ascii", errors="replace")
    place = tail.find(name, MESSAGE_BYTES) if name else -1
    for _ in range(MAX_STARTS):
        if place < 0:
            return
        if tail[place - MESSAGE_BYTES + 15] == 31:
            yield place - MESSAGE_BYTES
        place = tail.find(name, place + 1)


def _leads_to_the_end(tail: bytes, place: int) -> bool:
    while place + MESSAGE_BYTES <= len(tail):
        place += message_at(tail[place : place + MESSAGE_BYTES])[3]
    return place == len(tail)
