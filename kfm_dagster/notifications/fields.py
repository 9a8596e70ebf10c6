"""Strict parsing of a message: JSON, required fields, and optional fields of a bounded form.

There are no defaults: a field that is missing or of a wrong type raises MessageError with its path. Does not belong
here: the fields of a unit (`operators/message_parse.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, NoReturn

import orjson

from kfm_dagster.contracts.identity import is_plausible
from kfm_dagster.contracts.issues import ParseIssue

MAX_BODY_BYTES = 1024 * 1024
"""Largest message that SQS carries (SQS developer guide, "Message quotas": 1 MiB, 256 KiB before August 2025)."""

SHOWN_CHARACTERS = 200
"""Limit for text of a message in a reason: long enough for any NODD key, too short for a payload."""

SEQUENCER = re.compile(r"[0-9A-Fa-f]{1,64}")
"""S3 user guide, "Event message structure": a hexadecimal value."""

ETAG = re.compile(r"[!#-~]{1,128}")
"""Printable ASCII without quotes (RFC 9110, 8.8.3); S3 itself uses 32 hex digits and, for multipart, `-N`."""

MAX_SIZE_BYTES = 2**63 - 1
"""Largest integer of the ledger's databases; S3's largest object is far below it."""


class MessageError(Exception):
    """Stops one record, or one message; message-parse turns it into a Rejection."""

    def __init__(self, code: ParseIssue, message: str) -> None:
        self.code = code
        self.bucket: str | None = None
        self.key: str | None = None
        super().__init__(message)


def json_object(content: str, what: str) -> Mapping[str, Any]:
    """Parse a bounded JSON object; orjson refuses over 1,024 levels. Raises MessageError."""
    # SQS's limit is in bytes. Most bodies are ASCII, where bytes and characters are the same number.
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
    """Return a plausible ISO 8601 time, in UTC. Raises MessageError, also without a zone."""
    text = require_text(parent, name)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        missing(f"{name} (ISO 8601)")
    if time.tzinfo is None:
        if zone is None:
            missing(f"{name} (ISO 8601 with a zone)")
        time = time.replace(tzinfo=zone)
    # Checked before the conversion to UTC, which overflows on the calendar's first and last day.
    if not is_plausible(time):
        raise MessageError(ParseIssue.INVALID_TIME_RANGE, f"{name} {shown(text)} is no time of an event")
    return time.astimezone(UTC)


def optional_size(parent: Mapping[str, Any], name: str, *, path: str) -> int | None:
    """Return a field that is a number of bytes, or None if it is absent. Raises MessageError."""
    size = parent.get(name)
    # Not isinstance, because a bool is an int, too.
    if size is not None and (type(size) is not int or not 0 <= size <= MAX_SIZE_BYTES):
        missing(path)
    return size


def optional_text(parent: Mapping[str, Any], name: str, pattern: re.Pattern[str], *, path: str) -> str | None:
    """Return a field without quotes; None if absent. Raises MessageError for another form."""
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
