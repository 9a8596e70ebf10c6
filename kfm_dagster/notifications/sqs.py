"""An SQS queue: parallel receive, peek, send, delete, postpone, depth and rules.

Belongs here: the protocol of SQS, and its failures as our errors. Does not belong here: the meaning of messages, and
the decision that a message can be deleted (`ledger/`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.errors import QueueUnavailableError
from kfm_dagster.failpoints import Failpoint, hit, with_context
from kfm_dagster.notifications.messages import QueueDepth, QueueRules, SendOutcome, SqsMessage
from kfm_dagster.notifications.receiving import BATCH, MAX_RECEIVED_BYTES, Item, ReceiveCall, as_message, in_parts
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    from botocore.config import Config
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeFilterType

MAX_SEND_BYTES = 256 * 1024
"""Total size of the bodies per SendMessageBatch: SQS's limit until 2025, and still some endpoints' limit."""

LOOK_MARGIN_SECONDS = 30
"""`look` hides messages for its longest duration and this margin, so that it receives no message twice."""

FIRST_WAIT_SECONDS = 1
"""Wait of a call's first request; with any wait, SQS queries all servers (SQS API, ReceiveMessage, WaitTimeSeconds)."""

LONG_POLL_SECONDS = 5
"""Wait of an idle worker's or sensor's requests, which cost almost no CPU: below the client's read timeout (10 s)."""

MAX_VISIBILITY_SECONDS = 39_600
"""11 hours: SQS allows 12 hours since the receive (API: ChangeMessageVisibility); one hour is left to a run."""

_MISSING = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}

DEFAULT_REGION = "us-east-1"
"""The region of NOAA's topics; AWS_REGION names another region."""


def connect(settings: Settings, *, name: str | None = None, client: SQSClient | None = None) -> Queue:
    """Return a Queue for the settings' primary queue or for the named queue, without a request.

    Endpoint, credentials and region come from the AWS environment. Timeouts and retries are bounded, so that a sensor's
    tick ends even if the endpoint does not answer.
    """
    if client is None:
        # Imported here, because the import takes 0.8 CPU seconds, and not every command needs a queue.
        import boto3  # noqa: PLC0415

        session = boto3.session.Session()
        client = session.client(
            "sqs", region_name=session.region_name or DEFAULT_REGION, config=bounded(settings.receive_threads)
        )
    return Queue(client, name=name or settings.sqs_primary_queue, threads=settings.receive_threads)


def connect_dead_letters(settings: Settings) -> Queue:
    """Return a Queue for the settings' dead-letter queue, without a request."""
    return connect(settings, name=settings.sqs_dlq_queue)


def bounded(threads: int, *, max_attempts: int = 3) -> Config:
    """Return a client configuration with bounded timeouts and a connection for each thread."""
    from botocore.config import Config  # noqa: PLC0415, with boto3

    return Config(
        connect_timeout=5,
        read_timeout=10,
        retries={"total_max_attempts": max_attempts, "mode": "standard"},
        max_pool_connections=threads,
    )


