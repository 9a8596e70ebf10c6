"""Deliveries: messages, their units, and when a message may leave the queue.

Every announced unit has a record, because a transaction that records a message (`Deliveries.record`) first records its
units (`Ledger.ensure`). Belongs here: messages and their states, and the balance of received units and messages
(conservation). Does not belong here: SQS itself (`notifications/`), or the status of a unit (`store.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.ledger.rejections import (
    ANY_REJECTION,
    IgnoredRecord,
    KeptRejection,
    Rejection,
    RejectionFilter,
    RejectionPlace,
    ignored_rows,
    place_after,
    rejection_rows,
)
from kfm_dagster.ledger.rows import bounded
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.statements import value_of
from kfm_dagster.telemetry.totals import Total, Totals


@unique
class DeliveryState(StrEnum):
    """State of a message."""

    IN_FLIGHT = "in_flight"
    """On the queue until each of its units is terminal."""
    REJECTED = "rejected"
    """At least one entry of the message was rejected. The reason is stored, and the queue's redrive policy applies."""
    IGNORED = "ignored"
    """The message announces no object to ingest (a test event, a sidecar), and is deleted immediately."""
    DELETED = "deleted"
    """On no queue any more, because it was acknowledged, redriven under another id, or discarded by a person."""
    DEAD_LETTERED = "dead_lettered"
    """On the dead-letter queue, where the message waits for a drain, a redrive or a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A received message. `landing_sha256` is the digest of the landed batch with its raw bytes."""

    message_id: str
    queue: str
    receipt_handle: str = field(repr=False)
    landing_sha256: str
    sns_message_id: str | None = None
    topic_arn: str | None = None
    wal_ids: tuple[WalId, ...] = ()
    ignored: tuple[IgnoredRecord, ...] = ()
    authenticity: str = "unchecked"
    """Result of the signature check (`notifications/authenticity.py`)."""
    state: DeliveryState = DeliveryState.IN_FLIGHT


@dataclass(frozen=True, kw_only=True, slots=True)
class DueMessage:
    """A message to delete or to make visible later, with its receipt handle."""

    message_id: str
    queue: str
    receipt_handle: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class DueBackoff(DueMessage):
    """A message with failed units, and the whole seconds until the last of these is due again."""

    seconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMessage(DueMessage):
    """A message in flight with a unit of `dataset` that a run holds."""

    dataset: str
    received_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Conservation:
    """Both sides of the balance: received units and messages, and their states (BEY-03)."""

    units_received: int
    units: Mapping[Status, int]
    messages_received: int
    messages: Mapping[DeliveryState, int]
    """Messages by state. Lost messages are left out: in flight without a unit, or rejected without a reason."""

    @property
    def residual_units(self) -> int:
        """Received units without a status; zero when no unit is lost."""
        return self.units_received - sum(self.units.values())

    @property
    def residual_messages(self) -> int:
        """Received messages in no state; zero when no message is lost."""
        return self.messages_received - sum(self.messages.values())


