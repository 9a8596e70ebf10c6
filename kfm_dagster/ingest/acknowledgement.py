"""Acknowledgement: delete messages of terminal units, hide messages of retrying units.

Belongs here: work on both the ledger's deliveries and the queues. Does not belong here: which messages are due
(`ledger/deliveries.py`), the protocol of SQS (`notifications/sqs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import QueueUnavailableError
from kfm_dagster.ledger.deliveries import Deliveries, DueBackoff, DueMessage
from kfm_dagster.notifications.sqs import Queue

Due = TypeVar("Due", bound=DueMessage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledger:
    """Deletes and hides messages on the queue of their last receive, primary or dead-letter.

    A drain receives from the dead-letter queue. A queue is connected when a message is due: a backfill needs none.
    """

    deliveries: Deliveries
    primary: Callable[[], Queue]
    dead_letters: Callable[[], Queue]
    dead_letter_queue: str

    def acknowledge(self, *, retrying: Collection[WalId] = (), limit: int = 10_000) -> int:
        """Delete messages whose units are all terminal; hide messages of `retrying` units.

        Returns the number of deleted messages. Safe to repeat: messages that SQS did not delete stay due, and messages
        of retrying units come back when these are due.
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
        """Hide messages for their number of seconds from now, each on the queue of its last receive."""
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
