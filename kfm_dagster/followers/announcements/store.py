"""Table `announcements`: the newest event of each Item, by subscription.

Does not belong here: the choice of events (`announcer.py`), changes to announce (the outbox `catalog_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.catalog.changes import ChangeKind
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.storage.database import Database

ERROR_LENGTH = 300


@unique
class AnnouncementState(StrEnum):
    """Outcome of an Item's newest event."""

    OPEN = "open"
    """The event is still to be sent, or was sent and its answer is not known."""
    SENT = "sent"
    REFUSED = "refused"
    """Given up; the event is kept until a person sends it again, or the Item changes."""
    SILENT = "silent"
    """Not sent, because the subscription does not want changes of this kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    """The newest event of an Item."""

    item_id: str
    change_id: int
    kind: ChangeKind
    event_id: str
    state: AnnouncementState
    known: bool = False
    """Whether the receiver has the Item; a SILENT event counts as accepted."""

    @property
    def is_over(self) -> bool:
        """Whether the Item is withdrawn for the receiver: its next event is `created`."""
        return self.kind is ChangeKind.WITHDRAWN and self.state is not AnnouncementState.OPEN


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionStatus:
    """Counts of a subscription: `sent` events, `waiting` changes, `failing` and `refused` Items."""

    sent: int
    waiting: int
    failing: int
    refused: int
    taken_at: datetime | None
    next_attempt_at: datetime | None
    last_error: str | None


class AnnouncementStore:
    """The rows of a subscription."""

    def __init__(self, database: Database, subscription: str, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._subscription = subscription
        self._clock = clock

    def announced(self, collection: str, item_ids: Iterable[str]) -> dict[str, Announced]:
        """Return the newest events of Items by Item id."""
        with self._database.snapshot() as view:
            rows = view.rows(Announced, "announcements.known", self._key(collection), item_ids=list(item_ids))
        return {announced.item_id: announced for announced in rows}

    def begin(self, collection: str, events: Sequence[Announced]) -> set[str]:
        """Record events before they are sent; return the ids that no later event supersedes.

        Because of this record, a receiver that possibly has an Item is notified of its withdrawal, even after a crash.
        """
        if not events:
            return set()
        parameters = {**self._key(collection), "events": [asdict(event) for event in events]}
        with self._database.transaction() as tx:
            return {
                event_id
                for statement in ("announcements.go_on", "announcements.begin")
                for event_id in tx.run(statement, parameters).scalars()
            }

    def taken(self, collection: str, events: Sequence[OutgoingEvent]) -> None:
        """Record that events were accepted."""
        if events:
            with self._database.transaction() as tx:
                rows = [_named(event) for event in events]
                tx.run("announcements.taken", self._key(collection), events=rows, now=self._clock()).close()

    def failed(
        self, collection: str, events: Sequence[tuple[OutgoingEvent, str]], *, begun_at: datetime
    ) -> dict[str, int]:
        """Record events that failed; return how often each failed while other events succeeded.

        `begun_at` is the time when the first event of the batch was sent.
        """
        if not events:
            return {}
        rows = [{**_named(event), "error": error[:ERROR_LENGTH]} for event, error in events]
        with self._database.transaction() as tx:
            failures = tx.run("announcements.failed", self._key(collection), events=rows, begun_at=begun_at)
            return {row.event_id: row.attempts for row in failures}

    def refused(self, collection: str, events: Sequence[tuple[OutgoingEvent, str]]) -> None:
        """Give events up, and store their bytes, so that a person can resend them."""
        rows = [
            {**_named(event), "error": error[:ERROR_LENGTH], "body": event.body.decode()} for event, error in events
        ]
        if rows:
            with self._database.transaction() as tx:
                tx.run("announcements.refused", self._key(collection), events=rows, now=self._clock()).close()

    def forget(self, collection: str) -> None:
        """Mark a collection's sent and refused events as open again, except sent withdrawals."""
        with self._database.transaction() as tx:
            tx.run("announcements.forget", self._key(collection))

    def to_resend(self, content_type: str) -> list[OutgoingEvent]:
        """Return the events that were given up."""
        with self._database.snapshot() as view:
            return [
                OutgoingEvent(
                    event_id=row.event_id,
                    kind=ChangeKind(row.kind),
                    collection=row.collection_id,
                    item_id=row.item_id,
                    time=row.failing_since,
                    content_type=content_type,
                    body=row.body.encode(),
                )
                for row in view.run("announcements.to_resend", subscription=self._subscription)
            ]

    def status(self, follower: str) -> SubscriptionStatus:
        """Return the subscription's status; `follower` is the name of its follower."""
        with self._database.snapshot() as view:
            [status] = view.rows(
                SubscriptionStatus, "announcements.status", subscription=self._subscription, follower=follower
            )
        return status

    def in_trouble(self) -> list[dict[str, Any]]:
        """Return the Items whose newest event failed or was given up; given-up events first."""
        with self._database.snapshot() as view:
            rows = view.run("announcements.in_trouble", subscription=self._subscription).mappings()
            return [{**row, "failing_since": rfc3339(row["failing_since"])} for row in rows]

    def _key(self, collection: str) -> dict[str, str]:
        return {"subscription": self._subscription, "collection_id": collection}


def _named(event: OutgoingEvent) -> dict[str, Any]:
    return {"item_id": event.item_id, "event_id": event.event_id}
