"""Receiving: the shared progress of a call's threads, and the conversion of messages.

Belongs here: a call's counts, which keep its threads from receiving more than requested. Does not belong here: requests
(`sqs.py`).
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.notifications.fields import MAX_BODY_BYTES
from kfm_dagster.notifications.messages import SqsMessage

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageTypeDef

Item = TypeVar("Item")

BATCH = 10
"""Messages per SQS request (SQS API reference, ReceiveMessage, SendMessageBatch and DeleteMessageBatch)."""

MIN_BODY_BYTES = 16 * 1024
"""Least size assumed for the next message, even if all messages before were smaller."""

EMPTY_RECEIVES = 3
"""Consecutive empty receives that end a call; several, because a short poll queries only a part of SQS's servers."""


MAX_RECEIVED_BYTES = 32 * MAX_BODY_BYTES
"""Default limit of the bodies of a receive call, enough for ten thousand messages of NOAA's usual size."""

PART_BYTES = 8 * MAX_BODY_BYTES
PART_UNITS = 5_000
"""Limits of a part, which is landed, parsed and recorded at once. A unit takes about 10 KB until it is recorded."""


def announced(message: SqsMessage) -> int:
    """Estimate a message's units without parsing. A sender can understate units, but not bytes."""
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
class ReceiveProgress:
    """The shared state of a receive call's threads.

    A request may bring ten messages of 1 MiB. So it reserves for each message the size of the call's largest message so
    far, at first 1 MiB. A thread without room waits for another thread's request to end.
    """

    max_messages: int
    deadline: float
    max_bytes: int = MAX_RECEIVED_BYTES
    max_units: int | None = None
    messages: dict[str, SqsMessage] = field(default_factory=dict)
    error: BotoCoreError | ClientError | None = None
    _reserved: int = 0
    _requests: int = 0
    _bytes: int = 0
    _units: int = 0
    _largest: int | None = None
    _empty: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def reserve(self) -> int:
        """Reserve and return the number of messages for a request; 0 ends the thread."""
        with self._changed:
            while not self._is_over():
                places = min(BATCH, self.max_messages - self._reserved, self._room())
                if places > 0:
                    self._reserved += places
                    self._requests += 1
                    return places
                if self._requests == 0:
                    return 0
                self._changed.wait(max(0, self.deadline - time.monotonic()))
            return 0

    def add(self, messages: list[SqsMessage], *, reserved: int) -> None:
        """Store the messages and release the unused reservations.

        A standard queue may deliver a message twice at once; only the later delivery's receipt deletes it.
        """
        with self._changed:
            before = len(self.messages)
            self._ended()
            for message in messages:
                self._bytes += len(message.body)
                self._units += announced(message)
                self._largest = max(self._largest or MIN_BODY_BYTES, len(message.body))
                known = self.messages.get(message.message_id)
                if known is None or known.receive_count <= message.receive_count:
                    self.messages[message.message_id] = message
            self._reserved -= reserved - (len(self.messages) - before)
            self._empty = 0 if messages else self._empty + 1

    def fail(self, error: BotoCoreError | ClientError) -> None:
        """Store the error; the other threads end after their current request."""
        with self._changed:
            self.error = error
            self._ended()

    def _is_over(self) -> bool:
        return (
            self.error is not None
            or self._empty >= EMPTY_RECEIVES
            or (self.max_units is not None and self._units >= self.max_units)
            or time.monotonic() >= self.deadline
        )

    def _room(self) -> int:
        """Return the number of messages that fit beside the reservations of running requests."""
        size = self._largest or MAX_BODY_BYTES
        reserved = self._bytes + (self._reserved - len(self.messages)) * size
        return (self.max_bytes - reserved) // size

    def _ended(self) -> None:
        self._requests -= 1
        self._changed.notify_all()


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
