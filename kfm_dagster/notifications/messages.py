"""The message as SQS delivered it, before anyone understood it.

Belongs here: the value that receiving, landing and parsing share. Does not belong here: what the body means
(`operators/message_parse.py`) and the queue's protocol (`sqs.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from kfm_dagster.storage.text import storable

MAX_MESSAGE_ID = 100
"""Characters (SQS developer guide, "Message identifiers")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqsMessage:
    """One delivery of one message.

    `receipt_handle` is the short-lived right to delete this delivery, so it is not shown in a repr and never landed;
    None for a message read back from the landing zone. `receive_count` counts deliveries from 1, 0 when unknown.
    `sent_at` is aware UTC. Id and body are storable text: what is no Unicode could be neither landed nor hashed.
    """

    message_id: str
    body: str
    receipt_handle: str | None = field(default=None, repr=False)
    receive_count: int = 0
    sent_at: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message_id", storable(self.message_id, MAX_MESSAGE_ID))
        object.__setattr__(self, "body", storable(self.body))
