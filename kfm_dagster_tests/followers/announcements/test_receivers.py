"""Announcements to SNS, SQS, EventBridge and webhooks, against servers on loopback."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from pydantic import SecretStr

from kfm_dagster.catalog.changes import ChangeKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.followers.announcements.aws import AwsReceiver
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.followers.announcements.sending import ReceiverUnavailableError, Reception
from kfm_dagster.followers.announcements.webhook import Webhook
from kfm_dagster.notifications.receiving import in_parts
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.catalog.envelopes import goes
from kfm_dagster_tests.followers.announcements.changes import announcer_to, item_of
from kfm_dagster_tests.followers.announcements.test_event import CLOUDEVENT, writer
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server
from kfm_dagster_tests.followers.changes import change

pytestmark = pytest.mark.clause("OPR-22")

ITEMS = 23
"""More events than fit into two requests."""


class Mailbox:
    """A queue of one test."""

    def __init__(self, sqs: Any, *, fifo: bool = False) -> None:
        self._sqs = sqs
        self.name = f"q-{uuid.uuid4()}{'.fifo' if fifo else ''}"
        attributes = {"FifoQueue": "true"} if fifo else {}
        self.url = sqs.create_queue(QueueName=self.name, Attributes=attributes)["QueueUrl"]
        self.arn = f"arn:aws:sqs:us-east-1:123456789012:{self.name}"

    def receive(self) -> list[dict[str, Any]]:
        """Receive and delete all messages."""
        messages: list[dict[str, Any]] = []
        while batch := self._sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        ).get("Messages"):
            for message in batch:
                self._sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
            messages += batch
        return messages


def announce(target: str, database: Database, contracts: ContractRegistry, *, times: int = 1) -> set[str]:
    """Announce the Items to a target `times` times; return the Items' ids."""
    announcer = announcer_to(target, database, contracts)
    items = [item_of(contracts, goes(number)) for number in range(ITEMS)]
    for _ in range(times):
        announcer.follow(contracts["goes-abi"], [change(number, item) for number, item in enumerate(items, 1)])
    return {item["id"] for item in items}


@pytest.mark.one_database
def test_a_queue_gets_each_event_with_the_attributes_that_filters_use(
    aws: EmbeddedCloud, database: Database, contracts: ContractRegistry
) -> None:
    box = Mailbox(boto3.client("sqs"))
    announced = announce(f"sqs: '{box.url}'", database, contracts, times=2)
    messages = box.receive()
    assert len(messages) == ITEMS
    events = [json.loads(message["Body"]) for message in messages]
    for event in events:
        CLOUDEVENT.validate(event)
    assert {event["data"]["id"] for event in events} == announced
    attributes = {name: value["StringValue"] for name, value in messages[0]["MessageAttributes"].items()}
    assert attributes == {
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "ce-type": "kfm.nodd.item.created",
        "ce-collection": events[0]["collection"],
    }


@pytest.mark.one_database
def test_a_fifo_queue_delivers_an_event_once_even_if_sent_again(
    aws: EmbeddedCloud, contracts: ContractRegistry
) -> None:
    box = Mailbox(boto3.client("sqs"), fifo=True)
    event = writer().write("c", change(1, item_of(contracts)), ChangeKind.CREATED)
    receiver = AwsReceiver("sqs", box.url)
    for _ in range(3):
        assert [answer.reception for answer in receiver.send([event])] == [Reception.TAKEN]
    assert len(box.receive()) == 1


@pytest.mark.one_database
def test_a_topic_forwards_events_by_the_queues_filter_policies(
    aws: EmbeddedCloud, database: Database, contracts: ContractRegistry
) -> None:
    sns = boto3.client("sns")
    topic = sns.create_topic(Name=f"t-{uuid.uuid4()}")["TopicArn"]
    wanting, other = Mailbox(boto3.client("sqs")), Mailbox(boto3.client("sqs"))
    for box, kind in ((wanting, "created"), (other, "withdrawn")):
        policy = json.dumps({"ce-type": [f"kfm.nodd.item.{kind}"]})
        attributes = {"RawMessageDelivery": "true", "FilterPolicy": policy}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=box.arn, Attributes=attributes)
    announced = announce(f"sns: '{topic}'", database, contracts)
    events = [json.loads(message["Body"]) for message in wanting.receive()]
    assert {event["data"]["id"] for event in events} == announced
    assert len(events) == ITEMS
    assert other.receive() == []


