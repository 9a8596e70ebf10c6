"""Receiving: what the threads of one receive call share, and SQS's answer as our message.

Belongs here: the account of a call, by which no thread receives what nobody asked for. Does not belong here: requests
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
"""Messages in one SQS request (SQS API reference, ReceiveMessage, SendMessageBatch and DeleteMessageBatch)."""

MIN_BODY_BYTES = 16 * 1024
"""A message may be as large as this although every one before was smaller."""

EMPTY_RECEIVES = 3
"""Receives in a row without a message that end a call: a short poll asks some of SQS's servers, so one is no proof."""


MAX_RECEIVED_BYTES = 32 * MAX_BODY_BYTES
"""Bodies of one receive call, unless its caller says otherwise: ten thousand messages as NOAA sends them."""

PART_BYTES = 8 * MAX_BODY_BYTES
PART_UNITS = 5_000
"""Weight of what is landed, parsed and recorded at once: a unit takes about 10 KB on its way into the ledger."""


def announced(message: SqsMessage) -> int:
    """Estimate, without parsing it, how many units a message has. A sender can make it too low, never the bytes."""
    return message.body.count("eventTime")


def weight(message: SqsMessage) -> tuple[int, int]:
    """Return what a message counts for in a part of PART_BYTES and PART_UNITS."""
    return len(message.body), announced(message)


def in_parts(
    items: Iterable[Item], weight_of: Callable[[Item], tuple[int, ...]], bounds: tuple[int, ...]
) -> Iterator[list[Item]]:
    """Split items into parts whose weights keep to the bounds, each to its own, or of one item that is heavier."""
    part: list[Item] = []
    left: Sequence[int] = bounds
    for item in items:
        weights = weight_of(item)
        if part and any(map(operator.gt, weights, left)):
            yield part
            part, left = [], bounds
        part.append(item)
        left = list(map(operator.sub, left, weights))
    if part:
        yield part


@dataclass(kw_only=True)
class ReceiveProgress:
    """What the threads of one receive call share.

    A request may bring ten messages of 1 MiB, so it reserves room for as many bytes as the largest message until then
    had: the first ones 1 MiB each. A thread for which there is no room waits for another's request to end.
    """

    wanted: int
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
        """Places for one request, so that no thread receives what nobody asked for; 0 ends the thread."""
        with self._changed:
            while not self._is_over():
                number = min(BATCH, self.wanted - self._reserved, self._room())
                if number > 0:
                    self._reserved += number
                    self._requests += 1
                    return number
                if self._requests == 0:
                    return 0
                self._changed.wait(max(0, self.deadline - time.monotonic()))
            return 0

    def add(self, messages: list[SqsMessage], *, reserved: int) -> None:
        """Keep what came and give the places back that stayed empty.

        A standard queue may deliver a message twice at once; the later delivery holds the receipt that deletes it.
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
        """Keep the error; the other threads end after the request that they are in."""
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
        """Messages for which there is room besides the requests that are on their way."""
        size = self._largest or MAX_BODY_BYTES
        reserved = self._bytes + (self._reserved - len(self.messages)) * size
        return (self.max_bytes - reserved) // size

    def _ended(self) -> None:
        self._requests -= 1
        self._changed.notify_all()


def as_message(found: MessageTypeDef) -> SqsMessage:
    """Return a received message as our value."""
    attributes = found.get("Attributes", {})
    sent = attributes.get("SentTimestamp")
    return SqsMessage(
        message_id=found["MessageId"],
        body=found["Body"],
        receipt_handle=found["ReceiptHandle"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 0)),
        sent_at=None if sent is None else datetime.fromtimestamp(int(sent) / 1000, UTC),  # milliseconds
    )
