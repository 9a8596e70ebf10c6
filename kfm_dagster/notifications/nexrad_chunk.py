"""One message of Unidata's feed of NEXRAD Level II chunks, which is not an S3 event.

It has `{S3Bucket, Key, SiteID, DateTime, VolumeID, ChunkID, ChunkType, L2Version}`, which repeat the key's parts: a
message with the key of another chunk is refused. Numbers come as JSON numbers (captured in 2026) or as texts (the
feed's public description). `DateTime` is the start of the volume and has no zone; it is UTC, as the key's timestamp.
There is no size, no ETag and no sequencer, and the key is not encoded.

Belongs here: the fields. Does not belong here: the dataset of a bucket (`operators/message_parse.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.notifications.fields import MessageError, missing, require_text, require_time, shown

MAX_DIGITS = 3
"""Digits of a volume's number (0 to 999, then 0 again) and of a chunk's, which a key pads to this width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkNotice:
    """One announced chunk: radar, number and start (UTC) of its volume, and its own number.

    `kind` is S for the volume's first chunk, E for its last, I for others. `layout` is the volume's, e.g. `V06`.
    """

    site: str
    volume: int
    start: datetime
    chunk: int
    kind: str
    layout: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> ChunkNotice:
        """Read a message. Raises MessageError for a missing field, a wrong type, or a wrong time."""
        return cls(
            site=require_text(message, "SiteID"),
            volume=_number(message, "VolumeID"),
            start=require_time(message, "DateTime", zone=UTC),
            chunk=_number(message, "ChunkID"),
            kind=require_text(message, "ChunkType"),
            layout=require_text(message, "L2Version"),
        )

    def check_key(self, key: str, *, version: str | None) -> None:
        """Raise MessageError for the key of another chunk; a volume's number may have leading zeros.

        `version` is the contract's version of the format for the key, or None.
        """
        *folders, file = key.split("/")
        name = f"{self.start:%Y%m%d-%H%M%S}-{self.chunk:03d}-{self.kind}"
        if len(folders) != 2 or (folders[0], _digits(folders[1]), file) != (self.site, self.volume, name):
            path = f"{self.site}/{self.volume}/{name}"
            raise MessageError(
                ParseIssue.KEY_GRAMMAR_MISMATCH, f"key {shown(key)} is not of the chunk that is told: {shown(path)}"
            )
        if version is not None and self.layout != f"V{version}":
            text = (
                f"L2Version is {shown(self.layout)}; expected V{version}, which the contract has for {shown(self.site)}"
            )
            raise MessageError(ParseIssue.KEY_GRAMMAR_MISMATCH, text)


def _number(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    # Not isinstance, because a bool is an int, too.
    number = value if type(value) is int else _digits(value) if isinstance(value, str) else None
    if number is None or not 0 <= number < 10**MAX_DIGITS:
        missing(f"{name} (0 to {10**MAX_DIGITS - 1})")
    return number


def _digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