@pytest.mark.one_database
def test_rules_of_a_bus_select_events_by_source_and_type(
    aws: EmbeddedCloud, database: Database, contracts: ContractRegistry
) -> None:
    events, bus, box = boto3.client("events"), f"b-{uuid.uuid4()}", Mailbox(boto3.client("sqs"))
    events.create_event_bus(Name=bus)
    pattern = {"source": ["kfm.nodd"], "detail-type": ["kfm.nodd.item.created"]}
    events.put_rule(Name="items", EventBusName=bus, EventPattern=json.dumps(pattern))
    events.put_targets(Rule="items", EventBusName=bus, Targets=[{"Id": "1", "Arn": box.arn}])
    announced = announce(f"eventbridge: {bus}", database, contracts)
    details = [json.loads(message["Body"])["detail"] for message in box.receive()]
    for event in details:
        CLOUDEVENT.validate(event)
    assert {event["data"]["id"] for event in details} == announced


def answered(service: str, answer: dict[str, Any] | Exception) -> AwsReceiver:
    """Return a receiver with a client that gives this answer to its request."""
    call = Mock(side_effect=[answer])
    client = Mock(publish_batch=call, send_message_batch=call, put_events=call, get_queue_attributes=call)
    return AwsReceiver(service, "arn:aws:sns:us-east-1:123456789012:t", connect=lambda *_: client)


def outgoing(contracts: ContractRegistry, number: int) -> list[OutgoingEvent]:
    items = [item_of(contracts, goes(index)) for index in range(number)]
    return [writer().write("c", change(position, item), ChangeKind.CREATED) for position, item in enumerate(items, 1)]


def failing(*codes: tuple[str, bool]) -> dict[str, Any]:
    """Return an answer: first entry accepted, then one failure per code, no further entries."""
    failed = [{"Id": str(n), "Code": code, "SenderFault": fault} for n, (code, fault) in enumerate(codes, 1)]
    return {"Successful": [{"Id": "0", "MessageId": "m"}], "Failed": failed}


T, F, R = Reception.TAKEN, Reception.FAILED, Reception.REFUSED


def test_each_entry_of_a_request_has_its_own_answer(contracts: ContractRegistry) -> None:
    codes = (("InternalError", False), ("InvalidMessageContents", True), ("KMS.AccessDeniedException", True))
    for service in ("sns", "sqs"):
        receptions = answered(service, failing(*codes)).send(outgoing(contracts, 5))
        assert [answer.reception for answer in receptions] == [T, F, R, F, F]
        assert [answer.error for answer in receptions] == [
            None,
            *(code for code, _ in codes),
            "no answer for this event",
        ]
    answers = [{"EventId": "1"}, {"ErrorCode": "ThrottlingException"}, {"ErrorCode": "MalformedDetail"}]
    receiver = answered("eventbridge", {"FailedEntryCount": 2, "Entries": answers})
    assert [answer.reception for answer in receiver.send(outgoing(contracts, 3))] == [T, F, R]


def test_codes_about_the_sender_or_a_temporary_state_are_failures_not_refusals(contracts: ContractRegistry) -> None:
    codes = (
        "Throttling", "AuthorizationError", "AccessDenied", "KmsDisabled", "InternalFailure", "ServiceUnavailable",
        "RequestTimeout", "RequestLimitExceeded", "InvalidParameterValue",
    )  # fmt: skip
    receiver = answered("sqs", failing(*((code, True) for code in codes)))
    answers = receiver.send(outgoing(contracts, len(codes) + 1))
    assert [answer.reception for answer in answers] == [T, *[F] * (len(codes) - 1), R]


def test_denied_access_to_a_target_is_distinguished_from_a_missing_target() -> None:
    for code in ("AccessDenied", "AuthorizationError", "Forbidden"):
        assert answered("sqs", client_error(code)).ask() is False, code
    with pytest.raises(ReceiverUnavailableError, match="sqs: NotFound"):
        answered("sqs", client_error("NotFound")).ask()


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "s3cr3t-word"}}, "Send")


def test_a_request_is_refused_for_its_size_or_contents_and_fails_for_other_errors(contracts: ContractRegistry) -> None:
    of_the_request = ("AWS.SimpleQueueService.BatchRequestTooLong", "InvalidMessageContents", "RequestEntityTooLarge")
    for code in of_the_request:
        answers = answered("sqs", client_error(code)).send(outgoing(contracts, 2))
        assert [answer.reception for answer in answers] == [R, R], code
    for error in (client_error("AccessDenied"), client_error("NotFound"), EndpointConnectionError(endpoint_url="u")):
        with pytest.raises(ReceiverUnavailableError, match=r"sns: (AccessDenied|NotFound|EndpointConnectionError)"):
            answered("sns", error).send(outgoing(contracts, 2))


