"""Acknowledgement: delete messages of terminal units, hide messages of retrying units.

Belongs here: work that needs both ledger and queues, and the count of the work that is left in both. Does not belong
here: which messages are due (`ledger/deliveries.py`), the protocol of SQS (`notifications/sqs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import QueueUnavailableError
from kfm_dagster.ledger.deliveries import Deliveries, DueBackoff, DueMessage
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.sqs import Queue

Due = TypeVar("Due", bound=DueMessage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledger:
    """Deletes and hides messages on the queue that delivered them last.

    The queue is the primary queue or the dead-letter queue. Each of them is connected only when one of its messages is
    due, so that a backfill, whose units have no messages, needs neither.
    """

    deliveries: Deliveries
    primary: Callable[[], Queue]
    dead_letters: Callable[[], Queue]
    dead_letter_queue: str

    def acknowledge(self, *, retrying: Collection[WalId] = (), limit: int = 10_000) -> int:
        """Delete messages whose units are all terminal; hide messages of `retrying` units.

        Returns the number of deleted messages. Safe to repeat: messages that SQS did not delete stay due, and messages
        of retrying units become visible again when these units are due.
        """
        if retrying:
            self.postpone(self.deliveries.due_for_backoff(retrying))
        total = 0
        for queue, due in self._by_queue(self.deliveries.due_for_deletion(limit=limit)):
            refused = set(queue.delete([entry.receipt_handle for entry in due]))
            deleted = [entry for entry in due if entry.receipt_handle not in refused]
            self.deliveries.mark_acknowledged(deleted)
            total += len(deleted)
        return total

    def postpone(self, messages: Iterable[DueBackoff]) -> None:
        """Hide each message for its `seconds`, on the queue that delivered it last."""
        for queue, postponed in self._by_queue(messages):
            queue.change_visibility([(entry.receipt_handle, entry.seconds) for entry in postponed])

    def _by_queue(self, messages: Iterable[Due]) -> Iterator[tuple[Queue, list[Due]]]:
        drained: list[Due] = []
        received: list[Due] = []
        for message in messages:
            (drained if message.queue == self.dead_letter_queue else received).append(message)
        if received:
            yield self.primary(), received
        if drained:
            queue = self.dead_letters()
            try:
                _ = queue.url
            except QueueUnavailableError:
                return  # only the messages of this queue stay due
            yield queue, drained


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A snapshot of queue and ledger. `waiting` counts the failed units, which wait for a retry."""

    queued: int
    units: int
    terminal: int
    in_flight: int
    waiting: int

    @property
    def drained(self) -> bool:
        """Return whether no work is left."""
        return self.queued == 0 and self.in_flight == 0 and self.waiting == 0


def progress(queue: Queue, ledger: Ledger) -> Progress:
    """Return the present progress. Raises QueueUnavailableError or DatabaseUnavailableError."""
    depth = queue.depth()
    totals = dict.fromkeys(Status, 0)
    with ledger.database.snapshot() as tx:
        counts = ledger.counts(tx=tx)
    for by_status in counts.values():
        for status, units in by_status.items():
            totals[status] += units
    return Progress(
        queued=depth.visible + depth.in_flight + depth.delayed,
        units=sum(totals.values()),
        terminal=totals[Status.SUCCEEDED] + totals[Status.QUARANTINED],
        in_flight=totals[Status.PENDING] + totals[Status.IN_PROGRESS],
        waiting=totals[Status.FAILED],
    )
