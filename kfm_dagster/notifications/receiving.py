"""Receiving: the budgets of a call, and the conversion of messages.

Belongs here: the counts of a call, which limit the size of its next requests. Does not belong here: the requests
themselves (`sqs.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from kfm_dagster.notifications.fields import MAX_BODY_BYTES
from kfm_dagster.notifications.messages import SqsMessage

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageTypeDef

Item = TypeVar("Item")

BATCH = 10
"""Messages per SQS request (SQS API reference, ReceiveMessage, SendMessageBatch and DeleteMessageBatch)."""

MIN_BODY_BYTES = 16 * 1024
"""Least size to assume for the next message, even if all earlier messages were smaller."""

EMPTY_RECEIVES = 3
"""Consecutive empty receives that end a call; several, because a short poll queries only a part of SQS's servers."""


MAX_RECEIVED_BYTES = 32 * MAX_BODY_BYTES
"""Default limit of the bodies of a receive call, enough for ten thousand messages of NOAA's usual size."""

PART_BYTES = 8 * MAX_BODY_BYTES
PART_UNITS = 5_000
"""Limits of a part: its messages are landed, parsed and recorded together. Until then, a unit takes 10 KB of memory."""


def announced(message: SqsMessage) -> int:
    """Estimate a message's units without parsing. A sender can hide units, but not bytes."""
    return message.body.count("eventTime")


def weight(message: SqsMessage) -> tuple[int, int]:
    """Return a message's bytes and units, which PART_BYTES and PART_UNITS limit."""
    return len(message.body), announced(message)


def in_parts(
    items: Iterable[Item], weight_of: Callable[[Item], tuple[int, ...]], bounds: tuple[int, ...]
) -> Iterator[list[Item]]:
    """Split items into parts within every bound; an item over a bound is a part by itself."""
    part: list[Item] = []
    room: Sequence[int] = bounds
    for item in items:
        weights = weight_of(item)
        if part and any(map(operator.gt, weights, room)):
            yield part
            part, room = [], bounds
        part.append(item)
        room = list(map(operator.sub, room, weights))
    if part:
        yield part


@dataclass(kw_only=True)
class ReceiveCall:
    """The messages of a receive call, and the sizes of its next requests.

    A request can bring ten messages of 1 MiB. So the call reserves for each message the size of its largest
    message so far; at first, 1 MiB.
    """

    max_messages: int
    max_bytes: int = MAX_RECEIVED_BYTES
    max_units: int | None = None
    messages: dict[str, SqsMessage] = field(default_factory=dict)
    _bytes: int = 0
    _units: int = 0
    _largest: int | None = None
    _empty: int = 0

    def requests(self, most: int) -> list[int]:
        """Return the maximum messages of each next request; an empty list ends the call."""
        if self._empty >= EMPTY_RECEIVES or (self.max_units is not None and self._units >= self.max_units):
            return []
        room = (self.max_bytes - self._bytes) // (self._largest or MAX_BODY_BYTES)
        places = min(self.max_messages - len(self.messages), room, most * BATCH)
        return [min(BATCH, places - start) for start in range(0, places, BATCH)]

    def add(self, messages: Sequence[SqsMessage]) -> None:
        """Store the messages of an answer.

        A standard queue can deliver a message twice; only the receipt of the later delivery deletes the message.
        """
        for message in messages:
            self._bytes += len(message.body)
            self._units += announced(message)
            self._largest = max(self._largest or MIN_BODY_BYTES, len(message.body))
            known = self.messages.get(message.message_id)
            if known is None or known.receive_count <= message.receive_count:
                self.messages[message.message_id] = message
        self._empty = 0 if messages else self._empty + 1


def as_message(received: MessageTypeDef) -> SqsMessage:
    """Convert a message of SQS's response."""
    attributes = received.get("Attributes", {})
    sent = attributes.get("SentTimestamp")
    return SqsMessage(
        message_id=received["MessageId"],
        body=received["Body"],
        receipt_handle=received["ReceiptHandle"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 0)),
        sent_at=None if sent is None else datetime.fromtimestamp(int(sent) / 1000, UTC),  # milliseconds
    )
