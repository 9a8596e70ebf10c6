"""`kfm queue create` creates a queue once, and reports and repairs drift; Terraform and IAM policy agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2
import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.deployment.provisioning import (
    DLQ_RETENTION,
    MAX_PREFIXES,
    QUEUE_RETENTION,
    QueuePlan,
    filter_policy,
)
from kfm_dagster.errors import ExitCode
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests import clouds
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.factories import with_section

MODULE = Path(__file__).parents[2] / "deploy" / "terraform" / "queue" / "main.tf"
QUEUES = "GetQueueUrl GetQueueAttributes ReceiveMessage DeleteMessage ChangeMessageVisibility SendMessage"


@pytest.fixture
def cloud(cloud_server: EmbeddedCloud, contracts: ContractRegistry, home: Path) -> Iterator[EmbeddedCloud]:
    """A cloud with only the providers' topics."""
    servers = clouds.emptied(cloud_server)
    for arn in contracts.topics:
        account, name = arn.split(":")[4:6]
        servers.client("sns", account=account).create_topic(Name=name)
    with environment(servers.environment()):
        yield servers


def changes(call: Call, *options: str, dataset: str = "gfs") -> list[tuple[str, str]]:
    """Return the change of each part; check that the exit code is 4 exactly on drift."""
    answer = call("queue", "create", "--dataset", dataset, "--json", *options)
    parts = json.loads(answer.out)["parts"]
    drift = any(part["change"] == "drift" for part in parts)
    assert answer.code == (ExitCode.FINISHED_WITH_FAILURES if drift else ExitCode.DONE), answer.err
    return [(part["what"], part["change"]) for part in parts]


def cloud_state(cloud: EmbeddedCloud) -> dict[str, Any]:
    """Return every queue with its rules, and every subscription."""
    sqs, sns = cloud.client("sqs"), cloud.client("sns")
    moving = ("ApproximateNumber", "LastModified")
    queues = {}
    for url in sorted(sqs.list_queues().get("QueueUrls", [])):
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        queues[url.rpartition("/")[2]] = {key: value for key, value in attributes.items() if not key.startswith(moving)}
    arns = sorted(subscription["SubscriptionArn"] for subscription in sns.list_subscriptions()["Subscriptions"])
    return queues | {arn: sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"] for arn in arns}


def url_of(cloud: EmbeddedCloud, name: str) -> str:
    return cloud.client("sqs").get_queue_url(QueueName=name)["QueueUrl"]


@pytest.mark.clause("BEY-12")
def test_a_queue_is_created_once_and_a_dry_run_creates_nothing(
    cloud: EmbeddedCloud, contracts: ContractRegistry, call: Call
) -> None:
    planned = changes(call, "--dry-run")
    assert {change for _, change in planned} == {"created"}
    assert cloud_state(cloud) == {}
    assert changes(call) == planned
    created = cloud_state(cloud)
    assert (
        {change for _, change in changes(call)} == {change for _, change in changes(call, "--update")} == {"unchanged"}
    )
    assert cloud_state(cloud) == created
    primary, dlq = created[cloud.primary_queue], created[cloud.dlq]
    assert (primary["VisibilityTimeout"], primary["MessageRetentionPeriod"]) == ("900", "604800")
    assert dlq["MessageRetentionPeriod"] == "1209600"
    assert json.loads(primary["RedrivePolicy"]) == {"deadLetterTargetArn": dlq["QueueArn"], "maxReceiveCount": 5}
    [statement] = json.loads(primary["Policy"])["Statement"]
    assert primary["Policy"] == json.dumps(json.loads(primary["Policy"]), sort_keys=True)
    topics = [topic.arn for topic in contracts["gfs"].notifications.topics]
    assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": sorted(topics)}}
    assert statement["Resource"] == primary["QueueArn"]
    # Another dataset on the same queue is added to its policy.
    assert ("created" in dict(changes(call, dataset="nexrad-l2")).values()) is True
    both = json.loads(cloud_state(cloud)[cloud.primary_queue]["Policy"])["Statement"]
    assert [policy_part["Sid"] for policy_part in both] == ["KfmGfs", "KfmNexradL2"]
    assert both[0] == statement
    assert {change for _, change in changes(call)} == {"unchanged"}


@pytest.mark.clause("BEY-12")
@pytest.mark.parametrize("part", ["attribute", "policy", "filter", "raw"])
def test_drift_is_reported_and_repaired_only_on_request(part: str, cloud: EmbeddedCloud, call: Call) -> None:
    changes(call)
    sound = cloud_state(cloud)
    sqs, sns = cloud.client("sqs"), cloud.client("sns")
    url = url_of(cloud, cloud.primary_queue)
    policy = json.loads(sound[cloud.primary_queue]["Policy"])
    if part == "attribute":
        sqs.set_queue_attributes(
            QueueUrl=url, Attributes={"VisibilityTimeout": "30", "Policy": sound[cloud.primary_queue]["Policy"]}
        )
    elif part == "policy":
        policy["Statement"][0]["Condition"] = {"ArnEquals": {"aws:SourceArn": ["arn:aws:sns:us-east-1:1:other"]}}
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})
    else:
        [arn, *_] = [subscription["SubscriptionArn"] for subscription in sns.list_subscriptions()["Subscriptions"]]
        filtered = ("FilterPolicy", '{"Records": {"x": ["y"]}}')
        name, value = filtered if part == "filter" else ("RawMessageDelivery", "true")
        sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName=name, AttributeValue=value)
    spoilt = cloud_state(cloud)
    assert [change for _, change in changes(call)].count("drift") == 1
    assert [change for _, change in changes(call, "--update", "--dry-run")].count("updated") == 1
    assert cloud_state(cloud) == spoilt != sound
    assert [change for _, change in changes(call, "--update")].count("updated") == 1
    assert cloud_state(cloud) == sound
    assert {change for _, change in changes(call)} == {"unchanged"}


