"""The queue client, against an SQS server on loopback."""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ExitCode, QueueUnavailableError
from kfm_dagster.notifications import sqs
from kfm_dagster.notifications.messages import QueueDepth, QueueRules, SendOutcome
from kfm_dagster.notifications.sqs import MAX_SEND_BYTES, Queue, connect, connect_dead_letters
from kfm_dagster.settings import Settings

pytestmark = pytest.mark.usefixtures("aws")


@pytest.fixture
def queue(aws: EmbeddedCloud) -> Queue:
    """Create a queue for the test."""
    name = f"q-{uuid.uuid4()}"
    client().create_queue(QueueName=name)
    return connect(Settings(receive_threads=4), name=name)


def client() -> Any:
    """Return an SQS client of the environment's server."""
    return boto3.client("sqs")


def fill(queue: Queue, number: int) -> None:
    for start in range(0, number, 10):
        entries = [{"Id": str(n), "MessageBody": f"body {n}"} for n in range(start, min(start + 10, number))]
        client().send_message_batch(QueueUrl=queue.url, Entries=entries)


def test_without_a_region_the_queue_is_in_noaas_region(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    from kfm_dagster.defs.resources import SqsQueueResource

    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    settings = Settings(sqs_primary_queue=queue.name)
    assert [client.connect(settings).url for client in (sqs, SqsQueueResource())] == [queue.url] * 2


def test_receive_returns_each_message_once(queue: Queue) -> None:
    fill(queue, 45)
    received = queue.receive(1000, budget_seconds=20)
    assert sorted(message.body for message in received) == sorted(f"body {n}" for n in range(45))
    first = received[0]
    assert first.receive_count >= 1
    assert first.receipt_handle
    assert abs(datetime.now(UTC) - first.sent_at) < timedelta(minutes=5)
    assert queue.depth() == QueueDepth(visible=0, in_flight=45, delayed=0)


def test_receive_returns_at_most_the_requested_number_within_its_time(queue: Queue) -> None:
    fill(queue, 40)
    assert queue.receive(10, budget_seconds=0) == []
    assert len(queue.receive(23, budget_seconds=20)) == 23
    assert queue.depth() == QueueDepth(visible=17, in_flight=23, delayed=0)
    assert queue.receive(0, budget_seconds=20) == []


def test_messages_are_deleted_and_failed_receipts_returned(queue: Queue) -> None:
    fill(queue, 25)
    receipts = [message.receipt_handle or "" for message in queue.receive(25, budget_seconds=20)]
    assert queue.delete([*receipts[:12], "no receipt", *receipts[12:24]]) == ["no receipt"]
    assert queue.depth() == QueueDepth(visible=0, in_flight=1, delayed=0)
    assert queue.delete([]) == []


def test_the_visibility_timeout_decides_when_a_message_is_received_again(queue: Queue) -> None:
    fill(queue, 15)
    received = queue.receive(15, budget_seconds=20)
    changes = [(message.receipt_handle or "", 0 if index < 11 else 10**9) for index, message in enumerate(received)]
    assert queue.change_visibility(changes) == []
    again = queue.receive(15, budget_seconds=20)
    assert {message.message_id for message in again} == {message.message_id for message in received[:11]}
    assert min(message.receive_count for message in again) >= 2
    assert queue.change_visibility([("no receipt", 5)]) == [("no receipt", 5)]


def test_a_missing_queue_is_an_error_with_the_next_step() -> None:
    queue = connect(Settings(sqs_primary_queue="not-there"))
    uses = (queue.depth, queue.rules, lambda: queue.receive(1, budget_seconds=1), lambda: queue.delete(["r"]))
    for use in (*uses, lambda: queue.send(["body"])):
        with pytest.raises(QueueUnavailableError, match="create the queue or set KFM_SQS_PRIMARY_QUEUE") as caught:
            use()
        assert "not-there" in str(caught.value)
        assert caught.value.exit_code is ExitCode.DEPENDENCY_UNAVAILABLE


def test_silent_endpoint_is_unavailable_and_shows_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(QueueUnavailableError, match=r"does not answer; observed EndpointC.*; next: ch") as caught:
        connect(Settings()).depth()
    assert "testing" not in str(caught.value)


def test_connecting_makes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert connect(Settings()).name == "kfm-nodd-primary"
    assert connect_dead_letters(Settings()).name == "kfm-nodd-dlq"


def test_looking_returns_each_message_once_and_leaves_all_visible(queue: Queue) -> None:
    fill(queue, 35)
    messages = queue.look(100, budget_seconds=20)
    assert sorted(message.body for message in messages) == sorted(f"body {n}" for n in range(35))
    assert len({message.message_id for message in messages}) == 35
    assert queue.depth() == QueueDepth(visible=35, in_flight=0, delayed=0)
    # The messages can still be deleted: no other client has received them.
    # One request at a time, because moto loses concurrent deletions.
    for message in messages:
        assert queue.delete([message.receipt_handle or ""]) == []
    assert queue.depth().total == 0


def test_received_messages_are_hidden_for_at_most_sqs_s_maximum(queue: Queue) -> None:
    client().set_queue_attributes(QueueUrl=queue.url, Attributes={"VisibilityTimeout": "0"})
    fill(queue, 12)
    assert len(queue.receive(12, budget_seconds=20, visibility_seconds=10**9)) == 12
    assert queue.depth() == QueueDepth(visible=0, in_flight=12, delayed=0)


def test_sent_messages_are_received_with_the_returned_ids(queue: Queue) -> None:
    bodies = [f"body {n}" for n in range(25)]
    sent = queue.send(bodies)
    assert [outcome.refusal for outcome in sent] == [None] * 25
    received = {message.message_id: message.body for message in queue.receive(100, budget_seconds=20)}
    assert received == {outcome.message_id: body for outcome, body in zip(sent, bodies, strict=True)}
    assert queue.send([]) == []


def test_large_bodies_share_a_request_only_as_far_as_sqs_allows(queue: Queue) -> None:
    half, whole = "\N{DEGREE SIGN}" * (MAX_SEND_BYTES // 4), "x" * MAX_SEND_BYTES
    bodies = [half, half, half, whole, "small", "small"]
    assert all(outcome.message_id for outcome in queue.send(bodies))
    assert sorted(message.body for message in queue.receive(10, budget_seconds=20)) == sorted(bodies)


def test_queue_rules_have_visibility_timeout_retention_and_redrive_policy(queue: Queue) -> None:
    assert queue.rules() == QueueRules(visibility_timeout=timedelta(seconds=30), retention=timedelta(days=4))
    arn = "arn:aws:sqs:us-east-1:123456789012:" + queue.name
    dead_letters = connect(Settings(), name=f"{queue.name}-dlq")
    client().create_queue(QueueName=dead_letters.name)
    client().set_queue_attributes(
        QueueUrl=queue.url,
        Attributes={
            "VisibilityTimeout": "900",
            "MessageRetentionPeriod": "1209600",
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{arn}-dlq", "maxReceiveCount": "5"}),
        },
    )
    assert queue.rules() == QueueRules(
        visibility_timeout=timedelta(minutes=15),
        retention=timedelta(days=14),
        max_receive_count=5,
        dead_letter_arn=f"{arn}-dlq",
    )


def delivery(identity: str, *, count: int) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": str(count), "SentTimestamp": "1764720260123"}
    return {"MessageId": identity, "Body": "b", "ReceiptHandle": f"{identity}-{count}", "Attributes": attributes}


GONE = EndpointConnectionError(endpoint_url="http://elsewhere")


def flaky(*deliveries: dict[str, Any]) -> Mock:
    """Return a client that delivers these messages one by one, and then fails to connect."""
    client = Mock(**{"get_queue_url.return_value": {"QueueUrl": "url"}})
    client.receive_message.side_effect = [*({"Messages": [message]} for message in deliveries), *[GONE] * 9]
    return client


def test_message_delivered_twice_is_one_message_with_the_later_receipt() -> None:
    client = flaky(delivery("m", count=2), delivery("m", count=1))
    (received,) = Queue(client, name="q", threads=1).receive(10, budget_seconds=20)
    assert (received.receipt_handle, received.receive_count) == ("m-2", 2)
    assert received.sent_at == datetime(2025, 12, 3, 0, 4, 20, 123000, tzinfo=UTC)


def test_messages_received_before_an_error_are_kept() -> None:
    client = flaky(*(delivery(f"m{number}", count=1) for number in range(3)))
    queue = Queue(client, name="q", threads=2)
    assert len(queue.receive(100, budget_seconds=20)) == 3
    with pytest.raises(QueueUnavailableError):
        queue.receive(100, budget_seconds=20)
    assert client.get_queue_url.call_count == 1


def test_receipts_of_a_failed_request_are_returned() -> None:
    client = flaky()
    client.delete_message_batch.side_effect = ClientError({"Error": {"Code": "RequestThrottled"}}, "DeleteMessageBatch")
    receipts = [f"r{n}" for n in range(25)]
    assert Queue(client, name="q", threads=2).delete(receipts) == receipts


def test_refused_entries_and_a_failed_request_are_reported_per_message() -> None:
    client, accepted = flaky(), (0, 1, 2, *range(4, 10))
    failed = [{"Id": "3", "Code": "InternalError", "SenderFault": False}]
    answer = {"Successful": [{"Id": str(n), "MessageId": str(n)} for n in accepted], "Failed": failed}
    client.send_message_batch.side_effect = [answer, GONE]
    outcomes = Queue(client, name="q", threads=1).send([f"body {n}" for n in range(12)])
    assert [number for number, outcome in enumerate(outcomes) if outcome.message_id] == [*accepted]
    assert outcomes[3] == SendOutcome(refusal="InternalError")
    assert outcomes[10:] == [SendOutcome(refusal="EndpointConnectionError")] * 2
