"""What a queue says of itself and of what it was given. Does not belong here: asking it (`sqs.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


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