class Deliveries:
    """The received messages of a deployment."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def record(self, deliveries: Iterable[Delivery], *, tx: Transaction) -> None:
        """Record messages, the units they announce, and the reasons for their ignored entries.

        If a message is received again, its row gets the new receipt handle and state, and its number of receives rises.
        So a message is in flight again if its deletion had no effect.
        """
        newest: dict[str, Delivery] = {}
        receives: dict[str, int] = {}
        units: set[tuple[str, str]] = set()
        for delivery in deliveries:
            newest[delivery.message_id] = delivery
            receives[delivery.message_id] = receives.get(delivery.message_id, 0) + 1
            units |= {(delivery.message_id, wal_id) for wal_id in delivery.wal_ids}
        batch = [_delivery_row(delivery, receives[delivery.message_id]) for delivery in newest.values()]
        pairs = [{"message_id": message_id, "wal_id": wal_id} for message_id, wal_id in sorted(units)]
        ignored = [row for delivery in newest.values() for row in ignored_rows(delivery.message_id, delivery.ignored)]
        tx.run("deliveries.record", batch=batch, at=self._clock())
        tx.run("deliveries.record_units", batch=pairs)
        tx.run("deliveries.record_ignored", batch=ignored, at=self._clock())

    def reject(self, rejections: Iterable[Rejection], *, tx: Transaction) -> None:
        """Store rejected entries with their reason; their messages become rejected.

        Call `record` for the messages first. If a message is received again, each entry's first rejection is kept.
        """
        entries = list(rejections)
        tx.run("deliveries.reject", batch=rejection_rows(entries), at=self._clock())
        rejected = sorted({entry.message_id for entry in entries})
        tx.run("deliveries.mark", message_ids=rejected, state=DeliveryState.REJECTED, at=None)

    def due_for_deletion(self, *, limit: int) -> list[DueMessage]:
        """Return the messages to delete: ignored, or with all units succeeded or quarantined."""
        with self._database.snapshot() as tx:
            return tx.rows(DueMessage, "deliveries.due_for_deletion", limit=limit)

    def due_for_backoff(self, wal_ids: Iterable[str]) -> list[DueBackoff]:
        """Return the messages in flight with a failed unit of `wal_ids` that is retried later."""
        now = self._clock()
        with self._database.snapshot() as tx:
            rows = tx.run("deliveries.due_for_backoff", wal_ids=sorted(wal_ids)).mappings().all()
        seconds = (max(0, math.ceil((row["next_attempt_at"] - now).total_seconds())) for row in rows)
        return [value_of(DueBackoff, {**row, "seconds": wait}) for row, wait in zip(rows, seconds, strict=True)]

    def held_by(self, run_id: str, *, after: str, limit: int) -> list[HeldMessage]:
        """Return the messages in flight whose units a run holds, sorted by id, after the id `after`."""
        with self._database.snapshot() as tx:
            return tx.rows(HeldMessage, "deliveries.held_by", run_id=run_id, after=after, limit=limit)

    def mark_acknowledged(self, taken: Iterable[DueMessage]) -> None:
        """Mark messages as deleted, because SQS accepted their deletion by these receipts.

        A message that was received again stays in flight and is due under its newer receipt, because SQS may accept an
        old receipt without deleting the message (DeleteMessage in the SQS API reference).
        """
        pairs = sorted((entry.message_id, entry.receipt_handle) for entry in taken)
        batch = [{"message_id": message_id, "receipt_handle": receipt} for message_id, receipt in pairs]
        with self._database.transaction() as tx:
            tx.run("deliveries.mark_acknowledged", batch=batch, at=self._clock())

    def mark_deleted(self, message_ids: Iterable[str]) -> None:
        """Mark messages as deleted by id, because some dead letters have no recorded receipt."""
        with self._database.transaction() as tx:
            deleted = {"message_ids": sorted(message_ids), "state": DeliveryState.DELETED}
            tx.run("deliveries.mark", deleted, at=self._clock())

    def mark_dead_lettered(self, message_ids: Iterable[str], *, queue: str, tx: Transaction) -> None:
        """Mark messages as dead-lettered on `queue`.

        A message that a drain has received from `queue` keeps its state (in flight, ignored or deleted), unless it was
        rejected.
        """
        ids = sorted(message_ids)
        self.count_dead_letters(ids, queue=queue, tx=tx)
        tx.run("deliveries.dead_letter", message_ids=ids, queue=queue, at=self._clock())

    def count_dead_letters(self, message_ids: Iterable[str], *, queue: str, tx: Transaction) -> None:
        """Count the messages that are new on this queue, i.e. were last received from another queue."""
        totals = Totals()
        for row in tx.run("deliveries.newly_dead", message_ids=sorted(message_ids), queue=queue):
            totals.add(Total.DEAD_LETTERS, row.dataset or "")
        totals.write(tx)

    def states(self, message_ids: Iterable[str]) -> dict[str, DeliveryState]:
        """Return the states of messages; messages that were never received are omitted."""
        with self._database.snapshot() as tx:
            rows = tx.run("deliveries.states", message_ids=sorted(message_ids)).all()
        return {row.message_id: DeliveryState(row.state) for row in rows}

    def verified(self, message_ids: Iterable[str]) -> frozenset[str]:
        """Return the messages that had a valid signature of their topic when received before."""
        with self._database.snapshot() as tx:
            rows = tx.run("deliveries.states", message_ids=sorted(set(message_ids))).all()
        return frozenset(row.message_id for row in rows if row.signature == "verified")

    def rejected(
        self, criteria: RejectionFilter = ANY_REJECTION, *, after: RejectionPlace | None = None, limit: int = 100
    ) -> list[KeptRejection]:
        """Return the rejections, newest first; `after` is the last rejection of the page before."""
        conditions = {"reason_code": criteria.reason, "message_id": criteria.message, **place_after(after)}
        with self._database.snapshot() as view:
            return view.rows(KeptRejection, "deliveries.rejected", conditions, limit=limit)

    def rejected_landing(self, message_id: str) -> str | None:
        """Return the landed batch of a message with a rejected entry, or None."""
        with self._database.snapshot() as view:
            digest: str | None = view.run("deliveries.rejected_landing", message_id=message_id).scalar_one_or_none()
            return digest

    def counts(self) -> dict[DeliveryState, int]:
        """Return the number of messages by state, zeros included."""
        with self._database.snapshot() as tx:
            counts = {DeliveryState(row.state): int(row.messages) for row in tx.run("deliveries.counts")}
        return dict.fromkeys(DeliveryState, 0) | counts

    def duplicates(self) -> dict[str, int]:
        """Return by dataset the number of messages whose unit was announced before."""
        with self._database.snapshot() as tx:
            return {row.dataset: int(row.duplicates) for row in tx.run("deliveries.duplicates")}

    def conservation(self) -> Conservation:
        """Return both sides of the balance of units and messages."""
        with self._database.snapshot() as tx:
            # A single statement reads both sides at the same moment, also in PostgreSQL.
            account = {(row.side, row.name): int(row.amount) for row in tx.run("deliveries.conservation")}
        return Conservation(
            units_received=account["units_received", ""],
            units={status: account.get(("units", status), 0) for status in Status},
            messages_received=account["messages_received", ""],
            messages={state: account.get(("messages", state), 0) for state in DeliveryState},
        )


def _delivery_row(delivery: Delivery, receives: int) -> dict[str, Any]:
    return {
        "message_id": delivery.message_id,
        "queue": delivery.queue,
        "receipt_handle": delivery.receipt_handle,
        "receives": receives,
        "landing_sha256": delivery.landing_sha256,
        "sns_message_id": bounded(delivery.sns_message_id),
        "topic_arn": bounded(delivery.topic_arn),
        "signature": delivery.authenticity,
        "state": delivery.state,
    }
