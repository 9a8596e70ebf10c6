"""Values of a queue: delivered messages, verdicts on senders, the queue's depth and rules.

Does not belong here: the body's meaning (`operators/message_parse.py`), the queue's protocol (`sqs.py`), or verifying
a sender (`authenticity.py`), which imports the library `cryptography`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.storage.text import storable


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """Approximate numbers of messages: visible, received but not deleted, and delayed."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        """Every message on the queue."""
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRules:
    """A queue's attributes: who is allowed to send, when SQS redelivers, redrives or deletes.

    `max_receive_count` and `dead_letter_arn` belong to the redrive policy; None without such a policy. `policy` is the
    access policy, empty if there is none.
    """

    visibility_timeout: timedelta
    retention: timedelta
    max_receive_count: int | None = None
    dead_letter_arn: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SendOutcome:
    """The outcome of sending a message: the id that SQS gave it, or the code of the refusal."""

    message_id: str | None = None
    refusal: str | None = None


@unique
class Authenticity(StrEnum):
    """The result of checking a message's sender."""

    VERIFIED = "verified"
    """The topic signed the message."""
    INVALID = "invalid"
    """The message is unsigned, or its signature or certificate is not valid."""
    UNCHECKED = "unchecked"
    """The settings require no signature, or the body gives no unit (message_parse records the reason)."""
    UNKNOWN = "unknown"
    """The certificate cannot be fetched now; the next receive of the message tries again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SenderVerdict:
    """The verdict on a message's sender; `detail` is the reason of a refusal or delay."""

    authenticity: Authenticity
    detail: str = ""


UNCHECKED = SenderVerdict(authenticity=Authenticity.UNCHECKED)
VERIFIED = SenderVerdict(authenticity=Authenticity.VERIFIED)


MAX_MESSAGE_ID = 100
"""Limit in characters (SQS developer guide, "Message identifiers")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqsMessage:
    """A delivery of a message.

    `receipt_handle` is the short-lived right to delete this delivery. So it is not in the repr and never landed, and
    None for a message from the landing zone. `receive_count` counts deliveries from 1 (0: unknown). `sent_at` is in
    UTC, with its zone. Id and body are made storable, because text that is not valid Unicode cannot be landed or
    hashed.
    """

    message_id: str
    body: str
    receipt_handle: str | None = field(default=None, repr=False)
    receive_count: int = 0
    sent_at: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message_id", storable(self.message_id, MAX_MESSAGE_ID))
        object.__setattr__(self, "body", storable(self.body))
