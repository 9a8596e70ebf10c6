"""Senders: which of the received messages their SNS topics sent, as far as that is known now.

Belongs here: the verdict before anything of a message is recorded, and what becomes of one whose certificate cannot be
fetched: it waits on its queue, longer each time. Does not belong here: verifying (`notifications/authenticity.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.verdict import Authenticity, SenderVerdict

FIRST_WAIT_SECONDS = 60.0
"""How long a message waits for its certificate at first (KFM_RETRY_BACKOFF_SECONDS overrides it)."""
WAIT_FACTOR = 4
"""Each wait is so many times the one before: five receives, after which a queue gives up, last for almost six hours."""


def verdicts_on(pipeline: Pipeline, messages: Sequence[SqsMessage]) -> list[SenderVerdict]:
    """Return a verdict on each message, in their order; one that was verified before is not verified again."""
    verified = pipeline.deliveries.verified(message.message_id for message in messages)
    return pipeline.signatures.verdicts(messages, verified=verified)


def of_known_senders(pipeline: Pipeline, messages: Sequence[SqsMessage]) -> list[tuple[SqsMessage, SenderVerdict]]:
    """Return the messages on which there is a verdict; the others go back to the queue and wait."""
    judged = list(zip(messages, verdicts_on(pipeline, messages), strict=True))
    waits = [
        (message.receipt_handle or "", _wait(pipeline, message))
        for message, verdict in judged
        if verdict.authenticity is Authenticity.UNKNOWN
    ]
    if waits:
        pipeline.queue.change_visibility(waits)
    return [(message, verdict) for message, verdict in judged if verdict.authenticity is not Authenticity.UNKNOWN]


def _wait(pipeline: Pipeline, message: SqsMessage) -> int:
    given = pipeline.settings.retry_backoff_seconds
    first = FIRST_WAIT_SECONDS if given is None else given
    # The queue bounds it to what SQS allows.
    return int(first * WAIT_FACTOR ** min(max(message.receive_count - 1, 0), 8))
