"""Strict reading of what a message holds: JSON, required fields, optional fields of a bounded form.

Nothing here supplies a default: what is missing or of a wrong type raises MessageError with the field's path. Does not
belong here: which fields make a unit (`operators/message_parse.py`).
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
"""Text from a message is cut to this before it goes into a reason: enough for any NODD key, too short for a payload."""

SEQUENCER = re.compile(r"[0-9A-Fa-f]{1,64}")
"""S3 user guide, "Event message structure": a hexadecimal value."""

ETAG = re.compile(r"[!#-~]{1,128}")
"""Printable ASCII without quotes (RFC 9110, 8.8.3); S3 itself uses 32 hex digits and, for multipart, `-N`."""

MAX_SIZE_BYTES = 2**63 - 1
"""Largest size that the ledger's databases keep; S3's largest object is far below it."""


class MessageError(Exception):
    """Stops one record, or one message; message-parse turns it into a Rejection."""

    def __init__(self, code: ParseIssue, message: str) -> None:
        self.code = code
        self.bucket: str | None = None
        self.key: str | None = None
        super().__init__(message)


def json_object(content: str, what: str) -> Mapping[str, Any]:
    """Parse a JSON object of bounded size; orjson itself refuses nesting over 1,024 levels. Raises MessageError."""
    # Measured in bytes, because SQS counts them; most bodies are ASCII, where it is the length.
    if len(content) > MAX_BODY_BYTES or (
        not content.isascii() and len(content.encode(errors="replace")) > MAX_BODY_BYTES
    ):
        raise MessageError(ParseIssue.MESSAGE_TOO_LARGE, f"{what} is larger than {MAX_BODY_BYTES} bytes")
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise MessageError(ParseIssue.MALFORMED_JSON, f"{what} is no JSON") from None
    if not isinstance(found, dict):
        raise MessageError(ParseIssue.MALFORMED_JSON, f"{what} is no JSON object")
    return found


def missing(path: str) -> NoReturn:
    """Raise the MessageError of a field that is missing or of a wrong type."""
    raise MessageError(ParseIssue.MISSING_REQUIRED_FIELD, f"{path} is missing or of a wrong type")


def require_object(parent: Mapping[str, Any], name: str, *, path: str | None = None) -> Mapping[str, Any]:
    """Return the field, a JSON object. Raises MessageError naming `path`, by default `name`."""
    found = parent.get(name)
    if not isinstance(found, dict):
        missing(path or name)
    return found


def require_text(parent: Mapping[str, Any], name: str, *, path: str | None = None) -> str:
    """Return the field, a text that is not empty. Raises MessageError naming `path`, by default `name`."""
    found = parent.get(name)
    if not isinstance(found, str) or not found:
        missing(path or name)
    return found


def require_time(parent: Mapping[str, Any], name: str, *, zone: tzinfo | None = None) -> datetime:
    """Return the field, a plausible ISO 8601 time, in UTC. Raises MessageError, also where no zone is known."""
    text = require_text(parent, name)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        missing(f"{name} (ISO 8601)")
    if time.tzinfo is None:
        if zone is None:
            missing(f"{name} (ISO 8601 with a zone)")
        time = time.replace(tzinfo=zone)
    # Compared before it is brought to UTC, which the first and the last day of the calendar cannot be.
    if not is_plausible(time):
        raise MessageError(ParseIssue.INVALID_TIME_RANGE, f"{name} {shown(text)} is no time of an event")
    return time.astimezone(UTC)


def optional_size(parent: Mapping[str, Any], name: str, *, path: str) -> int | None:
    """Return the field, a number of bytes, or None when it is not there. Raises MessageError."""
    found = parent.get(name)
    # By type and not isinstance, because a bool is an int, too.
    if found is not None and (type(found) is not int or not 0 <= found <= MAX_SIZE_BYTES):
        missing(path)
    return found


def optional_text(parent: Mapping[str, Any], name: str, pattern: re.Pattern[str], *, path: str) -> str | None:
    """Return the field without quotes, or None when it is not there. Raises MessageError when it has another form."""
    found = parent.get(name)
    if found is None:
        return None
    unquoted = found.strip('"') if isinstance(found, str) else ""
    if not pattern.fullmatch(unquoted):
        missing(path)
    return unquoted


def shown(value: str) -> str:
    """Short, printable form of a text that a message's sender chose."""
    return ascii(value[:SHOWN_CHARACTERS])
