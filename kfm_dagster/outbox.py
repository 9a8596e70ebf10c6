"""The durable queue (`outbox`): one row per undelivered (topic, subject, consumer).

A row is committed together with its cause. Several workers can deliver one topic: each claim has a number (`turn`) and
a lease, after which another worker may claim the row. After each failed delivery, the pause before the next doubles.

Belongs here: rows, leases and deferrals. Does not belong here: the content of entries, which belongs to their topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from kfm_dagster.storage.database import Database, Transaction

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10)
"""Pauses between tries, the first and the longest. With these pauses, an outage of a day costs some 150 tries."""
MOST_DOUBLINGS = 20
"""Maximum number of doublings. A timedelta could not hold 2^43 times the first pause; LONGEST_PAUSE is reached much
earlier."""
ERROR_LENGTH = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row. `turn` is its claim's number; the topic gives `position` and `payload` a meaning."""

    consumer: str
    subject: str
    position: int
    payload: Any
    content: bytes | None
    created_at: datetime
    turn: int
    failures: int
    last_error: str | None

    def row(self) -> dict[str, Any]:
        """Return the parameters of a statement that writes the row."""
        names = ("consumer", "subject", "position", "payload", "created_at", "turn")
        return {name: getattr(self, name) for name in names}


class Outbox:
    """The rows of a topic. `lease` must be longer than the time between two calls of `renew`."""

    def __init__(self, database: Database, topic: str, *, lease: timedelta, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._topic = topic
        self._lease = lease
        self._clock = clock

    def put(
        self, tx: Transaction, consumer: str, subject: str, *, payload: Any = None, content: bytes | None = None
    ) -> None:
        """Add an entry that is due now, unless the consumer has an entry for the subject."""
        row = {"topic": self._topic, "consumer": consumer, "subject": subject, "now": self._clock()}
        tx.run("outbox.put", row, payload={} if payload is None else payload, content=content)

    def due(self, consumers: Collection[str], *, after: str | None = None) -> Entry | None:
        """Return the oldest due entry without claiming it; another worker may deliver it as well.

        `after` names another consumer: a subject waits until its entry for that consumer is delivered.
        """
        with self._database.snapshot() as view:
            parameters = {"topic": self._topic, "consumers": list(consumers), "after": after, "now": self._clock()}
            return view.row(Entry, "outbox.due", parameters)

    def claim(self, consumers: Collection[str], *, after: str | None = None) -> Entry | None:
        """Claim the oldest due entry; return None, and write nothing, if no entry is due."""
        while (entry := self.due(consumers, after=after)) is not None:
            with self._database.transaction() as tx:
                claimed = self._claim(tx, entry.consumer, entry.subject)
            if claimed is not None:
                return claimed
        return None

    def take(self, consumer: str, subject: str) -> Entry | None:
        """Claim the consumer's entry for a subject, created if missing; None if it is not due."""
        with self._database.transaction() as tx:
            self.put(tx, consumer, subject)
            return self._claim(tx, consumer, subject)

    def advance(self, entry: Entry, position: int) -> None:
        """Save a new position, clear failures and error, and make the entry claimable now."""
        self._write(replace(entry, position=position), until=self._clock(), failures=0, error=None)

    def renew(self, entry: Entry) -> bool:
        """Save position and payload, and restart the lease; False if there is a newer claim."""
        return self._write(entry, until=self._clock() + self._lease, failures=entry.failures, error=entry.last_error)

    def release(self, entry: Entry) -> None:
        """Save position and payload, and make the entry claimable now."""
        self._write(entry, until=self._clock(), failures=entry.failures, error=entry.last_error)

    def defer(self, entry: Entry, error: str) -> bool:
        """Defer a failed delivery; False if there is a newer claim."""
        until = self._clock() + min(FIRST_PAUSE * 2 ** min(entry.failures, MOST_DOUBLINGS), LONGEST_PAUSE)
        return self._write(entry, until=until, failures=entry.failures + 1, error=error[:ERROR_LENGTH])

    def done(self, tx: Transaction, entry: Entry) -> None:
        """Remove a delivered entry, unless there is a newer claim."""
        tx.run("outbox.done", entry.row(), topic=self._topic)

    def _claim(self, tx: Transaction, consumer: str, subject: str) -> Entry | None:
        now = self._clock()
        row = {"topic": self._topic, "consumer": consumer, "subject": subject, "now": now}
        return tx.row(Entry, "outbox.claim", row, lease_until=now + self._lease)

    def _write(self, entry: Entry, *, until: datetime, failures: int, error: str | None) -> bool:
        row = {**entry.row(), "failures": failures, "last_error": error}
        with self._database.transaction() as tx:
            return tx.run("outbox.write", row, topic=self._topic, next_attempt_at=until).first() is not None
