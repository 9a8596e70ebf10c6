"""The queue: receive in parallel, delete, postpone, and look at its depth.

Belongs here: the protocol of SQS, and its failures in our words. Does not belong here: what messages mean, and when one
may be deleted (the ledger decides that).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.errors import QueueUnavailableError
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

BATCH = 10
"""Messages in one SQS request (SQS API reference, ReceiveMessage and DeleteMessageBatch)."""

MAX_VISIBILITY_SECONDS = 39_600
"""SQS allows 12 hours counted from the receipt (API reference, ChangeMessageVisibility); one is left to the run."""

EMPTY_RECEIVES = 3
"""Receives in a row without a message that end a call: a short poll asks some of SQS's servers, so one is no proof."""

_MISSING = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}

Item = TypeVar("Item")

DEFAULT_REGION = "us-east-1"
"""Where NOAA's topics are; a queue elsewhere is named by AWS_REGION."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """Approximate numbers of messages: to be received, received and not deleted, and not yet due."""

    visible: int
    in_flight: int
    delayed: int


def connect(settings: Settings, *, name: str | None = None, client: SQSClient | None = None) -> Queue:
    """Make a Queue for the settings' primary queue, or the named one; makes no request.

    Endpoint, credentials and region come from the AWS environment. Timeouts and retries are bounded, so that a sensor's
    tick ends whatever the endpoint does.
    """
    if client is None:
        session = boto3.session.Session()
        client = session.client(
            "sqs", region_name=session.region_name or DEFAULT_REGION, config=bounded(settings.receive_threads)
        )
    return Queue(client, name=name or settings.sqs_primary_queue, threads=settings.receive_threads)


def bounded(threads: int, *, max_attempts: int = 3) -> Config:
    """Return the client configuration under which every request of `threads` threads ends in bounded time."""
    return Config(
        connect_timeout=5,
        read_timeout=10,
        retries={"total_max_attempts": max_attempts, "mode": "standard"},
        max_pool_connections=threads,
    )


class Queue:
    """One SQS queue. Thread-safe. Methods that cannot do their work at all raise QueueUnavailableError."""

    def __init__(self, client: SQSClient, *, name: str, threads: int) -> None:
        self._client = client
        self.name = name
        self._threads = threads
        self._lock = threading.Lock()
        self._url: str | None = None

    @property
    def url(self) -> str:
        """URL of the queue, asked for once."""
        with self._lock:
            if self._url is None:
                try:
                    self._url = self._client.get_queue_url(QueueName=self.name)["QueueUrl"]
                except (BotoCoreError, ClientError) as error:
                    raise self._unavailable(error) from error
            return self._url

    def receive(self, max_messages: int, *, budget_seconds: float, threads: int | None = None) -> list[SqsMessage]:
        """Receive up to `max_messages`, each once, until the queue looks empty or the budget is over.

        An error after the first messages ends the call with those: they are in flight already, and only their receiver
        can delete them.
        """
        url, workers = self.url, threads or self._threads
        progress = _Progress(wanted=max_messages, deadline=time.monotonic() + budget_seconds)
        with ThreadPoolExecutor(workers, thread_name_prefix="sqs-receive") as pool:
            for future in [pool.submit(self._receive_some, url, progress) for _ in range(workers)]:
                future.result()
        if progress.error is not None and not progress.messages:
            raise self._unavailable(progress.error) from progress.error
        return list(progress.messages.values())

    def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete deliveries; returns the receipts that could not be, whose messages will come again."""
        url = self.url

        def delete_batch(batch: Sequence[str]) -> list[str]:
            entries = [{"Id": str(index), "ReceiptHandle": receipt} for index, receipt in enumerate(batch)]
            answer = self._client.delete_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
            return [entry["Id"] for entry in answer.get("Failed", [])]

        return self._in_batches(receipts, delete_batch)

    def change_visibility(self, changes: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Let deliveries come again after so many seconds; returns the changes that could not be made."""
        url = self.url

        def change_batch(batch: Sequence[tuple[str, int]]) -> list[str]:
            answer = self._client.change_message_visibility_batch(
                QueueUrl=url,
                Entries=[
                    {
                        "Id": str(index),
                        "ReceiptHandle": receipt,
                        "VisibilityTimeout": max(0, min(seconds, MAX_VISIBILITY_SECONDS)),
                    }
                    for index, (receipt, seconds) in enumerate(batch)
                ],
            )
            return [entry["Id"] for entry in answer.get("Failed", [])]

        return self._in_batches(changes, change_batch)

    def depth(self) -> QueueDepth:
        """Ask how many messages there are; SQS counts them approximately."""
        try:
            found = self._client.get_queue_attributes(
                QueueUrl=self.url,
                AttributeNames=[
                    "ApproximateNumberOfMessages",
                    "ApproximateNumberOfMessagesNotVisible",
                    "ApproximateNumberOfMessagesDelayed",
                ],
            )["Attributes"]
        except (BotoCoreError, ClientError) as error:
            raise self._unavailable(error) from error
        return QueueDepth(
            visible=int(found["ApproximateNumberOfMessages"]),
            in_flight=int(found["ApproximateNumberOfMessagesNotVisible"]),
            delayed=int(found["ApproximateNumberOfMessagesDelayed"]),
        )

    def _receive_some(self, url: str, progress: _Progress) -> None:
        while (number := progress.reserve()) > 0:
            try:
                answer = self._client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=number,
                    WaitTimeSeconds=0,
                    MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
                )
            except (BotoCoreError, ClientError) as error:
                progress.fail(error)
                return
            progress.add([_message(found) for found in answer.get("Messages", [])], reserved=number)

    def _in_batches(self, items: Sequence[Item], request: Callable[[Sequence[Item]], list[str]]) -> list[Item]:
        """Send items ten at a time, in parallel; returns those that failed, alone or with their request."""

        def send(batch: Sequence[Item]) -> list[Item]:
            try:
                return [batch[int(index)] for index in request(batch)]
            except (BotoCoreError, ClientError):
                return list(batch)

        batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="sqs-batch") as pool:
            return [item for failed in pool.map(send, batches) for item in failed]

    def _unavailable(self, error: BotoCoreError | ClientError) -> QueueUnavailableError:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        if code in _MISSING:
            return QueueUnavailableError(
                "there is no such queue",
                observed=self.name,
                next_step="create the queue or set KFM_SQS_PRIMARY_QUEUE (dead letters: KFM_SQS_DLQ_QUEUE)",
            )
        return QueueUnavailableError(
            f"queue {self.name} does not answer",
            observed=code,
            next_step="check AWS_ENDPOINT_URL, the region and the credentials",
        )


@dataclass(kw_only=True)
class _Progress:
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


def _message(found: MessageTypeDef) -> SqsMessage:
    attributes = found.get("Attributes", {})
    sent = attributes.get("SentTimestamp")
    return SqsMessage(
        message_id=found["MessageId"],
        body=found["Body"],
        receipt_handle=found["ReceiptHandle"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 0)),
        sent_at=None if sent is None else datetime.fromtimestamp(int(sent) / 1000, UTC),  # milliseconds
    )
