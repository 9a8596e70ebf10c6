"""Evidence bundles: what a person needs to judge a quarantined unit, as one JSON document (BEY-06).

Belongs here: the shape of a bundle, and what may not stand in it. Pure: the same facts give the same bytes. Does not
belong here: finding the facts (`evidence.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any
from urllib.parse import quote, quote_plus

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ledger.cases import AnnouncingMessage, DueCase
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord
from kfm_dagster.ledger.redaction import redact
from kfm_dagster.notifications.messages import SqsMessage

KIND = "kfm.nodd.evidence/v1"
MAX_BODY_CHARACTERS = 16_384
"""A message of one record has about 2,000; the whole one stays in the landing zone, which the bundle names."""
_DEPTH = 20
"""An S3 event in a text in a notification is 8 levels deep; a message that is nested without end must not be walked."""

_NO_JSON_NUMBER = 2**63
"""orjson writes no greater integer, and a message that holds one must not keep its unit from its evidence."""

_OPERATORS = {
    "integrity_status": "integrity_check",
    "metadata_status": "metadata_extract",
    "stac_status": "stac_register",
    "provenance_status": "provenance_emit",
}
OPERATORS = tuple(_OPERATORS.values())
"""Those that a unit can leave the chain at."""


@unique
class ObjectState(StrEnum):
    """What was found where the object should be."""

    PRESENT = "present"
    ABSENT = "absent"
    UNREADABLE = "unreadable"
    """The store refused, did not answer, or the contract does not name the object."""
    OVERWRITTEN = "overwritten"
    """Not looked at: a newer version stands in its place."""
    WITHHELD = "withheld"
    """It is there; governance keeps its content out of the evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundObject:
    """The object as found: size in bytes, first and last bytes where they may be shown."""

    state: ObjectState
    why: str | None = None
    size: int | None = None
    version: str | None = None
    content_type: str | None = None
    last_modified: datetime | None = None
    first: bytes = b""
    last: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundMessage:
    """The message that announced the unit; `landed` None: the landing zone has it no more, and `why` says so."""

    delivery: AnnouncingMessage
    landed: SqsMessage | None
    why: str | None = None


def bundle_of(
    case: DueCase,
    record: NoddWalRecord,
    history: Sequence[HistoryEntry],
    *,
    found: FoundObject,
    message: FoundMessage | None,
) -> bytes:
    """Return the bundle as JSON text; `record` and `history` are those of the moment of the quarantine."""
    key = record.object_uri.split("://", 1)[-1].split("/", 1)[-1]
    document = {
        "kind": KIND,
        "wal_id": record.wal_id,
        "quarantined_version": case.key.version,
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
        "found": _found(found),
        "message": None if message is None else _message(message, spared={key, quote(key), quote_plus(key)}),
        "history": [_change(entry) for entry in history],
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def redacted(value: Any, *, spared: Collection[str] = (), depth: int = _DEPTH) -> Any:
    """Return a JSON value without credentials, e-mail addresses and signed URLs, JSON inside of texts too.

    `spared` are texts that stay as they are: an object's key may look like a token.
    """
    if depth == 0:
        return "[redacted]"
    if isinstance(value, dict):
        return {
            redact(str(name)): "[redacted]" if _is_secret(str(name)) else redacted(one, spared=spared, depth=depth - 1)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [redacted(one, spared=spared, depth=depth - 1) for one in value]
    if isinstance(value, str) and value not in spared:
        inner = _json_inside(value)
        return redact(value, MAX_BODY_CHARACTERS) if inner is None else redacted(inner, spared=spared, depth=depth - 1)
    return str(value) if isinstance(value, int) and abs(value) >= _NO_JSON_NUMBER else value


def _is_secret(name: str) -> bool:
    # The ledger's rules know secrets by their names in name=value.
    return redact(f"{name}=x") != redact(name) + "=x"


def _json_inside(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _failed_operator(record: NoddWalRecord) -> str | None:
    """Name of the operator that the unit left the chain at; None where none complained (a lost worker, a person)."""
    if record.last_error_code == LedgerCode.GOVERNANCE_HARD_FAIL:
        # Governance judges what metadata-extract has read; the reading itself went well.
        return _OPERATORS["metadata_status"]
    return next((name for column, name in _OPERATORS.items() if getattr(record, column) == "failed"), None)


def _found(found: FoundObject) -> dict[str, Any]:
    return {
        "state": found.state,
        "why": found.why,
        "size": found.size,
        "version": found.version,
        "content_type": found.content_type,
        "last_modified": None if found.last_modified is None else rfc3339(found.last_modified),
        "first_hex": found.first.hex(),
        "last_hex": found.last.hex(),
    }


def _message(message: FoundMessage, *, spared: Collection[str]) -> dict[str, Any]:
    landed = message.landed
    body = None if landed is None else redacted(landed.body, spared=spared)
    if len(orjson.dumps(body)) > MAX_BODY_CHARACTERS:
        body = orjson.dumps(body).decode()[:MAX_BODY_CHARACTERS] + "…"
    return {
        "message_id": message.delivery.message_id,
        "queue": message.delivery.queue,
        "receive_count": message.delivery.receive_count,
        "first_received_at": rfc3339(message.delivery.first_received_at),
        "landing": message.delivery.landing,
        "sent_at": None if landed is None or landed.sent_at is None else rfc3339(landed.sent_at),
        "body": body,
        "why_no_body": message.why,
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
