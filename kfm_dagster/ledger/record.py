"""The ledger record: its model, its published JSON Schema, and its rebuilding from the history.

Belongs here: the shape of a row of `nodd_wal_records` and of `nodd_wal_transitions`. The tables are in
`sql/schema/0001_first_schema.sql`; a test makes model, schema and both tables agree. Does not belong here: SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy import RowMapping

from kfm_dagster.contracts.envelope import CheckStatus, Lane, Priority, ProvenanceStatus, StacStatus
from kfm_dagster.ledger.redaction import MAX_MESSAGE_LENGTH
from kfm_dagster.ledger.state_machine import Status

EXTENSION_COLUMNS: tuple[tuple[str, str], ...] = (
    ("object_version", "a rewritten object (new ETag) is another unit, so the version is part of the identity"),
    ("object_size", "integrity-check compares the announced size with the stored one"),
    ("sequencer", "orders the events of one key (S3 event notification)"),
    ("partition_key", "claims go by UTC day"),
    ("priority", "claims take urgent units first"),
    ("schema_version", "which version of the message shape was parsed"),
    ("sqs_message_id", "which message announced the unit first"),
    ("sns_message_id", "which notification announced the unit first"),
    ("topic_arn", "which topic announced the unit first"),
    ("subject", "the notification's subject"),
    ("next_attempt_at", "when a failed unit is due again"),
    ("changed_by", "who made the last change; the history copies it"),
    ("change_reason", "why the last change was made; the history copies it"),
    ("extension", "the dataset's own fields, from the groups of its key grammar"),
    ("lane", "live units never wait for a backfill or a replay"),
    ("replay_run_id", "which replay let the unit in again"),
)
"""Columns beside the canonical fields, each with its reason (NODD WAL specification, section 3, last paragraph)."""


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


Timestamp = Annotated[AwareDatetime, AfterValidator(_utc)]
WalIdText = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class NoddWalRecord(BaseModel):
    """What became of one object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wal_id: WalIdText = Field(description="Deterministic UUID of dataset, object, start and version.")
    dataset: str = Field(description="Dataset id of the contract.")
    object_uri: str = Field(description="The object, e.g. s3://bucket/key.")
    provider: str = Field(description="Cloud that holds the object: aws, azure or gcp.")
    queue: str = Field(description="Logical name of the queue, or of the source that stands for it.")
    event_time: Timestamp = Field(description="When the source says that the object was written.")
    time_range_start: Timestamp = Field(description="First instant that the object covers.")
    time_range_end: Timestamp = Field(description="Last instant that the object covers.")
    status: Status = Field(description="State of the unit.")
    attempts: int = Field(ge=0, description="Claims so far.")
    last_attempt_at: Timestamp | None = Field(description="When the last claim was made.")
    last_error_code: str | None = Field(max_length=100, description="Why the last attempt failed; null after success.")
    last_error_message: str | None = Field(max_length=MAX_MESSAGE_LENGTH, description="The same for people, redacted.")
    integrity_status: CheckStatus = Field(description="Finding of integrity-check.")
    metadata_status: CheckStatus = Field(description="Finding of metadata-extract.")
    stac_status: StacStatus = Field(description="Outcome of stac-register.")
    provenance_status: ProvenanceStatus = Field(description="Outcome of provenance-emit.")
    stac_item_id: str | None = Field(description="STAC Item of the object.")
    stac_collection_id: str | None = Field(description="STAC Collection of the Item.")
    stac_item_href: str | None = Field(description="Where the Item stands, relative to the catalog.")
    ingest_run_id: str | None = Field(description="Run that changed the record last; null before the first claim.")
    worker_id: str | None = Field(description="Logical worker of the last claim, no host name; null before the first.")
    replay_reason: str | None = Field(description="Why the unit was tried again; null when it never was.")
    created_at: Timestamp = Field(description="When the unit was discovered.")
    updated_at: Timestamp = Field(description="When the record changed last.")
    version: int = Field(ge=1, description="Rises by one with every change.")

    object_version: str | None = Field(description="ETag announced by the source, without quotes.")
    object_size: int | None = Field(description="Size announced by the source, in bytes.")
    sequencer: str | None = Field(description="Order of events of one key.")
    partition_key: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="UTC day of time_range_start.")
    priority: Priority = Field(description="How urgent the unit is.")
    schema_version: str = Field(description="Version of the message shape.")
    sqs_message_id: str | None = Field(description="First message that announced the unit.")
    sns_message_id: str | None = Field(description="Its notification.")
    topic_arn: str | None = Field(description="Its topic.")
    subject: str | None = Field(description="Its subject.")
    next_attempt_at: Timestamp | None = Field(description="When a failed unit is due again; null otherwise.")
    changed_by: str = Field(description="Actor of the last change.")
    change_reason: str = Field(description="Reason of the last change.")
    extension: dict[str, Any] = Field(description="Fields that the dataset's contract declares.")
    # The defaults are for histories that were written before the columns existed.
    lane: Lane = Field(Lane.LIVE, description="Whose turn the unit waits for.")
    replay_run_id: str | None = Field(None, description="Replay that let the unit in again last; null outside one.")


class HistoryEntry(BaseModel):
    """One change of one record.

    `fields` holds what the other columns do not: every column at version 1, then only the mutable ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    wal_id: WalIdText
    version: int
    at: Timestamp
    actor: str
    from_status: Status | None
    to_status: Status
    reason: str
    run_id: str | None
    attempts: int
    fields: dict[str, Any]


def published_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a record; published as docs/spec/nodd-wal-record.schema.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:kfm:nodd:wal-record:v1",
        **NoddWalRecord.model_json_schema(mode="serialization"),
    }


def replay_history(entries: Iterable[HistoryEntry]) -> NoddWalRecord:
    """Rebuild a record from its history alone. Raises ValueError when an entry is missing or does not follow."""
    state: dict[str, Any] = {}
    for number, entry in enumerate(entries, start=1):
        if entry.version != number or entry.from_status != state.get("status"):
            raise ValueError(f"history of {entry.wal_id} has a hole before version {entry.version}")
        state |= entry.fields
        state |= {
            "wal_id": entry.wal_id,
            "version": entry.version,
            "updated_at": entry.at,
            "changed_by": entry.actor,
            "status": entry.to_status,
            "change_reason": entry.reason,
            "ingest_run_id": entry.run_id,
            "attempts": entry.attempts,
        }
    if not state:
        raise ValueError("a history without an entry describes no record")
    return NoddWalRecord.model_validate(state)


def record_of(row: RowMapping) -> NoddWalRecord:
    """Read a row of `nodd_wal_records`."""
    return NoddWalRecord.model_validate(dict(row))
