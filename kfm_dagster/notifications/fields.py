"""Strict parsing of a message: JSON, required and optional fields, notices of NEXRAD chunks.

Fields have no defaults: a required field that is missing, or any field of a wrong type, raises MessageError with its
path. Does not belong here: the fields of a unit, and the dataset of a bucket (`operators/message_parse.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, NoReturn

import orjson

from kfm_dagster.contracts.identity import is_plausible
from kfm_dagster.contracts.issues import ParseIssue

MAX_BODY_BYTES = 1024 * 1024
"""Largest message that SQS carries (SQS developer guide, "Message quotas": 1 MiB, 256 KiB before August 2025)."""

SHOWN_CHARACTERS = 200
"""Most characters of a message's text in a reason: enough for any NODD key, too few for a payload."""

SEQUENCER = re.compile(r"[0-9A-Fa-f]{1,64}")
"""S3 user guide, "Event message structure": a hexadecimal value."""

ETAG = re.compile(r"[!#-~]{1,128}")
"""Printable ASCII without quotes (RFC 9110, 8.8.3); S3 uses 32 hex digits, with `-N` after a multipart upload."""

MAX_SIZE_BYTES = 2**63 - 1
"""Largest integer of the ledger's databases; S3's largest object is far below it."""


class MessageError(Exception):
    """A message, or a record in it, is invalid; message_parse turns the error into a Rejection."""

    def __init__(self, code: ParseIssue, message: str) -> None:
        self.code = code
        super().__init__(message)


def json_object(content: str, what: str) -> Mapping[str, Any]:
    """Parse a JSON object of at most 1 MiB and 1,024 levels. Raises MessageError for other text."""
    # SQS's limit is in bytes. Most bodies are ASCII, and so have as many bytes as characters.
    if len(content) > MAX_BODY_BYTES or (
        not content.isascii() and len(content.encode(errors="replace")) > MAX_BODY_BYTES
    ):
        raise MessageError(ParseIssue.MESSAGE_TOO_LARGE, f"{what} is larger than {MAX_BODY_BYTES} bytes")
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise MessageError(ParseIssue.MALFORMED_JSON, f"{what} is no JSON") from None
    if not isinstance(value, dict):
        raise MessageError(ParseIssue.MALFORMED_JSON, f"{what} is no JSON object")
    return value


def missing(path: str) -> NoReturn:
    """Raise the MessageError of a field that is missing or of a wrong type."""
    raise MessageError(ParseIssue.MISSING_REQUIRED_FIELD, f"{path} is missing or of a wrong type")


def require_object(parent: Mapping[str, Any], name: str, *, path: str | None = None) -> Mapping[str, Any]:
    """Return a JSON object field. Raises MessageError naming `path`, by default `name`."""
    value = parent.get(name)
    if not isinstance(value, dict):
        missing(path or name)
    return value


def require_text(parent: Mapping[str, Any], name: str, *, path: str | None = None) -> str:
    """Return a non-empty text field. Raises MessageError naming `path`, by default `name`."""
    text = parent.get(name)
    if not isinstance(text, str) or not text:
        missing(path or name)
    return text


def require_time(parent: Mapping[str, Any], name: str, *, zone: tzinfo | None = None) -> datetime:
    """Return a plausible ISO 8601 time, in UTC. Raises MessageError.

    `zone` is the zone of a time that has none; without `zone`, such a time is refused.
    """
    text = require_text(parent, name)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        missing(f"{name} (ISO 8601)")
    if time.tzinfo is None:
        if zone is None:
            missing(f"{name} (ISO 8601 with a zone)")
        time = time.replace(tzinfo=zone)
    # Checked before the conversion to UTC, which can overflow on the calendar's first and last day.
    if not is_plausible(time):
        raise MessageError(ParseIssue.INVALID_TIME_RANGE, f"{name} {shown(text)} is not a possible time of an event")
    return time.astimezone(UTC)


def optional_size(parent: Mapping[str, Any], name: str, *, path: str) -> int | None:
    """Return a field that is a size in bytes; None if it is absent. Raises MessageError."""
    size = parent.get(name)
    # Not isinstance, because a bool is an int, too.
    if size is not None and (type(size) is not int or not 0 <= size <= MAX_SIZE_BYTES):
        missing(path)
    return size


def optional_text(parent: Mapping[str, Any], name: str, pattern: re.Pattern[str], *, path: str) -> str | None:
    """Return a text field without its quotes; None if it is absent.

    Raises MessageError naming `path` if the text does not match the pattern.
    """
    text = parent.get(name)
    if text is None:
        return None
    unquoted = text.strip('"') if isinstance(text, str) else ""
    if not pattern.fullmatch(unquoted):
        missing(path)
    return unquoted


def shown(value: str) -> str:
    """Return a short, printable form of text from a message."""
    return ascii(value[:SHOWN_CHARACTERS])


MAX_DIGITS = 3
"""Most digits in the number of a volume (0 to 999, then 0 again) or chunk; keys pad a chunk's number to this width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkNotice:
    """A message of Unidata's feed of NEXRAD Level II chunks, which is not an S3 event.

    Its fields are `{S3Bucket, Key, SiteID, DateTime, VolumeID, ChunkID, ChunkType, L2Version}`. They repeat the parts
    of the key, so a message with the key of another chunk is refused. A number is a JSON number in messages captured in
    2026, and a text in the feed's public description; both forms are read. `DateTime` is the start of the volume, in
    UTC like the key's timestamp, and has no zone. The message has no size, ETag or sequencer; its key is not encoded.

    `site`, `volume` and `start` (UTC) identify the volume, `chunk` is the chunk's number. `kind` is S for the volume's
    first chunk, E for its last chunk, I for each other. `layout` is the volume's format version, e.g. `V06`.
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
        """Raise MessageError for the key of another chunk; a volume's number can have leading zeros.

        `version` is the format version that the contract expects of this key, or None.
        """
        *folders, file = key.split("/")
        name = f"{self.start:%Y%m%d-%H%M%S}-{self.chunk:03d}-{self.kind}"
        if len(folders) != 2 or (folders[0], _digits(folders[1]), file) != (self.site, self.volume, name):
            path = f"{self.site}/{self.volume}/{name}"
            raise MessageError(
                ParseIssue.KEY_GRAMMAR_MISMATCH,
                f"key {shown(key)} is not the key of the announced chunk, {shown(path)}",
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
