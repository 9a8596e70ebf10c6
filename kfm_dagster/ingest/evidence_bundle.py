"""Evidence bundles: the facts about a quarantined unit as a JSON document (BEY-06).

Belongs here: the shape of a bundle, and its redaction. Pure: equal facts give equal bytes. Does not belong here:
collecting the facts (`evidence.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ledger.cases import AnnouncingMessage, DueCase
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord
from kfm_dagster.ledger.search import OPERATORS
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.redaction import redact
from kfm_dagster.storage.object_handle import ObjectHead

KIND = "kfm.nodd.evidence/v1"
MAX_BODY_CHARACTERS = 16_384
"""Limit for a message; a message with one record has about 2,000 characters. The bundle names the landed batch, which
has the whole message with the records of other units."""
_DEPTH = 20
"""Limit of nesting, against forged messages. An S3 event that is a text in a notification has 8 levels."""

_NO_JSON_NUMBER = 2**63
"""orjson may refuse integers of this size or more; such a number in a message must not prevent its unit's evidence."""

_COLUMNS = ("integrity_status", "metadata_status", "stac_status", "provenance_status")
_OPERATORS = dict(zip(_COLUMNS, OPERATORS, strict=True))


@unique
class ObjectState(StrEnum):
    """The state of the object at its address."""

    PRESENT = "present"
    ABSENT = "absent"
    UNREADABLE = "unreadable"
    """The store refused or did not answer, or the contract does not name the object."""
    OVERWRITTEN = "overwritten"
    """Not examined, because a newer version has replaced it."""
    WITHHELD = "withheld"
    """The object exists, but governance excludes the content from evidence."""


Announced = tuple[AnnouncingMessage, SqsMessage | str]
"""The message that announced a unit: its delivery, and the landed message or why it is missing."""


def object_entry(
    state: ObjectState, *, why: str | None = None, head: ObjectHead | None = None, first: bytes = b"", last: bytes = b""
) -> dict[str, Any]:
    """Return a bundle's entry of the object; `first` and `last` are bytes that may be shown."""
    return {
        "state": state,
        "why": None if why is None else redact(why),
        "size": head and head.size,
        "version": head and head.etag,
        "content_type": head and head.content_type,
        "last_modified": head and rfc3339(head.last_modified),
        "first_hex": first.hex(),
        "last_hex": last.hex(),
    }


