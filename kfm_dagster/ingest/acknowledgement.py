"""Acknowledgement: a message leaves its queue once its units are terminal, and hides while they wait for a retry.

Belongs here: what needs the ledger's deliveries and the queues together. Does not belong here: which messages are due
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
    """Answers each message on the queue that it was last received from: a drain receives from the dead-letter queue.

    The queues are connected when a message is due, because a backfill needs none.
    """

    deliveries: Deliveries
    primary: Callable[[], Queue]
    dead_letters: Callable[[], Queue]
    dead_letter_queue: str

    def acknowledge(self, *, retrying: Collection[WalId] = (), limit: int = 10_000) -> int:
        """Delete the messages whose units are all terminal; let those of retrying units come back when they are due.

        Returns the number of deleted messages. Harmless to repeat: what SQS did not take stays due.
        """
        if retrying:
            self.postpone(self.deliveries.due_for_backoff(retrying))
        deleted = 0
        for queue, due in self._by_queue(self.deliveries.due_for_deletion(limit=limit)):
            refused = set(queue.delete([entry.receipt_handle for entry in due]))
            taken = [entry for entry in due if entry.receipt_handle not in refused]
            self.deliveries.mark_acknowledged(taken)
            deleted += len(taken)
        return deleted

    def postpone(self, messages: Iterable[DueBackoff]) -> None:
        """Keep messages out of sight for so many seconds from now, each on the queue that it was last received from."""
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
                return  # without it today's messages come and go all the same; its own stay due
            yield queue, drained
