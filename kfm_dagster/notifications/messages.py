"""What a queue gives: a message as SQS delivered it, what is known of its sender, and what the queue says of itself.

Does not belong here: what the body means (`operators/message_parse.py`), the queue's protocol (`sqs.py`), or reaching a
verdict (`authenticity.py`), for which the cryptography is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum, unique

from kfm_dagster.storage.text import storable


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """Approximate numbers of messages: to be received, received and not deleted, and not yet due."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        """Every message on the queue."""
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRules:
    """The attributes of a queue that decide when a message comes again, moves on, or is lost.

    `max_receive_count` and `dead_letter_arn` are those of its redrive policy, None where it has none.
    """

    visibility_timeout: timedelta
    retention: timedelta
    max_receive_count: int | None = None
    dead_letter_arn: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SendOutcome:
    """What became of one message to be sent: the id that SQS gave it, or the code of the refusal."""

    message_id: str | None = None
    refusal: str | None = None


@unique
class Authenticity(StrEnum):
    """What is known of a message's sender."""

    VERIFIED = "verified"
    """Its topic signed it."""
    INVALID = "invalid"
    """Nobody signed it, or not what it says."""
    UNCHECKED = "unchecked"
    """The settings ask for no signature, or it holds nothing that could be signed, and message-parse says why."""
    UNKNOWN = "unknown"
    """Its certificate cannot be fetched now; it is asked again when the message comes again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SenderVerdict:
    """What is known of one message's sender, and why it is not what the message says."""

    authenticity: Authenticity
    detail: str = ""


UNCHECKED = SenderVerdict(authenticity=Authenticity.UNCHECKED)
VERIFIED = SenderVerdict(authenticity=Authenticity.VERIFIED)


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