def bundle_of(
    case: DueCase,
    record: NoddWalRecord,
    history: Sequence[HistoryEntry],
    *,
    observed: Mapping[str, Any],
    message: Announced | None,
) -> bytes:
    """Return the bundle as JSON; `record` and `history` are from the time of the quarantine."""
    key = record.object_uri.split("://", 1)[-1].split("/", 1)[-1]
    document = {
        "kind": KIND,
        "wal_id": record.wal_id,
        "quarantined_version": case.version,
        "quarantined_at": rfc3339(case.opened_at),
        "reason": case.reason,
        "error": {"code": record.last_error_code, "message": record.last_error_message},
        "operator": _failed_operator(record),
        "code_version": __version__,
        "run_id": record.ingest_run_id,
        "worker_id": record.worker_id,
        "attempts": record.attempts,
        "unit": {
            "dataset": record.dataset,
            "object_uri": record.object_uri,
            "partition": record.partition_key,
            "time_range": [rfc3339(record.time_range_start), rfc3339(record.time_range_end)],
            "lane": record.lane,
            "replay_reason": record.replay_reason,
            "replay_run_id": record.replay_run_id,
        },
        "announced": {
            "version": record.object_version,
            "size": record.object_size,
            "sequencer": record.sequencer,
            "event_time": rfc3339(record.event_time),
        },
        "found": observed,
        "message": None if message is None else _message(*message, record, spared={key, quote(key), quote_plus(key)}),
        "history": [_change(entry) for entry in history],
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def redacted(value: Any, *, spared: Collection[str] = ()) -> Any:
    """Return a JSON value without credentials, e-mail addresses and signed URLs.

    JSON inside of texts is redacted, too. `spared` texts stay unchanged, because an object's key may look like a token.
    After MAX_BODY_CHARACTERS an ellipsis replaces the remaining text.
    """
    return _Redaction(spared=spared).of(value, _DEPTH)


@dataclass(kw_only=True, slots=True)
class _Redaction:
    """The redaction of a value; `left` counts the characters that may still be examined."""

    spared: Collection[str]
    left: int = MAX_BODY_CHARACTERS

    def of(self, value: Any, depth: int) -> Any:
        if depth == 0:
            return "[redacted]"
        if isinstance(value, dict):
            return dict(self._fields(value, depth))
        if isinstance(value, list):
            return list(self._entries(value, depth))
        if not isinstance(value, str):
            return str(value) if isinstance(value, int) and abs(value) >= _NO_JSON_NUMBER else value
        inner = _json_inside(value) if len(value) <= self.left else None
        if inner is not None:
            return self.of(inner, depth - 1)
        limit = max(self.left, 1)
        self.left -= len(value)
        return value if value in self.spared else redact(value, limit)

    def _fields(self, value: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
        for name, inner in value.items():
            self.left -= len(name) + 1
            if self.left <= 0:
                yield "…", "…"
                return
            yield redact(name), "[redacted]" if _is_secret(name) else self.of(inner, depth - 1)

    def _entries(self, value: Sequence[Any], depth: int) -> Iterator[Any]:
        for inner in value:
            self.left -= 1
            if self.left <= 0:
                yield "…"
                return
            yield self.of(inner, depth - 1)


def _is_secret(name: str) -> bool:
    # The rules of `redact` recognise secrets by their names in name=value.
    return redact(f"{name}=x") != redact(name) + "=x"


def _json_inside(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _own_body(body: str, record: NoddWalRecord) -> Any:
    """Return a message's JSON with only the unit's own record, placed first."""
    outer, payload, announced = _announced(body)
    if not announced:
        return outer
    own = announced.get((record.object_uri, record.object_version)) or announced.get((record.object_uri, None))
    shown = {"Records": [] if own is None else [own]} | payload
    return shown if outer is None else {"Message": shown} | outer


@lru_cache(maxsize=2)
def _announced(body: str) -> tuple[Any, dict[str, Any], dict[tuple[str, str | None], Any]]:
    """Return a message's SNS fields (None: raw delivery), other payload fields, and records.

    The message is parsed once for all its units. Records are keyed by (URI, ETag) of their object, an object's first
    record also by (URI, None).
    """
    outer = _json_inside(body)
    enveloped = isinstance(outer, dict) and isinstance(outer.get("Message"), str)
    payload = _json_inside(outer["Message"]) if enveloped else outer
    records = payload.get("Records") if isinstance(payload, dict) else None
    if not isinstance(records, list):
        return body if outer is None else outer, {}, {}
    announced: dict[tuple[str, str | None], Any] = {}
    for entry in records:
        try:
            uri = f"s3://{entry['s3']['bucket']['name']}/{unquote_plus(entry['s3']['object']['key'])}"
            version = str(entry["s3"]["object"].get("eTag")).strip('"')
        except (TypeError, KeyError, AttributeError):
            continue  # not a record of a unit
        announced.setdefault((uri, version), entry)
        announced.setdefault((uri, None), entry)
    rest = {name: value for name, value in payload.items() if name != "Records"}
    return ({name: value for name, value in outer.items() if name != "Message"} if enveloped else None), rest, announced


def _failed_operator(record: NoddWalRecord) -> str | None:
    """Return the operator that failed the unit; None if a lost worker or a person is the cause."""
    if record.last_error_code == LedgerCode.GOVERNANCE_HARD_FAIL:
        # Governance refuses metadata after metadata-extract has read them without an error.
        return _OPERATORS["metadata_status"]
    return next((name for column, name in _OPERATORS.items() if getattr(record, column) == "failed"), None)


def _message(
    delivery: AnnouncingMessage, landed: SqsMessage | str, record: NoddWalRecord, *, spared: Collection[str]
) -> dict[str, Any]:
    body = None if isinstance(landed, str) else redacted(_own_body(landed.body, record), spared=spared)
    if len(orjson.dumps(body)) > MAX_BODY_CHARACTERS:
        body = orjson.dumps(body).decode()[:MAX_BODY_CHARACTERS] + "…"
    return {
        "message_id": delivery.message_id,
        "queue": delivery.queue,
        "receive_count": delivery.receive_count,
        "first_received_at": rfc3339(delivery.first_received_at),
        "landing": delivery.landing,
        "sent_at": None if isinstance(landed, str) or landed.sent_at is None else rfc3339(landed.sent_at),
        "body": body,
        "why_no_body": landed if isinstance(landed, str) else None,
    }


def _change(entry: HistoryEntry) -> Mapping[str, Any]:
    return {
        "version": entry.version,
        "at": rfc3339(entry.at),
        "actor": entry.actor,
        "from": entry.from_status,
        "to": entry.to_status,
        "reason": entry.reason,
        "run_id": entry.run_id,
        "attempts": entry.attempts,
        "error_code": entry.fields.get("last_error_code"),
        "error_message": entry.fields.get("last_error_message"),
    }
