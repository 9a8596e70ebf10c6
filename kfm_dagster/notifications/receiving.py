"""Receiving: what the threads of one receive call share, and SQS's answer as our message.

Belongs here: the account of a call, by which no thread receives what nobody asked for. Does not belong here: requests
(`sqs.py`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.notifications.messages import SqsMessage

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageTypeDef

BATCH = 10
"""Messages in one SQS request (SQS API reference, ReceiveMessage, SendMessageBatch and DeleteMessageBatch)."""

EMPTY_RECEIVES = 3
"""Receives in a row without a message that end a call: a short poll asks some of SQS's servers, so one is no proof."""


@dataclass(kw_only=True)
class ReceiveProgress:
    """What the threads of one receive call share."""

    wanted: int
    deadline: float
    messages: dict[str, SqsMessage] = field(default_factory=dict)
    error: BotoCoreError | ClientError | None = None
    _reserved: int = 0
    _empty: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self) -> int:
        """Places for one request, so that no thread receives what nobody asked for; 0 ends the thread."""
        with self._lock:
            if self.error is not None or self._empty >= EMPTY_RECEIVES or time.monotonic() >= self.deadline:
                return 0
            number = min(BATCH, self.wanted - self._reserved)
            self._reserved += number
            return number

    def add(self, messages: list[SqsMessage], *, reserved: int) -> None:
        """Keep what came and give the places back that stayed empty.

        A standard queue may deliver a message twice at once; the later delivery holds the receipt that deletes it.
        """
        with self._lock:
            before = len(self.messages)
            for message in messages:
                known = self.messages.get(message.message_id)
                if known is None or known.receive_count <= message.receive_count:
                    self.messages[message.message_id] = message
            self._reserved -= reserved - (len(self.messages) - before)
            self._empty = 0 if messages else self._empty + 1

    def fail(self, error: BotoCoreError | ClientError) -> None:
        """Keep the error; the other threads end after the request that they are in."""
        with self._lock:
            self.error = error


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
