"""NEXRAD Level II records as bytes: the sizes of LDM records, and the messages within them.

Belongs here: the two framings of ICD 2620010 (7.3.4 and 7.3.5), which head and end of a volume share. Does not belong
here: which records are read (`nexrad_volume.py`, `nexrad_end.py`) and what they mean (`nexrad_messages.py`).
"""

from __future__ import annotations

import bz2
import struct
from collections.abc import Iterator

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.unpacked import Bytes, Unpacked

READ_BYTES = 128 * 1024
"""One block of a range request; real heads take one to three, because a bzip2 block must be whole (50 to 270 KB)."""
FRAME_BYTES = 2432
"""Every message but type 31 fills one frame (ICD 2620010, 7.3.5)."""
MAX_RECORD_BYTES = 1024 * 1024
"""An LDM record of 120 radials is at most 1.4 MB before compression and 267 KB after it in real volumes."""
MAX_RECORD_UNPACKED = 2 * 1024 * 1024
"""120 radials, 1.42 MB at most in real volumes."""

_MESSAGE = struct.Struct(">12xHxB10xH")
MESSAGE_BYTES = _MESSAGE.size
"""12 bytes of channel terminal manager, 16 of message header (ICD 2620002, table II)."""


def record_size(word: bytes) -> tuple[int, bool]:
    """Size of an LDM record in bytes, and whether it says to be the last one (ICD 2620010, 7.3.4: a negative size).

    Raises ReadError for a size of nothing, or of more than a record can have.
    """
    size = int.from_bytes(word, "big", signed=True)
    if not 0 < abs(size) <= MAX_RECORD_BYTES:
        raise ReadError(
            MetadataIssue.RESOURCE_LIMIT if size else MetadataIssue.UNREADABLE_FORMAT,
            f"an LDM record claims {abs(size)} bytes; expected 1 to {MAX_RECORD_BYTES}",
        )
    return abs(size), size < 0


def message_at(header: bytes) -> tuple[int, int, int, int]:
    """Type, segment, size of the body and distance to the next message in bytes, from MESSAGE_BYTES of header.

    Raises ReadError for a message that is smaller than its own header.
    """
    halfwords, kind, segment = _MESSAGE.unpack(header)
    if kind == 31:
        if halfwords < 8:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a message of type 31 claims {halfwords} halfwords")
        # The size counts the message header's 16 bytes and not the 12 before it.
        return kind, segment, halfwords * 2 - 16, halfwords * 2 + 12
    return kind, segment, FRAME_BYTES - MESSAGE_BYTES, FRAME_BYTES


def messages(stream: Bytes, position: int) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message that matters; of message 18 only the first segment does.

    Goes on to the end of the stream, which the stream itself keeps near: see `Unpacked` and `BlockCache`.
    Raises ReadError where the stream ends within such a message.
    """
    while len(header := stream.read(position, MESSAGE_BYTES)) == MESSAGE_BYTES:
        kind, segment, body_bytes, advance = message_at(header)
        if kind in {1, 2, 5, 31} or (kind == 18 and segment == 1):
            body = stream.read(position + MESSAGE_BYTES, body_bytes)
            if len(body) < body_bytes:
                raise ReadError(MetadataIssue.TRUNCATED_OBJECT, f"the volume ends within a message of type {kind}")
            yield kind, body
        position += advance


def messages_of_record(record: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message of a whole LDM record, without its size, as `messages`. Raises ReadError."""
    stream = Unpacked(iter([record]), bz2.BZ2Decompressor(), step=READ_BYTES, limit=MAX_RECORD_UNPACKED)
    yield from messages(stream, 0)
    if not stream.complete:
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "the LDM record ends before its data")
