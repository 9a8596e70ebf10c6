"""Envelopes to batch rows and back: what travels between the store and its statements.

Belongs here: pure conversions. A batch is one JSON text; times are RFC 3339 text, which both databases read. Does not
belong here: SQL, transactions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any

import orjson

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Lane,
    Priority,
    ProvenanceStatus,
    RawReference,
    StacStatus,
    WalId,
)
from kfm_dagster.contracts.identity import moment, rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.text import json_text, storable

PRIORITY_RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
"""Order of claims; the claim statement says the same in SQL."""
_PRIORITIES = {one.value: one for one in Priority}
_LANES = {one.value: one for one in Lane}


MAX_TEXT = 320
"""Characters of a sender's free text that the ledger keeps: SNS allows 100 in a Subject and SQS 100 in a MessageId
(SNS API reference, Publish; SQS developer guide, "Message identifiers"), and a topic's name, the
longest part of its ARN, has at most 256."""


def as_json(value: Any) -> str:
    """Text of a batch parameter."""
    return json_text(value)


def bounded(text: str | None) -> str | None:
    """Return a sender's free text as the ledger keeps it."""
    return None if text is None else storable(text, MAX_TEXT)


def unit_row(envelope: Envelope, contract: DatasetContract) -> dict[str, Any]:
    """Row of a new record."""
    raw = envelope.raw
    return {
        "wal_id": envelope.wal_id,
        "dataset": envelope.dataset,
        "object_uri": envelope.object_uri,
        "provider": envelope.provider,
        "queue": envelope.queue,
        "event_time": rfc3339(envelope.event_time),
        "time_range_start": rfc3339(envelope.time_range_start),
        "time_range_end": rfc3339(envelope.time_range_end),
        "object_version": envelope.object_version,
        "object_size": envelope.object_size,
        "sequencer": envelope.sequencer,
        "partition_key": envelope.partition,
        "priority": envelope.priority,
        "schema_version": envelope.schema_version,
        "sqs_message_id": bounded(raw.sqs_message_id),
        "sns_message_id": bounded(raw.sns_message_id),
        "topic_arn": bounded(raw.topic_arn),
        "subject": bounded(raw.subject),
        "extension": extension_fields(contract, envelope.key),
    }


def extension_fields(contract: DatasetContract, key: str) -> dict[str, str]:
    """Return the groups of the key that the contract declares as extension fields; a group without text is left out."""
    declared = contract.ledger.extension_fields
    found = _pattern(contract.storage.key_grammar.pattern).fullmatch(key) if declared else None
    return {} if found is None else {name: found[name] for name in declared if found[name] is not None}


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    # ASCII, as the key grammar reads it.
    return re.compile(pattern, re.ASCII)


def claimed_envelope(row: Iterable[Any]) -> Envelope:
    """Envelope of a claimed record, as it was before any operator saw it; `row` is one that the claim returns."""
    # By place: looking a thousand rows' columns up by name takes longer than all the rest.
    (
        wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
        schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
        attempts, version, lane, replay_reason, replay_run_id,
    ) = row  # fmt: skip
    return Envelope(
        wal_id=WalId(wal_id),
        dataset=dataset,
        object_uri=object_uri,
        provider=provider,
        queue=queue,
        event_time=moment(event_time),
        time_range_start=moment(time_range_start),
        time_range_end=moment(time_range_end),
        priority=_PRIORITIES[priority],
        schema_version=schema_version,
        object_version=object_version,
        object_size=object_size,
        sequencer=sequencer,
        raw=RawReference(
            sqs_message_id=sqs_message_id,
            sns_message_id=sns_message_id,
            topic_arn=topic_arn,
            subject=subject,
        ),
        lane=_LANES[lane],
        replay_reason=replay_reason,
        replay_run_id=replay_run_id,
        attempt=attempts,
        record_version=version,
    )


def findings_row(envelope: Envelope) -> dict[str, Any]:
    """Outcome of one attempt: each operator's sub-status (unknown when it did not run) and the Item's place."""
    integrity, metadata, stac, provenance = (
        envelope.integrity,
        envelope.metadata,
        envelope.stac,
        envelope.provenance,
    )
    return {
        "wal_id": envelope.wal_id,
        "attempt": envelope.attempt,
        "integrity_status": integrity.status if integrity else CheckStatus.UNKNOWN,
        "metadata_status": metadata.status if metadata else CheckStatus.UNKNOWN,
        "stac_status": stac.write_status if stac else StacStatus.UNKNOWN,
        "provenance_status": provenance.status if provenance else ProvenanceStatus.UNKNOWN,
        "stac_item_id": stac.item_id if stac else None,
        "stac_collection_id": stac.collection_id if stac else None,
        "stac_item_href": stac.item_href if stac else None,
    }


def outcome_row(envelope: Envelope) -> dict[str, Any]:
    """Return what a success made: the Item's content hash, and a hash of the names of all that its lineage tells of."""
    stac, provenance = envelope.stac, envelope.provenance
    named = provenance and [
        provenance.activity_id,
        provenance.openlineage_run_id,
        *sorted(provenance.entity_ids),
        *sorted(provenance.agent_ids),
    ]
    return {
        "wal_id": envelope.wal_id,
        "attempt": envelope.attempt,
        "replay_run_id": envelope.replay_run_id,
        "item_sha256": stac and stac.content_sha256,
        "provenance_sha256": named and hashlib.sha256(orjson.dumps(named)).hexdigest(),
        "superseded": stac is not None and stac.superseded,
    }


def claim_order(envelope: Envelope) -> tuple[bool, int, datetime, str]:
    """Sort key of claims; RETURNING promises no order."""
    return envelope.lane is Lane.BULK, PRIORITY_RANK[envelope.priority], envelope.event_time, envelope.wal_id


def wal_ids_of(rows: Iterable[Any]) -> tuple[WalId, ...]:
    """Ids of rows, sorted, so that reports compare."""
    return tuple(sorted(WalId(row.wal_id) for row in rows))