class Queue:
    """An SQS queue, thread-safe. Raises QueueUnavailableError if the queue does not answer."""

    def __init__(self, client: SQSClient, *, name: str, threads: int) -> None:
        self._client = client
        self.name = name
        self._threads = threads
        self._lock = threading.Lock()
        self._url: str | None = None

    @property
    def url(self) -> str:
        """URL of the queue, requested once."""
        with self._lock:
            if self._url is None:
                try:
                    self._url = self._client.get_queue_url(QueueName=self.name)["QueueUrl"]
                except (BotoCoreError, ClientError) as error:
                    raise self._unavailable(error) from error
            return self._url

    def receive(
        self,
        max_messages: int,
        *,
        budget_seconds: float,
        threads: int | None = None,
        visibility_seconds: int | None = None,
        max_bytes: int = MAX_RECEIVED_BYTES,
        max_units: int | None = None,
        wait_seconds: int = FIRST_WAIT_SECONDS,
    ) -> list[SqsMessage]:
        """Receive at most `max_messages` messages, until the queue seems empty or a budget ends.

        The first request waits for a message, so it queries all of SQS's servers. If it returns no message, the call
        ends. `wait_seconds` must be less than the client's read timeout (10 s); the budget begins after this wait.

        Budgets: seconds, bytes of all bodies, announced units. Requests under way can exceed a budget. At least
        one request is made, unless the budget is 0 seconds.

        Messages stay hidden for `visibility_seconds`, by default for the queue's own timeout. After an error, the call
        returns the messages received before, because these are in flight, and only their receiver can delete them.
        """
        url, workers = self.url, threads or self._threads
        hidden: dict[str, int] = (
            {} if visibility_seconds is None else {"VisibilityTimeout": _allowed(visibility_seconds)}
        )

        def request(places: int, wait: int = 0) -> list[SqsMessage] | BotoCoreError | ClientError:
            try:
                hit(Failpoint.QUEUE_RECEIVE_BEFORE)
                answer = self._client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=places,
                    WaitTimeSeconds=wait,
                    MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
                    **hidden,  # type: ignore[arg-type]
                )
                hit(Failpoint.QUEUE_RECEIVE_AFTER)
            except (BotoCoreError, ClientError) as error:
                return error
            return [as_message(message) for message in answer.get("Messages", [])]

        call = ReceiveCall(max_messages=max_messages, max_bytes=max_bytes, max_units=max_units)
        answers = [request(places, wait_seconds) for places in call.requests(1) if budget_seconds > 0]
        deadline = time.monotonic() + budget_seconds
        errors: list[BotoCoreError | ClientError] = []
        with ThreadPoolExecutor(workers, thread_name_prefix="sqs-receive") as pool:
            while answers:
                for answer in answers:
                    if isinstance(answer, list):
                        call.add(answer)
                    else:
                        errors.append(answer)
                if errors or not call.messages or time.monotonic() >= deadline:
                    break
                answers = list(pool.map(request, call.requests(workers)))
        if errors and not call.messages:
            raise self._unavailable(errors[0]) from errors[0]
        return list(call.messages.values())

    def look(self, max_messages: int, *, budget_seconds: float) -> list[SqsMessage]:
        """Receive messages and make them visible again; each message's receive count rises by 1.

        A receipt can still delete its message until the message is received again.
        """
        hidden = int(budget_seconds) + LOOK_MARGIN_SECONDS
        messages = self.receive(max_messages, budget_seconds=budget_seconds, visibility_seconds=hidden)
        self.give_back(messages)
        return messages

    def give_back(self, messages: Sequence[SqsMessage]) -> None:
        """Make received messages visible again; if refused, a message reappears at its timeout."""
        self.change_visibility([(message.receipt_handle or "", 0) for message in messages])

    def send(self, bodies: Sequence[str]) -> list[SendOutcome]:
        """Send messages and return the outcome of each, in their order.

        A message whose request got no answer counts as refused, although it is possibly on the queue.
        """
        url = self.url

        def send_batch(batch: Sequence[str]) -> list[SendOutcome]:
            entries = [{"Id": str(index), "MessageBody": body} for index, body in enumerate(batch)]
            try:
                hit(Failpoint.QUEUE_SEND_BEFORE)
                answer = self._client.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
                hit(Failpoint.QUEUE_SEND_AFTER)
            except (BotoCoreError, ClientError) as error:
                return [SendOutcome(refusal=_code(error))] * len(batch)
            sent = {entry["Id"]: entry["MessageId"] for entry in answer.get("Successful", [])}
            refused = {entry["Id"]: entry["Code"] for entry in answer.get("Failed", [])}
            return [
                SendOutcome(message_id=sent.get(key), refusal=refused.get(key)) for key in map(str, range(len(batch)))
            ]

        with ThreadPoolExecutor(self._threads, thread_name_prefix="sqs-send") as pool:
            sendable = in_parts(bodies, lambda body: (1, len(body.encode())), (BATCH, MAX_SEND_BYTES))
            return [outcome for done in pool.map(send_batch, sendable) for outcome in done]

    def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete deliveries; return the receipts that failed, whose messages will come again."""
        url = self.url

        def delete_batch(batch: Sequence[str]) -> list[str]:
            entries = [{"Id": str(index), "ReceiptHandle": receipt} for index, receipt in enumerate(batch)]
            hit(Failpoint.QUEUE_DELETE_BEFORE)
            answer = self._client.delete_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
            hit(Failpoint.QUEUE_DELETE_AFTER)
            return [entry["Id"] for entry in answer.get("Failed", [])]

        return self._in_batches(receipts, delete_batch)

    def change_visibility(self, changes: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Set the seconds until each delivery becomes visible; return the failed changes."""
        url = self.url

        def change_batch(batch: Sequence[tuple[str, int]]) -> list[str]:
            hit(Failpoint.QUEUE_VISIBILITY_BEFORE)
            answer = self._client.change_message_visibility_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": receipt, "VisibilityTimeout": _allowed(seconds)}
                    for index, (receipt, seconds) in enumerate(batch)
                ],
            )
            hit(Failpoint.QUEUE_VISIBILITY_AFTER)
            return [entry["Id"] for entry in answer.get("Failed", [])]

        return self._in_batches(changes, change_batch)

    def depth(self) -> QueueDepth:
        """Return the numbers of messages, as SQS approximates them."""
        attributes = self._attributes(
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        )
        return QueueDepth(
            visible=int(attributes["ApproximateNumberOfMessages"]),
            in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
            delayed=int(attributes["ApproximateNumberOfMessagesDelayed"]),
        )

    def rules(self) -> QueueRules:
        """Return the queue's visibility timeout, retention, redrive policy and access policy."""
        attributes = self._attributes("VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy", "Policy")
        redrive = json.loads(attributes.get("RedrivePolicy", "{}"))
        count = redrive.get("maxReceiveCount")
        return QueueRules(
            visibility_timeout=timedelta(seconds=int(attributes["VisibilityTimeout"])),
            retention=timedelta(seconds=int(attributes["MessageRetentionPeriod"])),
            max_receive_count=None if count is None else int(count),  # SQS accepts a number or a text
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
            policy=json.loads(attributes.get("Policy") or "{}"),
        )

    def _attributes(self, *names: QueueAttributeFilterType) -> Mapping[str, str]:
        try:
            answer = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        except (BotoCoreError, ClientError) as error:
            raise self._unavailable(error) from error
        return answer["Attributes"]  # type: ignore[return-value]

    def _in_batches(self, items: Sequence[Item], request: Callable[[Sequence[Item]], list[str]]) -> list[Item]:
        """Send items in parallel batches of ten; return items that failed, or whose request failed."""

        def send(batch: Sequence[Item]) -> list[Item]:
            try:
                return [batch[int(index)] for index in request(batch)]
            except (BotoCoreError, ClientError):
                return list(batch)

        batches = in_parts(items, lambda _: (1,), (BATCH,))
        with ThreadPoolExecutor(self._threads, thread_name_prefix="sqs-batch") as pool:
            return [item for failed in pool.map(with_context(send), batches) for item in failed]

    def _unavailable(self, error: BotoCoreError | ClientError) -> QueueUnavailableError:
        code = _code(error)
        if code in _MISSING:
            return QueueUnavailableError(
                "there is no such queue",
                observed=self.name,
                next_step="create the queue or set KFM_SQS_PRIMARY_QUEUE (dead letters: KFM_SQS_DLQ_QUEUE)",
            )
        return QueueUnavailableError(
            f"queue {self.name} does not answer",
            observed=code,
            next_step="check AWS_ENDPOINT_URL, region and credentials; for a demo: kfm ui, and . .kfm/samples.env",
        )


def _code(error: BotoCoreError | ClientError) -> str:
    return error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__


def _allowed(seconds: int) -> int:
    return max(0, min(seconds, MAX_VISIBILITY_SECONDS))
