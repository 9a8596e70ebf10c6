"""Intake: one tick of taking messages in - receive, land, parse, record.

A tick lands the raw messages before it looks at them, keeps what cannot be parsed with its reason, and makes a pending
ledger record for every unit in the same transaction as its delivery. So a message that has been received is never
without a record, whatever dies next, and back-pressure can count. Runs are planned elsewhere (`ingest/plan.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Delivery, DeliveryState, Rejection
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import ParsedMessage, parse_message


@dataclass(frozen=True, kw_only=True)
class IntakeReport:
    """What one tick took in.

    `landed` maps (dataset, partition) to the digests of the batches that hold its units; `full` says that nothing was
    received because too many units are in flight.
    """

    received: int = 0
    created: int = 0
    readmitted: int = 0
    known: int = 0
    ignored: int = 0
    rejected: int = 0
    deleted: int = 0
    full: bool = False
    landed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


def take_in(pipeline: Pipeline) -> IntakeReport:
    """Receive one run's worth of messages at most, unless too many units are in flight, and record them.

    One batch a tick: its run starts while the next tick receives. Raises QueueUnavailableError and
    DatabaseUnavailableError; what was received and not recorded comes back after its visibility timeout.
    """
    settings = pipeline.settings
    deleted = pipeline.acknowledge()
    room = settings.max_in_flight_units - pipeline.ledger.in_flight()
    if room <= 0:
        return IntakeReport(deleted=deleted, full=True)
    messages = pipeline.queue.receive(
        min(room, settings.max_units_per_run),
        budget_seconds=settings.tick_budget_seconds,
        threads=settings.receive_threads,
    )
    if not messages:
        return IntakeReport(deleted=deleted)
    report = record(pipeline, messages)
    return dataclasses.replace(report, deleted=deleted + pipeline.acknowledge())


def record(pipeline: Pipeline, messages: Sequence[SqsMessage]) -> IntakeReport:
    """Land a batch of messages, parse it, and record deliveries, units and rejections in one transaction."""
    landed = pipeline.landing.land(messages)
    queue = pipeline.settings.sqs_primary_queue
    parsed = [parse_message(message, registry=pipeline.registry, queue=queue) for message in messages]
    units: dict[WalId, Envelope] = {unit.wal_id: unit for one in parsed for unit in one.envelopes}
    with pipeline.database.transaction() as tx:
        ensured = pipeline.ledger.ensure(list(units.values()), tx=tx)
        failed = [wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED]
        readmitted = pipeline.ledger.readmit(failed, reason="retry", tx=tx)
        pipeline.deliveries.record(
            [
                delivery_of(message, one, queue=queue, landing_sha256=landed.digest)
                for message, one in zip(messages, parsed, strict=True)
            ],
            tx=tx,
        )
        pipeline.deliveries.reject(
            [entry for message, one in zip(messages, parsed, strict=True) for entry in rejections_of(message, one)],
            tx=tx,
        )
    # A message that gave nothing but rejections comes back at once, so that the redrive policy takes it to the DLQ.
    poison = [
        message.receipt_handle or ""
        for message, one in zip(messages, parsed, strict=True)
        if one.rejections and not one.envelopes
    ]
    if poison:
        pipeline.queue.change_visibility([(receipt, 0) for receipt in poison])
    work = {unit.wal_id for unit in units.values() if unit.wal_id in ensured.created} | set(readmitted)
    return IntakeReport(
        received=len(messages),
        created=len(ensured.created),
        readmitted=len(readmitted),
        known=len(ensured.existing) - len(readmitted),
        ignored=sum(len(one.ignored) for one in parsed),
        rejected=sum(len(one.rejections) for one in parsed),
        landed={(units[wal_id].dataset, units[wal_id].partition): (landed.digest,) for wal_id in work},
    )


def rejections_of(message: SqsMessage, parsed: ParsedMessage) -> list[Rejection]:
    """Return what the ledger keeps of the records that gave no unit."""
    return [
        Rejection(
            message_id=message.message_id,
            record_index=rejection.record_index or 0,
            reason_code=rejection.code.value,
            detail=rejection.message,
            body=message.body,
        )
        for rejection in parsed.rejections
    ]


def delivery_of(message: SqsMessage, parsed: ParsedMessage, *, queue: str, landing_sha256: str) -> Delivery:
    """Return what the ledger keeps of one receive of a message, from the queue of that name."""
    raw = parsed.envelopes[0].raw if parsed.envelopes else None
    return Delivery(
        message_id=message.message_id,
        queue=queue,
        receipt_handle=message.receipt_handle or "",
        landing_sha256=landing_sha256,
        sns_message_id=raw.sns_message_id if raw else None,
        topic_arn=raw.topic_arn if raw else None,
        wal_ids=tuple(unit.wal_id for unit in parsed.envelopes),
        state=DeliveryState.IN_FLIGHT if parsed.envelopes or parsed.rejections else DeliveryState.IGNORED,
    )