@pytest.mark.clause("BEY-11", "BEY-12")
def test_the_subscription_filters_by_dataset_and_passes_the_doctor(
    cloud: EmbeddedCloud, contracts: ContractRegistry, call: Call
) -> None:
    changes(call)
    diagnoses = json.loads(call("doctor", "--json").out)["findings"]
    reported = [
        finding for finding in diagnoses if finding["check"] in {"queue", "dead letters"} and finding["verdict"] != "ok"
    ]
    # Only gfs was requested.
    assert [(finding["verdict"], finding["what"]) for finding in reported] == [
        ("warning", "some datasets' topics may not send messages to the queue")
    ]
    assert "NewGFSObject" not in reported[0]["observed"]
    [topic] = [topic.arn for topic in contracts["gfs"].notifications.topics]
    publisher = cloud.client("sns", account=topic.split(":")[4])
    prefix = contracts["gfs"].storage.prefixes[0]
    for key in (f"{prefix}x", "elsewhere/x"):
        message = json.dumps({"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": key}}}]})
        publisher.publish(TopicArn=topic, Message=message)
    received = cloud.client("sqs").receive_message(
        QueueUrl=url_of(cloud, cloud.primary_queue), MaxNumberOfMessages=10, WaitTimeSeconds=1
    )["Messages"]
    keys = [
        json.loads(json.loads(message["Body"])["Message"])["Records"][0]["s3"]["object"]["key"] for message in received
    ]
    assert keys == [f"{prefix}x"]


