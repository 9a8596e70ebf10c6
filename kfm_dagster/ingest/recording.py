"""Recording: write a batch of parsed messages or of listed objects to the ledger.

Belongs here: units, deliveries and rejections in the caller's transaction, so that every received message is recorded,
from either queue; and rows that the database refuses, which are rejected with its error text and do not affect others.
Does not belong here: receiving (`intake.py`), the dead-letter queue (`recovery/`), listing (`storage/objects.py`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Sequence

from kfm_dagster.contracts.envelope import Envelope, Lane, WalId
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.ingest.read_again import close
from kfm_dagster.ledger.deliveries import Deliveries, Delivery, DeliveryState
from kfm_dagster.ledger.ignored import IgnoredRecord
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.rejections import Rejection
from kfm_dagster.ledger.reports import EnsureResult
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import ParsedMessage
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.refusal import write_all_but_refused
from kfm_dagster.telemetry.totals import RecordUse, Total, Totals

_LOG = logging.getLogger(__name__)


def enter_listed(ledger: Ledger, chunk: Sequence[Envelope], tx: Transaction) -> tuple[EnsureResult, Collection[WalId]]:
    """Record listed objects in the bulk lane, and requeue failed units. Safe to repeat.

    Returns the outcome for the units, and the requeued units.
    """
    ensured = ledger.ensure(chunk, lane=Lane.BULK, tx=tx)
    failed = [wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED]
    requeued = ledger.requeue(failed, reason=ReplayReason.BACKFILL, tx=tx)
    close(ledger, (unit for unit in chunk if unit.wal_id in ensured.created), tx)
    for unit in chunk:
        if unit.wal_id in ensured.refused:
            _LOG.warning("the database refuses %s: %s", unit.object_uri, ensured.refused[unit.wal_id])
    return ensured, requeued


def ensure_units(
    ledger: Ledger, parsed: Sequence[ParsedMessage], *, lane: Lane = Lane.LIVE, tx: Transaction
) -> tuple[EnsureResult, list[ParsedMessage]]:
    """Record every unit of the messages; return the messages with refused units as rejections."""
    units = {unit.wal_id: unit for message in parsed for unit in message.envelopes}
    ensured = ledger.ensure(units.values(), lane=lane, tx=tx)
    return ensured, [message.without(ensured.refused) for message in parsed]


def created_of(ensured: EnsureResult, parsed: Sequence[ParsedMessage]) -> list[Envelope]:
    """Return the units of the messages whose records are new."""
    return [unit for message in parsed for unit in message.envelopes if unit.wal_id in ensured.created]


def record_messages(
    deliveries: Deliveries,
    messages: Sequence[SqsMessage],
    parsed: Sequence[ParsedMessage],
    *,
    queue: str,
    landing_sha256: str,
    tx: Transaction,
) -> set[str]:
    """Record messages from `queue`, the units that they announce, and their rejections.

    Returns the ids of the messages with rejections.
    """

    def write(part: Sequence[tuple[Delivery, list[Rejection]]]) -> None:
        deliveries.record([delivery for delivery, _ in part], tx=tx)
        deliveries.reject([entry for _, rejections in part for entry in rejections], tx=tx)

    entries = [
        (delivery_of(message, result, queue=queue, landing_sha256=landing_sha256), rejections_of(message, result))
        for message, result in zip(messages, parsed, strict=True)
    ]
    _, refused = write_all_but_refused(tx, entries, write)
    if refused:
        # Without text from the sender; the landing zone has the message.
        write([(_bare(delivery), [_refusal(delivery, reason)]) for (delivery, _), reason in refused])
    _count(parsed, database_refused=len(refused)).write(tx)
    rejected = [delivery for delivery, rejections in entries if rejections]
    return {delivery.message_id for delivery in (*rejected, *(delivery for (delivery, _), _ in refused))}


def _count(parsed: Iterable[ParsedMessage], *, database_refused: int) -> Totals:
    totals = Totals()
    for message in parsed:
        for unit in message.envelopes:
            totals.add(Total.MESSAGES_PARSED, unit.dataset, RecordUse.PARSED)
        for ignored in message.ignored:
            totals.add(Total.MESSAGES_PARSED, ignored.dataset or "", RecordUse.IGNORED)
        for rejection in message.rejections:
            totals.add(Total.PARSE_FAILURES, label=rejection.code, amount=rejection.records)
    totals.add(Total.PARSE_FAILURES, label=ParseIssue.DATABASE_REFUSED, amount=database_refused)
    return totals


def rejections_of(message: SqsMessage, parsed: ParsedMessage) -> list[Rejection]:
    """Return the ledger's rows for a message's rejected records."""
    return [
        Rejection(
            message_id=message.message_id,
            record_index=rejection.record_index or 0,
            reason_code=rejection.code.value,
            detail=rejection.message,
            records=rejection.records,
        )
        for rejection in parsed.rejections
    ]


def delivery_of(message: SqsMessage, parsed: ParsedMessage, *, queue: str, landing_sha256: str) -> Delivery:
    """Return the ledger's row for one receive of a message from `queue`."""
    raw = parsed.envelopes[0].raw if parsed.envelopes else None
    return Delivery(
        message_id=message.message_id,
        queue=queue,
        receipt_handle=message.receipt_handle or "",
        landing_sha256=landing_sha256,
        sns_message_id=raw.sns_message_id if raw else None,
        topic_arn=raw.topic_arn if raw else None,
        wal_ids=tuple(unit.wal_id for unit in parsed.envelopes),
        ignored=tuple(
            IgnoredRecord(
                record_index=record.record_index or 0,
                reason=record.reason.value,
                dataset=record.dataset,
                bucket=record.bucket,
                key=record.key,
            )
            for record in parsed.ignored
        ),
        authenticity=parsed.verdict.authenticity.value,
        state=DeliveryState.IN_FLIGHT if parsed.envelopes or parsed.rejections else DeliveryState.IGNORED,
    )


def _bare(delivery: Delivery) -> Delivery:
    return dataclasses.replace(delivery, sns_message_id=None, topic_arn=None, ignored=(), state=DeliveryState.IN_FLIGHT)


def _refusal(delivery: Delivery, reason: str) -> Rejection:
    return Rejection(
        message_id=delivery.message_id,
        record_index=0,
        reason_code=ParseIssue.DATABASE_REFUSED,
        detail=reason,
    )
