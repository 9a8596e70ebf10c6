"""The ledger record: its model, its published JSON Schema, its rebuilding from the history.

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
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.redaction import MAX_MESSAGE_LENGTH


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


Timestamp = Annotated[AwareDatetime, AfterValidator(_utc)]
WalIdText = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


def _seen(example: object, source: str, elsewhere: str = "") -> dict[str, Any]:
    """Return a field's example, source and other occurrences, for docs/wal/record-model.md.

    Blanks separate the occurrences; `wal:` abbreviates the path of OpenLineage's facet `kfmWal`.
    """
    places = elsewhere.replace("wal:", "openlineage:run.facets.kfmWal.").split()
    return {"examples": [example], "json_schema_extra": {"x-source": source, "x-seen-as": places}}


class NoddWalRecord(BaseModel):
    """The state of a version of an object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wal_id: WalIdText = Field(
        description="Deterministic UUID of dataset, object, start and version.",
        **_seen(
            "5ab3d0c2-91f4-8d11-b0a7-3c7f7f0f5d21",
            "derived from dataset, object_uri, time_range_start and object_version",
            "item:properties.kfm:wal_id wal:wal_id prov:kfm:wal_id",
        ),
    )
    dataset: str = Field(
        description="Dataset id of the contract.",
        **_seen("nexrad-l2", "id of the matching contract", "item:properties.kfm:dataset wal:dataset"),
    )
    object_uri: str = Field(
        description="The object, e.g. s3://bucket/key.",
        **_seen(
            "s3://unidata-nexrad-level2/2025/12/03/KTLX/KTLX20251203_000357_V06",
            "s3:s3.bucket.name and s3.object.key, decoded",
            "item:assets.data.href prov:kfm:object_uri",
        ),
    )
    provider: str = Field(
        description="Cloud that holds the object: aws, azure or gcp.", **_seen("aws", "contract:storage.provider")
    )
    queue: str = Field(
        description="Name of the primary queue; for a listed object, of the queue in its contract.",
        **_seen("nodd-primary", "KFM_SQS_PRIMARY_QUEUE; for a listed object contract:queue.name"),
    )
    event_time: Timestamp = Field(
        description="Time at which the object was written, according to the source.",
        **_seen("2025-12-03T00:09:41Z", "s3:eventTime", "prov:event_time"),
    )
    time_range_start: Timestamp = Field(
        description="First instant that the object covers.",
        **_seen("2025-12-03T00:03:57Z", "contract:key grammar", "openlineage:run.facets.nominalTime.nominalStartTime"),
    )
    time_range_end: Timestamp = Field(
        description="Last instant that the object covers.",
        **_seen("2025-12-03T00:03:57Z", "contract:key grammar", "openlineage:run.facets.nominalTime.nominalEndTime"),
    )
    status: Status = Field(
        description="State of the unit.", **_seen("succeeded", "ledger: the [state machine](state-machine.md)")
    )
    attempts: int = Field(
        ge=0, description="Claims so far.", **_seen(1, "ledger: rises with every claim", "wal:attempt prov:kfm:attempt")
    )
    last_attempt_at: Timestamp | None = Field(
        description="Time of the last claim.", **_seen("2025-12-03T00:10:02Z", "ledger: the claim")
    )
    last_error_code: str | None = Field(
        max_length=100,
        description="Error code of the last attempt; null after success. A return to pending or a new claim keeps it.",
        **_seen("missing_object", "the first issue that removed the unit from the chain, or the ledger"),
    )
    last_error_message: str | None = Field(
        max_length=MAX_MESSAGE_LENGTH,
        description="Redacted text of that error: one line without credentials, e-mail addresses and stack traces.",
        **_seen("the object is not there", "the same, redacted"),
    )
    integrity_status: CheckStatus = Field(
        description="Result of integrity-check.",
        **_seen(
            "ok", "integrity_check", "item:properties.kfm:integrity wal:integrity_status prov:kfm:integrity_status"
        ),
    )
    metadata_status: CheckStatus = Field(
        description="Result of metadata-extract.",
        **_seen("ok", "metadata_extract", "wal:metadata_status prov:kfm:metadata_status"),
    )
    stac_status: StacStatus = Field(
        description="Outcome of stac-register.", **_seen("created", "stac_register", "wal:stac_status")
    )
    provenance_status: ProvenanceStatus = Field(
        description="Outcome of provenance-emit.", **_seen("ok", "provenance_emit")
    )
    stac_item_id: str | None = Field(
        description="STAC Item of the object.",
        **_seen("KTLX20251203_000357_V06", "stac_register", "item:id wal:stac_item_id prov:kfm:stac_item_id"),
    )
    stac_collection_id: str | None = Field(
        description="STAC Collection of the Item.",
        **_seen("nexrad-l2", "stac_register", "item:collection wal:stac_collection_id prov:kfm:stac_collection_id"),
    )
    stac_item_href: str | None = Field(
        description="Path of the Item, relative to the catalog.",
        **_seen(
            "nexrad-l2/2025/2025-12-03/KTLX20251203_000357_V06.json",
            "stac_register",
            "wal:stac_item_href prov:kfm:stac_item_href",
        ),
    )
    ingest_run_id: str | None = Field(
        description="Run that changed the record last; null before the first claim.",
        **_seen(
            "0b8f2c1e-6d1f-4c55-9a53-0d3a3f6f7f10",
            "Dagster: the root run",
            "item:properties.kfm:run_state.run_id openlineage:run.facets.kfmRunState.run_id prov:kfm:run_id",
        ),
    )
    worker_id: str | None = Field(
        description="Logical name of the worker of the last claim, not a host name; null before the first claim.",
        **_seen("nodd-worker", "KFM_WORKER_ID"),
    )
    replay_reason: str | None = Field(
        description="Reason of the last retry or replay; null without one.",
        **_seen("incident", "ledger: the requeue", "wal:replay_reason prov:kfm:replayReason"),
    )
    created_at: Timestamp = Field(
        description="When the unit was discovered.", **_seen("2025-12-03T00:09:44Z", "ledger")
    )
    updated_at: Timestamp = Field(
        description="When the record changed last.", **_seen("2025-12-03T00:10:05Z", "ledger")
    )
    version: int = Field(ge=1, description="Rises by one with every change.", **_seen(3, "ledger"))

    object_version: str | None = Field(
        description="ETag announced by the source, without quotes. A completion appends the sidecar's version; a "
        "closing has only `closed`.",
        **_seen(
            "9b2cf535f27731c974343645a3985328",
            "s3:s3.object.eTag",
            "openlineage:inputs.0.facets.version.datasetVersion prov:kfm:object_version",
        ),
    )
    object_size: int | None = Field(
        description="Size announced by the source, in bytes.",
        **_seen(
            5461020,
            "s3:s3.object.size",
            "item:assets.data.file:size openlineage:inputs.0.inputFacets.inputStatistics.size",
        ),
    )
    sequencer: str | None = Field(
        description="S3's text that orders the events of one key.",
        **_seen("00674F2A91B3C0D5E1", "s3:s3.object.sequencer"),
    )
    partition_key: str = Field(
        pattern=r"^\d{4}-\d{2}-\d{2}$",
        description="UTC day of time_range_start.",
        **_seen("2025-12-03", "derived from time_range_start"),
    )
    priority: Priority = Field(description="Urgency of the unit.", **_seen("normal", "contract:notifications.priority"))
    schema_version: str = Field(description="Version of the message's format.", **_seen("2.1", "s3:eventVersion"))
    sqs_message_id: str | None = Field(
        description="First message that announced the unit.",
        **_seen("11f0b1f4-3f0a-4d0e-8f1f-0b6a3a0a7e55", "sqs:MessageId", "prov:kfm:sqs_message_id"),
    )
    sns_message_id: str | None = Field(
        description="SNS notification in the first message.",
        **_seen("0f6f3a56-8c9b-5b1e-9a4e-6a1d2b0e9c11", "sns:MessageId", "prov:kfm:sns_message_id"),
    )
    topic_arn: str | None = Field(
        description="Topic of the SNS notification.",
        **_seen("arn:aws:sns:us-east-1:684042711724:NewNEXRADLevel2Object", "sns:TopicArn", "prov:kfm:topic_arn"),
    )
    subject: str | None = Field(
        description="Subject of the SNS notification.", **_seen("Amazon S3 Notification", "sns:Subject")
    )
    next_attempt_at: Timestamp | None = Field(
        description="When a failed unit is due again; null otherwise.",
        **_seen("2025-12-03T00:12:31Z", "ledger: backoff of the contract"),
    )
    changed_by: str = Field(
        description="Actor of the last change.", **_seen("nodd-worker", "ledger: a worker, or a person")
    )
    change_reason: str = Field(description="Reason of the last change.", **_seen("completed", "ledger"))
    extension: dict[str, Any] = Field(
        description="Fields that the dataset's contract declares.",
        **_seen({"station": "KTLX"}, "contract:ledger.extension_fields, from the key grammar"),
    )
    # Defaults for histories that are older than these columns.
    lane: Lane = Field(
        Lane.LIVE, description="Lane in which the unit waits.", **_seen("live", "ledger: the source of the unit")
    )
    replay_run_id: str | None = Field(
        None,
        description="Last replay that requeued the unit; null without one.",
        **_seen("replay-2025-12-03", "ledger: the replay", "wal:replay_run_id prov:kfm:replay_run_id"),
    )
    batch_limit: int | None = Field(
        None,
        ge=1,
        description="Maximum number of units in the next run that claims this unit, set after a run with several units "
        "died; null: no limit.",
        **_seen(250, "ledger: the dead run's batch, halved by each further death"),
    )


class HistoryEntry(BaseModel):
    """A change of a record.

    `fields` has the record's other values: all of them at version 1, later only the mutable values.
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


def replay_history(entries: Iterable[HistoryEntry]) -> NoddWalRecord:
    """Rebuild a record from its history. Raises ValueError for a missing or inconsistent entry."""
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
    """Read a row with the columns of `nodd_wal_records`; further columns are ignored."""
    return NoddWalRecord.model_validate({name: row[name] for name in NoddWalRecord.model_fields})
