"""Intake: one tick of taking messages in - receive, land, parse, record.

A tick lands the raw messages before it looks at them, keeps what cannot be parsed with its reason, and makes a pending
ledger record for every unit in the same transaction as its delivery. So a message that has been received is never
without a record, whatever dies next, and back-pressure can count. Runs are planned elsewhere (`ingest/plan.py`).
"""

from __future__ import annotations

import time
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
    """What one tick took in. `landed` maps (dataset, partition) to the digests of the batches that hold its units."""

    received: int = 0
    created: int = 0
    readmitted: int = 0
    known: int = 0
    ignored: int = 0
    rejected: int = 0
    deleted: int = 0
    landed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def plus(self, other: IntakeReport) -> IntakeReport:
        """Return the sum of two reports."""
        landed = dict(self.landed)
        for key, digests in other.landed.items():
            landed[key] = (*landed.get(key, ()), *digests)
        return IntakeReport(
            received=self.received + other.received,
            created=self.created + other.created,
            readmitted=self.readmitted + other.readmitted,
            known=self.known + other.known,
            ignored=self.ignored + other.ignored,
            rejected=self.rejected + other.rejected,
            deleted=self.deleted + other.deleted,
            landed=landed,
        )


def take_in(pipeline: Pipeline) -> IntakeReport:
    """Receive until the queue is empty, the time budget is over, or enough units are in flight.

    Raises QueueUnavailableError and DatabaseUnavailableError; whatever was received before is recorded.
    """
    settings = pipeline.settings
    deadline = time.monotonic() + settings.tick_budget_seconds
    report = IntakeReport(deleted=pipeline.acknowledge())
    while (left := deadline - time.monotonic()) > 0:
        room = settings.max_in_flight_units - pipeline.ledger.in_flight()
        if room <= 0:
            break
        messages = pipeline.queue.receive(
            max_messages=min(room, settings.max_units_per_run),
            budget_seconds=left,
            threads=settings.receive_threads,
        )
        if not messages:
            break
        report = report.plus(record(pipeline, messages))
    return report.plus(IntakeReport(deleted=pipeline.acknowledge()))


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
                _delivery(message, one, queue=queue, landing_sha256=landed.digest)
                for message, one in zip(messages, parsed, strict=True)
            ],
            tx=tx,
        )
        pipeline.deliveries.reject(
            [
                Rejection(
                    message_id=message.message_id,
                    record_index=rejection.record_index or 0,
                    reason_code=rejection.code.value,
                    detail=rejection.message,
                    body=message.body,
                )
                for message, one in zip(messages, parsed, strict=True)
                for rejection in one.rejections
            ],
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


def _delivery(message: SqsMessage, parsed: ParsedMessage, *, queue: str, landing_sha256: str) -> Delivery:
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