REGIONS: Sequence[tuple[str, str, str | None]] = [
    ("sqs", "https://sqs.eu-west-1.amazonaws.com/123456789012/q", "eu-west-1"),
    ("sqs", "http://127.0.0.1:4566/123456789012/q", None),
    ("sns", "arn:aws:sns:us-west-2:123456789012:t", "us-west-2"),
    ("eventbridge", "arn:aws:events:us-east-2:123456789012:event-bus/b", "us-east-2"),
    ("eventbridge", "default", None),
]


def test_requests_keep_the_limits_of_events_and_bytes_and_go_to_the_targets_region(
    contracts: ContractRegistry,
) -> None:
    events = outgoing(contracts, 25)
    two = events[0].size + events[1].size
    cases = [(25, 10**9, [10, 10, 5]), (4, two, [2, 2]), (4, two - 1, [1, 1, 1, 1]), (2, 1, [1, 1]), (0, 1, [])]
    for count, room, sizes in cases:
        parts = in_parts(events[:count], lambda event: (1, event.size), (10, room))
        assert [len(batch) for batch in parts] == sizes
    for service, address, region in REGIONS:
        assert AwsReceiver(service, address).region == region


SECRET = "s3cr3t-word"
SHORT_SECONDS = 0.5
"""Time limit of a test for a receiver that never answers."""


def reception(contracts: ContractRegistry, webhook: Webhook) -> Reception | str:
    event = writer().write("c", change(1, item_of(contracts)), ChangeKind.CREATED)
    try:
        [answer] = webhook.send([event])
    except ReceiverUnavailableError as error:
        return str(error)
    return answer.reception


def test_a_webhook_gets_events_by_the_http_binding_of_cloudevents_with_the_token(
    web_server: WebServer, database: Database, contracts: ContractRegistry
) -> None:
    target = f'webhook: "{web_server.url("items?topic=a")}"'
    announcer = announcer_to(target, database, contracts, token=SecretStr(SECRET))
    items = [item_of(contracts, goes(number)) for number in range(12)]
    announcer.follow(contracts["goes-abi"], [change(number, item) for number, item in enumerate(items, 1)])
    assert len(web_server.requests) == 12
    for command, path, headers, body in web_server.requests:
        assert (command, path) == ("POST", "/items?topic=a")
        assert headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert json.loads(body)["specversion"] == "1.0"
    assert {json.loads(body)["data"]["id"] for *_, body in web_server.requests} == {item["id"] for item in items}


STATUSES: dict[Reception, tuple[int, ...]] = {
    Reception.TAKEN: (200, 299),
    Reception.REFUSED: (400, 409, 413, 415),
    Reception.FAILED: (408, 500, 502, 504),
}
ANSWERS: list[tuple[WebAnswer, Reception | str]] = [
    *((WebAnswer(status=status), becomes) for becomes, statuses in STATUSES.items() for status in statuses),
    (WebAnswer(status=202, body=b"thanks"), Reception.TAKEN),
    (WebAnswer(status=200, endless=True), Reception.TAKEN),
    (WebAnswer(status=422, body=b"x" * 100_000), Reception.REFUSED),
    *((WebAnswer(status=status), f"HTTP {status}") for status in (401, 404, 410, 429, 503)),
]


def test_an_http_status_counts_against_the_event_or_the_receiver(
    web_server: WebServer, contracts: ContractRegistry
) -> None:
    webhook = Webhook(web_server.url())
    for answer, becomes in ANSWERS:
        web_server.answers = lambda _, answer=answer: answer
        assert reception(contracts, webhook) == becomes, answer.status


def test_a_redirect_is_not_followed(web_server: WebServer, contracts: ContractRegistry) -> None:
    with open_web_server() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            web_server.answers = lambda _, status=status: WebAnswer(
                status=status, headers={"Location": elsewhere.url()}
            )
            outcome = reception(contracts, Webhook(web_server.url(), token=SecretStr(SECRET)))
            assert outcome == f"HTTP {status}, a redirect, which is not followed"
        assert elsewhere.requests == []


def test_a_hanging_or_dead_receiver_costs_bounded_time_and_its_error_has_no_credential(
    web_server: WebServer, contracts: ContractRegistry
) -> None:
    web_server.answers = lambda _: WebAnswer(status=None)
    hanging = Webhook(web_server.url(f"items?code={SECRET}"), seconds=SHORT_SECONDS)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening
        dead = Webhook(f"http://127.0.0.1:{closed.getsockname()[1]}/{SECRET}", seconds=SHORT_SECONDS)
        errors = [str(reception(contracts, webhook)) for webhook in (hanging, dead)]
    assert [text.startswith("no answer (") for text in errors] == [True, True]
    assert SECRET not in "".join(errors)
