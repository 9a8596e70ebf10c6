"""Envelopes at rest: a batch as an Arrow table and as Parquet, and back without loss.

Scalars are columns, so that set questions (gates, reports) can be asked in SQL; open-ended members (geometry,
properties, issues) are JSON text. Times are UTC with microseconds. Row order is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    Lane,
    Metadata,
    Priority,
    ProvenanceResult,
    ProvenanceStatus,
    RawReference,
    StacResult,
    StacStatus,
    WalId,
)
from kfm_dagster.contracts.issues import Issue, Severity

_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()
_TEXTS = pa.list_(pa.string())

SCHEMA = pa.schema(
    [
        pa.field("wal_id", _TEXT, nullable=False),
        pa.field("dataset", _TEXT, nullable=False),
        pa.field("object_uri", _TEXT, nullable=False),
        pa.field("provider", _TEXT, nullable=False),
        pa.field("queue", _TEXT, nullable=False),
        pa.field("event_time", _TIME, nullable=False),
        pa.field("time_range_start", _TIME, nullable=False),
        pa.field("time_range_end", _TIME, nullable=False),
        pa.field("priority", _TEXT, nullable=False),
        pa.field("schema_version", _TEXT, nullable=False),
        pa.field("object_version", _TEXT),
        pa.field("object_size", pa.int64()),
        pa.field("sequencer", _TEXT),
        pa.field("sqs_message_id", _TEXT),
        pa.field("sns_message_id", _TEXT),
        pa.field("topic_arn", _TEXT),
        pa.field("subject", _TEXT),
        pa.field("lane", _TEXT, nullable=False),
        pa.field("replay_reason", _TEXT),
        pa.field("replay_run_id", _TEXT),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("record_version", pa.int64(), nullable=False),
        pa.field("integrity_status", _TEXT),
        pa.field("actual_size_bytes", pa.int64()),
        pa.field("actual_etag", _TEXT),
        pa.field("integrity_checks", _TEXTS),
        pa.field("integrity_issues", _TEXT),
        pa.field("metadata_status", _TEXT),
        pa.field("geometry", _TEXT),
        pa.field("bbox", pa.list_(pa.float64())),
        pa.field("stac_properties", _TEXT),
        pa.field("sidecars", _TEXT),
        pa.field("metadata_checks", _TEXTS),
        pa.field("metadata_issues", _TEXT),
        pa.field("stac_status", _TEXT),
        pa.field("stac_item_id", _TEXT),
        pa.field("stac_collection_id", _TEXT),
        pa.field("stac_item_href", _TEXT),
        pa.field("stac_content_sha256", _TEXT),
        pa.field("superseded", pa.bool_()),
        pa.field("superseded_by", _TEXT),
        pa.field("replaces", _TEXT),
        pa.field("stac_issues", _TEXT),
        pa.field("provenance_status", _TEXT),
        pa.field("activity_id", _TEXT),
        pa.field("entity_ids", _TEXTS),
        pa.field("agent_ids", _TEXTS),
        pa.field("openlineage_run_id", _TEXT),
        pa.field("provenance_issues", _TEXT),
        pa.field("gate_issues", _TEXT),
    ]
)


def to_table(envelopes: Iterable[Envelope]) -> pa.Table:
    """Return one row per envelope, in order."""
    return pa.Table.from_pylist([_row(envelope) for envelope in envelopes], schema=SCHEMA)


def to_parquet(envelopes: Iterable[Envelope]) -> bytes:
    """Encode a batch; the same batch gives the same bytes under one pyarrow release."""
    sink = pa.BufferOutputStream()
    pq.write_table(to_table(envelopes), sink, compression="zstd", write_statistics=False)
    return bytes(sink.getvalue())


def from_parquet(content: bytes) -> list[Envelope]:
    """Decode a batch written by `to_parquet`."""
    return [_envelope(row) for row in pq.read_table(pa.BufferReader(content)).to_pylist()]


def _row(unit: Envelope) -> dict[str, Any]:
    row: dict[str, Any] = {
        "wal_id": unit.wal_id,
        "dataset": unit.dataset,
        "object_uri": unit.object_uri,
        "provider": unit.provider,
        "queue": unit.queue,
        "event_time": unit.event_time,
        "time_range_start": unit.time_range_start,
        "time_range_end": unit.time_range_end,
        "priority": unit.priority.value,
        "schema_version": unit.schema_version,
        "object_version": unit.object_version,
        "object_size": unit.object_size,
        "sequencer": unit.sequencer,
        "sqs_message_id": unit.raw.sqs_message_id,
        "sns_message_id": unit.raw.sns_message_id,
        "topic_arn": unit.raw.topic_arn,
        "subject": unit.raw.subject,
        "lane": unit.lane.value,
        "replay_reason": unit.replay_reason,
        "replay_run_id": unit.replay_run_id,
        "attempt": unit.attempt,
        "record_version": unit.record_version,
        "gate_issues": _issues_text(unit.gate_issues) if unit.gate_issues else None,
    }
    if (integrity := unit.integrity) is not None:
        row |= {
            "integrity_status": integrity.status.value,
            "actual_size_bytes": integrity.actual_size_bytes,
            "actual_etag": integrity.actual_etag,
            "integrity_checks": integrity.checks_run,
            "integrity_issues": _issues_text(integrity.issues),
        }
    if (metadata := unit.metadata) is not None:
        row |= {
            "metadata_status": metadata.status.value,
            "geometry": None if metadata.geometry is None else _json(metadata.geometry),
            "bbox": metadata.bbox,
            "stac_properties": _json(metadata.stac_properties),
            "sidecars": _json(metadata.sidecars),
            "metadata_checks": metadata.checks_run,
            "metadata_issues": _issues_text(metadata.issues),
        }
    if (stac := unit.stac) is not None:
        row |= {
            "stac_status": stac.write_status.value,
            "stac_item_id": stac.item_id,
            "stac_collection_id": stac.collection_id,
            "stac_item_href": stac.item_href,
            "stac_content_sha256": stac.content_sha256,
            "superseded": stac.superseded,
            "superseded_by": stac.superseded_by,
            "replaces": stac.replaces,
            "stac_issues": _issues_text(stac.issues),
        }
    if (provenance := unit.provenance) is not None:
        row |= {
            "provenance_status": provenance.status.value,
            "activity_id": provenance.activity_id,
            "entity_ids": provenance.entity_ids,
            "agent_ids": provenance.agent_ids,
            "openlineage_run_id": provenance.openlineage_run_id,
            "provenance_issues": _issues_text(provenance.issues),
        }
    return row


def _envelope(row: dict[str, Any]) -> Envelope:
    return Envelope(
        wal_id=WalId(row["wal_id"]),
        dataset=row["dataset"],
        object_uri=row["object_uri"],
        provider=row["provider"],
        queue=row["queue"],
        event_time=_utc(row["event_time"]),
        time_range_start=_utc(row["time_range_start"]),
        time_range_end=_utc(row["time_range_end"]),
        priority=Priority(row["priority"]),
        schema_version=row["schema_version"],
        object_version=row["object_version"],
        object_size=row["object_size"],
        sequencer=row["sequencer"],
        raw=RawReference(
            sqs_message_id=row["sqs_message_id"],
            sns_message_id=row["sns_message_id"],
            topic_arn=row["topic_arn"],
            subject=row["subject"],
        ),
        lane=Lane(row["lane"]),
        replay_reason=row["replay_reason"],
        replay_run_id=row["replay_run_id"],
        attempt=row["attempt"],
        record_version=row["record_version"],
        integrity=_integrity(row),
        metadata=_metadata(row),
        stac=_stac(row),
        provenance=_provenance(row),
        # Batches of earlier releases have no such column.
        gate_issues=_issues(row["gate_issues"]) if row.get("gate_issues") else (),
    )


def _integrity(row: dict[str, Any]) -> Integrity | None:
    if row["integrity_status"] is None:
        return None
    return Integrity(
        status=CheckStatus(row["integrity_status"]),
        actual_size_bytes=row["actual_size_bytes"],
        actual_etag=row["actual_etag"],
        checks_run=tuple(row["integrity_checks"]),
        issues=_issues(row["integrity_issues"]),
    )


def _metadata(row: dict[str, Any]) -> Metadata | None:
    if row["metadata_status"] is None:
        return None
    return Metadata(
        status=CheckStatus(row["metadata_status"]),
        geometry=None if row["geometry"] is None else orjson.loads(row["geometry"]),
        bbox=None if row["bbox"] is None else tuple(row["bbox"]),
        stac_properties=orjson.loads(row["stac_properties"]),
        sidecars=orjson.loads(row["sidecars"]),
        checks_run=tuple(row["metadata_checks"]),
        issues=_issues(row["metadata_issues"]),
    )


def _stac(row: dict[str, Any]) -> StacResult | None:
    if row["stac_status"] is None:
        return None
    return StacResult(
        write_status=StacStatus(row["stac_status"]),
        item_id=row["stac_item_id"],
        collection_id=row["stac_collection_id"],
        item_href=row["stac_item_href"],
        content_sha256=row["stac_content_sha256"],
        superseded=row["superseded"],
        superseded_by=row["superseded_by"],
        replaces=row["replaces"],
        issues=_issues(row["stac_issues"]),
    )


def _provenance(row: dict[str, Any]) -> ProvenanceResult | None:
    if row["provenance_status"] is None:
        return None
    return ProvenanceResult(
        status=ProvenanceStatus(row["provenance_status"]),
        activity_id=row["activity_id"],
        entity_ids=tuple(row["entity_ids"]),
        agent_ids=tuple(row["agent_ids"]),
        openlineage_run_id=row["openlineage_run_id"],
        issues=_issues(row["provenance_issues"]),
    )


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _issues_text(issues: Sequence[Issue]) -> str:
    return _json([{"code": issue.code, "severity": issue.severity.value, "message": issue.message} for issue in issues])


def _issues(text: str) -> tuple[Issue, ...]:
    return tuple(
        Issue(code=item["code"], severity=Severity(item["severity"]), message=item["message"])
        for item in orjson.loads(text)
    )


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
