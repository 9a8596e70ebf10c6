"""Recording: write a batch of parsed messages or of listed objects to the ledger.

Units, deliveries and rejections are written in the caller's transaction, for messages of the queue and of its
dead-letter queue. If the database refuses a row, a rejection with the error text is recorded instead, and the other
rows are written. Does not belong here: receiving (`intake.py`), the dead-letter queue (`recovery/`), listing
(`storage/objects.py`), the Item of a closed volume (`readers/nexrad_chunk.py`).

Completion (ADR 019): after the late announcement of a sidecar, a unit reads the data object once more. Closing (ADR
028): a later volume of the radar closes a volume without an end chunk; a unit then reads the closed volume's newest
chunk again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Sequence

from kfm_dagster.contracts.envelope import CLOSED, COMPLETED_BY, Envelope, Lane, RawReference, WalId
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.ledger.deliveries import Deliveries, Delivery, DeliveryState
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
    """Record every unit of the messages; in the returned messages, refused units are rejections."""
    units = {unit.wal_id: unit for message in parsed for unit in message.envelopes}
    ensured = ledger.ensure(units.values(), lane=lane, tx=tx)
    return ensured, [message.without(ensured.refused) for message in parsed]


def created_of(ensured: EnsureResult, parsed: Sequence[ParsedMessage]) -> list[Envelope]:
    """Return the messages' units whose ledger records are new."""
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
    """Record messages from `queue` with the ids of their units, and their rejections.

    Returns the ids of the messages with rejections.
    """

    def write(part: Sequence[tuple[Delivery, Sequence[Rejection]]]) -> None:
        deliveries.record([delivery for delivery, _ in part], tx=tx)
        deliveries.reject([entry for _, rejections in part for entry in rejections], tx=tx)

    entries = [
        (_delivery(message, result, queue=queue, landing_sha256=landing_sha256), result.rejections)
        for message, result in zip(messages, parsed, strict=True)
    ]
    _, refused = write_all_but_refused(tx, entries, write)
    if refused:
        # Recorded without the sender's text, which the landing zone has.
        write([_refused(delivery, reason) for (delivery, _), reason in refused])
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
            totals.add(Total.PARSE_FAILURES, label=rejection.reason_code, amount=rejection.records)
    totals.add(Total.PARSE_FAILURES, label=ParseIssue.DATABASE_REFUSED, amount=database_refused)
    return totals


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
        ignored=parsed.ignored,
        authenticity=parsed.verdict.authenticity.value,
        state=DeliveryState.IN_FLIGHT if parsed.envelopes or parsed.rejections else DeliveryState.IGNORED,
    )


def _refused(delivery: Delivery, reason: str) -> tuple[Delivery, list[Rejection]]:
    bare = dataclasses.replace(delivery, sns_message_id=None, topic_arn=None, ignored=(), state=DeliveryState.IN_FLIGHT)
    code = ParseIssue.DATABASE_REFUSED
    return bare, [Rejection(message_id=delivery.message_id, record_index=0, reason_code=code, detail=reason)]


def complete(ledger: Ledger, parsed: Iterable[ParsedMessage], tx: Transaction) -> int:
    """Create pending units for objects read without a sidecar that `parsed` announces.

    An object whose unit is pending or will be retried needs no such unit, because that unit's next run finds the
    sidecar: a sidecar is written before it is announced. A unit in progress may have looked for the sidecar too early,
    so its object gets a new unit. New units wait in the bulk lane. They are recorded, so the message can be deleted.
    Returns the number of new units.
    """
    announced: dict[str, tuple[str, str, str]] = {}
    for message in parsed:
        for ignored in message.ignored:
            if ignored.sidecar_version is None or ignored.dataset is None or ignored.key is None:
                continue
            suffixes = [sidecar.suffix for sidecar in ledger.registry[ignored.dataset].storage.sidecars]
            suffix = next(suffix for suffix in suffixes if ignored.key.endswith(suffix))
            # One announcement per object is enough, because reading the object again finds every sidecar.
            uri = f"s3://{ignored.bucket}/{ignored.key.removesuffix(suffix)}"
            announced[uri] = (suffix, ignored.sidecar_version, message.message_id)
    if not announced:
        return 0
    lacking = ledger.lacking_sidecars(announced, tx=tx)
    units = [completion_of(unit, *announced[unit.object_uri]) for unit in lacking]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0


def completion_of(unit: Envelope, suffix: str, version: str, message_id: str) -> Envelope:
    """Return the unit that reads an object again because of a late sidecar.

    `version` is the sidecar's ETag, or empty. Each pair of an object's and a sidecar's version has one such unit. That
    unit has the times of the object's own unit, so a newer unit of the object supersedes both units.
    """
    versions = f"{unit.object_version or ''}{COMPLETED_BY}{suffix}={version}"
    return _read_again(unit, version=versions, message_id=message_id)


def close(ledger: Ledger, created: Iterable[Envelope], tx: Transaction) -> int:
    """Create a pending unit for each volume that new units close; return the number.

    Runs in the transaction that admits the units. A chunk closes the previous volume of its radar, and its own volume
    if a later volume is known, so that the order of admission does not matter. A volume with an end chunk gets no
    closing unit. A closing unit has the times and the number of the volume's newest chunk, and the version CLOSED. So
    its Item replaces the chunk's Item, and the Item of a chunk that arrives later replaces the closing unit's Item.
    """
    feeds = {contract.id for contract in ledger.registry if not contract.notifications.names_versions}
    chunks = [unit.wal_id for unit in created if unit.dataset in feeds]
    if not chunks:
        return 0
    endless = ledger.endless_volumes(chunks, tx=tx)
    units = [_read_again(chunk, version=CLOSED, message_id=chunk.raw.sqs_message_id) for chunk in endless]
    return len(ledger.ensure(units, lane=Lane.BULK, tx=tx).created) if units else 0


def _read_again(unit: Envelope, *, version: str, message_id: str | None) -> Envelope:
    """Return a bulk unit that reads an object once more, with another version and message."""
    return unit.evolve(
        wal_id=wal_id(
            dataset=unit.dataset,
            object_uri=unit.object_uri,
            time_range_start=unit.time_range_start,
            object_version=version,
        ),
        object_version=version,
        raw=RawReference(sqs_message_id=message_id),
        lane=Lane.BULK,
        replay_reason=None,
        replay_run_id=None,
        attempt=0,
        record_version=0,
    )
