"""Senders: which of the received messages their SNS topics sent, as far as that is known now.

Belongs here: the verdict before anything of a message is recorded, and what becomes of one whose certificate cannot be
fetched: it waits on its queue, longer each time. Does not belong here: verifying (`notifications/authenticity.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.notifications.messages import Authenticity, SenderVerdict, SqsMessage
from kfm_dagster.notifications.sqs import Queue

if TYPE_CHECKING:
    from kfm_dagster.notifications.authenticity import Signatures

FIRST_WAIT_SECONDS = 60.0
"""How long a message waits for its certificate at first (KFM_RETRY_BACKOFF_SECONDS overrides it)."""
WAIT_FACTOR = 4
"""Each wait is so many times the one before: five receives, after which a queue gives up, last for almost six hours."""


def verdicts_on(
    messages: Sequence[SqsMessage], *, deliveries: Deliveries, signatures: Signatures
) -> list[SenderVerdict]:
    """Return a verdict on each message, in their order; one that was verified before is not verified again."""
    verified = deliveries.verified(message.message_id for message in messages)
    return signatures.verdicts(messages, verified=verified)


def of_known_senders(
    judged: Iterable[tuple[SqsMessage, SenderVerdict]], *, queue: Queue, first_wait: float | None
) -> list[tuple[SqsMessage, SenderVerdict]]:
    """Return the messages on which there is a verdict; the others go back to the queue and wait."""
    known: list[tuple[SqsMessage, SenderVerdict]] = []
    waits: list[tuple[str, int]] = []
    for message, verdict in judged:
        if verdict.authenticity is Authenticity.UNKNOWN:
            first = FIRST_WAIT_SECONDS if first_wait is None else first_wait
            # The queue bounds it to what SQS allows.
            wait = int(first * WAIT_FACTOR ** min(max(message.receive_count - 1, 0), 8))
            waits.append((message.receipt_handle or "", wait))
        else:
            known.append((message, verdict))
    if waits:
        queue.change_visibility(waits)
    return known
