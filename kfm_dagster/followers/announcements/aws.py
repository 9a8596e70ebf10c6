"""Receivers of AWS: SNS topics, SQS queues and EventBridge buses, ten events a request.

Endpoint and credentials come from the AWS environment. Does not belong here: handling of answers (`sending.py`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.followers.announcements.event import TYPES, OutgoingEvent
from kfm_dagster.followers.announcements.sending import TAKEN, ReceiverAnswer, ReceiverUnavailableError, Reception
from kfm_dagster.notifications.sqs import DEFAULT_REGION, bounded

MOST = 10
"""Maximum entries of a PublishBatch, SendMessageBatch or PutEvents request (API references)."""
EVENT_SOURCE = "kfm.nodd"
"""`source` of events on a bus; the rules of the bus can select events by their source."""

_OF_THE_REQUEST = ("BatchRequestTooLong", "InvalidMessageContents", "RequestEntityTooLarge")
"""Parts of error codes by which a request is refused for its content; then each event is sent in its own request."""
_OF_US = re.compile(r"Throttl|AccessDenied|Authoriz|KMS|Internal|Unavailable|Timeout|LimitExceeded", re.IGNORECASE)
"""Error codes whose cause is the sender, the target or a temporary state, even if the answer's `SenderFault` blames the
event."""
_REGION_OF_URL = re.compile(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.com")

_MAY_NOT_ASK = re.compile(r"AccessDenied|Authoriz|Forbidden")
"""Error codes if the sender is not allowed to describe the target. It can still be allowed to send to the target."""

Connect = Callable[[str, str | None], Any]


def connect(service: str, region: str | None) -> Any:
    """Create a client of a service, without a request."""
    # Imported here, because the import takes 0.8 CPU seconds, and only a process that sends events needs boto3.
    import boto3  # noqa: PLC0415

    session = boto3.session.Session()
    region = region or session.region_name or DEFAULT_REGION
    return session.client(service, region_name=region, config=bounded(MOST, max_attempts=2))  # type: ignore[call-overload]


class AwsReceiver:
    """An SNS topic, SQS queue or EventBridge bus; `address` is an ARN, a URL or a name.

    A topic or queue whose name ends with `.fifo` removes duplicates by the event's id. On a bus, events have the source
    `kfm.nodd`, their type as detail-type, and the whole event as detail.
    """

    most = MOST

    def __init__(self, service: str, address: str, *, connect: Connect = connect) -> None:
        self._service = service
        self._address = address
        self._connect = connect
        self._lock = threading.Lock()
        self._connected: Any = None

    def send(self, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
        """Send the events in one request."""
        try:
            return self._answers(events)
        except (BotoCoreError, ClientError) as error:
            code = _code(error)
            if any(part in code for part in _OF_THE_REQUEST):
                return [ReceiverAnswer(reception=Reception.REFUSED, error=code)] * len(events)
            raise ReceiverUnavailableError(f"{self._service}: {code}") from None

    def ask(self) -> bool:
        """Check the target; return False if the check is forbidden. Raises ReceiverUnavailableError."""
        try:
            match self._service:
                case "sns":
                    self._client.get_topic_attributes(TopicArn=self._address)
                case "sqs":
                    self._client.get_queue_attributes(QueueUrl=self._address, AttributeNames=["QueueArn"])
                case _:
                    self._client.describe_event_bus(Name=self._address)
        except (BotoCoreError, ClientError) as error:
            code = _code(error)
            if _MAY_NOT_ASK.search(code):
                return False
            raise ReceiverUnavailableError(f"{self._service}: {code}") from None
        return True

    @property
    def region(self) -> str | None:
        """Region that an ARN or a URL of AWS names."""
        if self._service == "sqs":
            of_url = _REGION_OF_URL.match(self._address)
            return of_url[1] if of_url else None
        return self._address.split(":")[3] if self._address.startswith("arn:") else None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._connected is None:
                service = "events" if self._service == "eventbridge" else self._service
                self._connected = self._connect(service, self.region)
            return self._connected

    def _answers(self, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
        """Send the request, and return an answer for each event."""
        if self._service == "eventbridge":
            entries = [
                {
                    "EventBusName": self._address,
                    "Source": EVENT_SOURCE,
                    "DetailType": TYPES[event.kind],
                    "Detail": event.body.decode(),
                    "Time": event.time,
                }
                for event in events
            ]
            results = self._client.put_events(Entries=entries)["Entries"]
            return [_answer(entry.get("ErrorCode"), sender_fault=True) for entry in results]
        body = "Message" if self._service == "sns" else "MessageBody"
        entries = [
            {
                "Id": str(number),
                body: event.body.decode(),
                "MessageAttributes": _attributes(event),
                **_order(self._address, event),
            }
            for number, event in enumerate(events)
        ]
        if self._service == "sns":
            answer = self._client.publish_batch(TopicArn=self._address, PublishBatchRequestEntries=entries)
        else:
            answer = self._client.send_message_batch(QueueUrl=self._address, Entries=entries)
        return _by_number(answer, len(events))


def _code(error: BotoCoreError | ClientError) -> str:
    return error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__


def _attributes(event: OutgoingEvent) -> dict[str, Any]:
    """Return attributes for subscribers' filter policies, because policies do not read the body."""
    values = {"content-type": event.content_type, "ce-type": TYPES[event.kind], "ce-collection": event.collection}
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}


def _order(address: str, event: OutgoingEvent) -> dict[str, str]:
    if not address.endswith(".fifo"):
        return {}
    # Events of an Item keep their order; AWS limits a group's id to 128 characters.
    return {"MessageGroupId": event.group, "MessageDeduplicationId": event.event_id}


def _by_number(answer: Mapping[str, Any], count: int) -> list[ReceiverAnswer]:
    """Return the answer for each entry; an entry that the response omits counts as failed."""
    answers = dict.fromkeys(range(count), ReceiverAnswer(reception=Reception.FAILED, error="no answer for this event"))
    answers |= {int(entry["Id"]): TAKEN for entry in answer.get("Successful", [])}
    for entry in answer.get("Failed", []):
        answers[int(entry["Id"])] = _answer(entry["Code"], sender_fault=entry.get("SenderFault", False))
    return [answers[number] for number in range(count)]


def _answer(code: str | None, *, sender_fault: bool) -> ReceiverAnswer:
    if code is None:
        return TAKEN
    lasting = sender_fault and _OF_US.search(code) is None
    return ReceiverAnswer(reception=Reception.REFUSED if lasting else Reception.FAILED, error=code)
