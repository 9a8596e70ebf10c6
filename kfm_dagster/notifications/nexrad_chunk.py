"""One message of Unidata's feed of NEXRAD Level II chunks, which is no S3 event.

It says `{S3Bucket, Key, SiteID, DateTime, VolumeID, ChunkID, ChunkType, L2Version}` and repeats with it what its key
says: a message whose key is another chunk's is refused. Numbers come as JSON numbers (captured in 2026) or as texts
(the feed's public description). `DateTime` is the start of the volume and has no zone; it is UTC, as the stamp of the
key. There is no size, no ETag and no sequencer, and the key is not encoded.

Belongs here: what the fields are. Does not belong here: whose the bucket is (`operators/message_parse.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.notifications.fields import MessageError, missing, require_text, require_time, shown

MAX_DIGITS = 3
"""Of the number of a volume (0 to 999, then 0 again) and of a chunk: the width of the latter in a key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkNotice:
    """What a message says of one chunk: the radar, its volume's number and start (UTC), and the chunk's own number.

    `kind` is S, I or E: it starts the volume, is in between, or ends it. `layout` is that of the volume, e.g. `V06`.
    """

    site: str
    volume: int
    start: datetime
    chunk: int
    kind: str
    layout: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> ChunkNotice:
        """Read a message strictly. Raises MessageError for a field that is missing, of a wrong type, or no time."""
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

        `version`: of the format, as the contract has it for the key; None where it has none.
        """
        *folders, name = key.split("/")
        expected = f"{self.start:%Y%m%d-%H%M%S}-{self.chunk:03d}-{self.kind}"
        if len(folders) != 2 or (folders[0], _digits(folders[1]), name) != (self.site, self.volume, expected):
            said = f"{self.site}/{self.volume}/{expected}"
            raise MessageError(
                ParseIssue.KEY_GRAMMAR_MISMATCH, f"key {shown(key)} is not of the chunk that is told: {shown(said)}"
            )
        if version is not None and self.layout != f"V{version}":
            text = (
                f"L2Version is {shown(self.layout)}; expected V{version}, which the contract has for {shown(self.site)}"
            )
            raise MessageError(ParseIssue.KEY_GRAMMAR_MISMATCH, text)


def _number(message: Mapping[str, Any], name: str) -> int:
    found = message.get(name)
    # By type and not isinstance, because a bool is an int, too.
    number = found if type(found) is int else _digits(found) if isinstance(found, str) else None
    if number is None or not 0 <= number < 10**MAX_DIGITS:
        missing(f"{name} (0 to {10**MAX_DIGITS - 1})")
    return number


def _digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