@pytest.mark.clause("BEY-12")
def test_terraform_creates_the_same_resources_as_the_command(contracts: ContractRegistry, call: Call) -> None:
    plan = QueuePlan.of(contracts["gfs"], contracts, Settings.load())
    printed = call("queue", "create", "--dataset", "gfs", "--print", "terraform").out
    [called] = hcl2.loads(printed)["module"]
    [arguments] = called.values()
    module = hcl2.loads(MODULE.read_text(encoding="utf-8"))
    variables = {_plain(name): body for block in module["variable"] for name, body in block.items()}
    assert {_plain(name) for name in arguments} - {"source"} - {"__is_block__"} <= set(variables)
    expected = plan.attributes("dlq")
    assert (arguments["visibility_timeout"], arguments["max_receive_count"]) == (int(expected["VisibilityTimeout"]), 5)
    assert _plain(arguments["queue_name"]) == plan.queue
    topics = {_plain(arn): json.loads(json.loads(policy)) for arn, policy in arguments["topics"].items()}
    assert topics == plan.subscriptions
    resources = {
        (_plain(kind), _plain(name)): body
        for block in module["resource"]
        for kind, named in block.items()
        for name, body in named.items()
    }
    assert resources["aws_sqs_queue", "primary"]["message_retention_seconds"] == QUEUE_RETENTION
    assert resources["aws_sqs_queue", "dlq"]["message_retention_seconds"] == DLQ_RETENTION
    primary = json.dumps(resources["aws_sqs_queue", "primary"])
    assert "aws_sqs_queue.dlq.arn" in primary
    assert "var.max_receive_count" in primary
    statement = plan.statement("queue")
    [document] = [body for block in module["data"] for named in block.values() for body in named.values()]
    text = json.dumps(document)
    assert all(
        word in text for word in (statement["Action"], statement["Principal"]["Service"], "ArnEquals", "aws:SourceArn")
    )
    subscription = resources["aws_sns_topic_subscription", "topic"]
    assert _plain(subscription["protocol"]) == "sqs"
    assert subscription["raw_message_delivery"] is False
    assert "MessageBody" in subscription["filter_policy_scope"]


@pytest.mark.clause("BEY-12")
def test_the_printed_policy_allows_exactly_the_deployments_requests(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_CATALOG_URL", "s3://ours/catalog")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    policy = json.loads(call("queue", "create", "--dataset", "gfs", "--print", "iam").out)
    allowed = {(action, arn) for part in policy["Statement"] for action in part["Action"] for arn in part["Resource"]}
    resources = {
        **{f"arn:aws:sqs:us-east-1:*:kfm-nodd-{name}": f"sqs:{QUEUES}" for name in ("primary", "dlq")},
        "arn:aws:s3:::noaa-gfs-bdp-pds": "s3:ListBucket",
        "arn:aws:s3:::noaa-gfs-bdp-pds/*": "s3:GetObject GetObjectVersion",
        "arn:aws:s3:::ours": "s3:ListBucket",
        "arn:aws:s3:::ours/catalog/*": "s3:GetObject PutObject DeleteObject",
    }
    assert allowed == {
        (f"{service}:{action}", arn)
        for arn, actions in resources.items()
        for service, _, named in [actions.partition(":")]
        for action in named.split()
    }


def test_the_visibility_timeout_follows_contract_and_lease(contracts: ContractRegistry) -> None:
    contract = contracts["gfs"]
    for visibility, lease, timeout in ((900, 960, 900), (1200, 960, 1200), (900, 1261, 1201), (1201, 1260, 1201)):
        queue = contract.queue.model_copy(update={"visibility_timeout": visibility})
        changed = contract.model_copy(update={"queue": queue})
        planned = QueuePlan.of(changed, contracts, Settings.load(lease_seconds=lease))
        assert planned.visibility_timeout == timeout, (visibility, lease)


def test_a_filter_respects_the_prefix_limit_of_sns_and_exists_only_for_s3_events(contracts: ContractRegistry) -> None:
    def filtered(count: int) -> bool:
        prefixes = [f"gfs.{number}" for number in range(count)]
        registry = ContractRegistry.of([with_section(contracts["gfs"], "storage", prefixes=prefixes)])
        [arn] = registry.topics
        return filter_policy(registry, arn) is not None

    assert [filtered(count) for count in (MAX_PREFIXES, MAX_PREFIXES + 1)] == [True, False]
    [chunks] = contracts["nexrad-l2-chunks"].notifications.topics
    assert filter_policy(contracts, chunks.arn) is None


def test_a_retired_topic_is_not_subscribed(cloud: EmbeddedCloud, call: Call) -> None:
    call("queue", "create", "--dataset", "surface-obs").refused("needs no queue; observed Retired since 2025-08-29: ")
    subscribed = {part.rpartition(":")[2] for part, _ in changes(call, dataset="goes-glm") if "subscription" in part}
    assert subscribed == {"NewGOES18Object", "NewGOES19Object"}


def _plain(text: str) -> str:
    return text.strip('"')
