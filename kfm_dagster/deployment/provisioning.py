"""`kfm queue create`: plan and create a dataset's queues and subscriptions (BEY-12).

`deploy/terraform/queue` is the same plan for Terraform; a test compares both. Missing parts are created. Differences
are reported, or corrected with `update`. A repetition changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ConfigurationError, QueueUnavailableError
from kfm_dagster.ingest.preflight import stores
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sqs import SQSClient


QUEUE_RETENTION = 7 * 86_400
"""Seconds; shorter than the DLQ's, because a dead letter's age counts from its first sending."""
DLQ_RETENTION = 14 * 86_400
"""Seconds; SQS's maximum."""
LEASE_MARGIN_SECONDS = 60
"""Seconds that a lease lasts longer than a message stays hidden."""
MAX_PREFIXES = 37
"""SNS multiplies the number of a filter's values by their depth, 4 here; the product must not exceed 150 (SNS developer
guide, filter policies)."""
READ = ("sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:ReceiveMessage", "sqs:DeleteMessage")
"""Actions that read a queue and delete its messages. A deployment also hides messages and moves them between queues."""
WORK = (*READ, "sqs:ChangeMessageVisibility", "sqs:SendMessage")

_ABSENT = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
Attributes = Mapping[str, str]
Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePlan:
    """The plan of a dataset's queue; `subscriptions` maps each topic to a filter policy or None."""

    dataset: str
    queue: str
    dlq: str
    visibility_timeout: int
    max_receive_count: int
    subscriptions: Mapping[str, Document | None]

    @classmethod
    def of(cls, contract: DatasetContract, registry: ContractRegistry, settings: Settings) -> QueuePlan:
        """Plan a dataset's queue. Raises ConfigurationError for a dataset without topics."""
        topics = contract.live_topics(datetime.now(UTC).date())
        if not topics:
            raise ConfigurationError(
                f"{contract.id} needs no queue",
                observed=contract.metadata.notice or "its contract names no topic",
                expected="notifications.topics",
                next_step="use kfm backfill, which lists the dataset's buckets",
            )
        return cls(
            dataset=contract.id,
            queue=settings.sqs_primary_queue,
            dlq=settings.sqs_dlq_queue,
            visibility_timeout=max(contract.queue.visibility_timeout, settings.lease_seconds - LEASE_MARGIN_SECONDS),
            max_receive_count=contract.queue.max_receive_count,
            subscriptions={arn: filter_policy(registry, arn) for arn in topics},
        )

    @property
    def sid(self) -> str:
        """Name of the dataset's statement in the queue's policy: letters and digits."""
        return "Kfm" + "".join(part.capitalize() for part in self.dataset.split("-"))

    def attributes(self, dlq_arn: str) -> dict[str, str]:
        """Return the queue's attributes without its policy, in SQS's form."""
        return {
            "VisibilityTimeout": str(self.visibility_timeout),
            "MessageRetentionPeriod": str(QUEUE_RETENTION),
            "RedrivePolicy": json.dumps(
                {"deadLetterTargetArn": dlq_arn, "maxReceiveCount": self.max_receive_count}, sort_keys=True
            ),
        }

    def statement(self, queue_arn: str) -> Document:
        """Return the policy statement that lets SNS send to the queue for the dataset's topics."""
        return {
            "Sid": self.sid,
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": queue_arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": sorted(self.subscriptions)}},
        }


def filter_policy(registry: ContractRegistry, arn: str) -> Document | None:
    """Return a subscription's filter for keys of the topic's datasets; None passes all keys."""
    contracts = registry.topics[arn]
    if registry.shapes[arn] != "s3-event":
        return None
    prefixes = sorted({prefix for contract in contracts for prefix in contract.storage.prefixes})
    if len(prefixes) > MAX_PREFIXES:
        return None
    return {"Records": {"s3": {"object": {"key": [{"prefix": prefix} for prefix in prefixes]}}}}


def iam_policy(plan: QueuePlan, contract: DatasetContract, settings: Settings, *, region: str) -> Document:
    """Return the least policy that the deployment's role needs for the dataset."""
    queues = [f"arn:aws:sqs:{region}:*:{name}" for name in (plan.queue, plan.dlq)]
    sources = [f"arn:aws:s3:::{bucket}" for bucket in contract.storage.buckets]
    paths = sorted({path.removeprefix("s3://").rstrip("/") for *_, path in stores(settings) if path[:5] == "s3://"})
    statements: list[Document] = [
        _allow("KfmQueues", WORK, queues),
        _allow("KfmListObjects", ("s3:ListBucket",), sources),
        _allow("KfmReadObjects", ("s3:GetObject", "s3:GetObjectVersion"), [f"{arn}/*" for arn in sources]),
    ]
    if paths:
        buckets = sorted({f"arn:aws:s3:::{path.partition('/')[0]}" for path in paths})
        files = [f"arn:aws:s3:::{path}/*" for path in paths]
        statements.append(_allow("KfmListStores", ("s3:ListBucket",), buckets))
        statements.append(_allow("KfmStores", ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), files))
    return {"Version": "2012-10-17", "Statement": statements}


def terraform_module(plan: QueuePlan) -> str:
    """Return the call of `deploy/terraform/queue` for the same plan."""
    rows = "".join(
        f"    {json.dumps(arn)} = {json.dumps(json.dumps(policy, sort_keys=True) if policy else '')}\n"
        for arn, policy in sorted(plan.subscriptions.items())
    )
    return (
        f'module "kfm_{plan.dataset.replace("-", "_")}" {{\n'
        '  source             = "./deploy/terraform/queue"\n'
        f"  dataset            = {json.dumps(plan.dataset)}\n"
        f"  queue_name         = {json.dumps(plan.queue)}\n"
        f"  dlq_name           = {json.dumps(plan.dlq)}\n"
        f"  visibility_timeout = {plan.visibility_timeout}\n"
        f"  max_receive_count  = {plan.max_receive_count}\n"
        f"  topics = {{\n{rows}  }}\n}}\n"
    )


def _allow(sid: str, actions: tuple[str, ...], resources: list[str]) -> Document:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}


@unique
class PartState(StrEnum):
    """State of a part after provisioning."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    UPDATED = "updated"
    DRIFT = "drift"
    """The part differs from the plan and was not changed; --update corrects it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the plan and its state."""

    what: str
    change: PartState
    observed: str | None = None
    expected: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueueMaker:
    """Applies a plan. With `dry_run`, it only reports the changes to make."""

    plan: QueuePlan
    sqs: SQSClient
    sns_of: Callable[[str], SNSClient]
    """Returns the client of SNS in a region."""
    update: bool = False
    dry_run: bool = False

    def make(self) -> list[Part]:
        """Create queues, policy and subscriptions, in this order. Raises QueueUnavailableError."""
        plan = self.plan
        with _answering():
            parts = list(self._queue(plan.dlq, {"MessageRetentionPeriod": str(DLQ_RETENTION)}))
            dlq_arn = self._arn(plan.dlq)
            parts += self._queue(plan.queue, plan.attributes(dlq_arn))
            queue_arn = self._arn(plan.queue)
            parts.append(self._policy(queue_arn))
            parts += [self._subscription(topic, queue_arn) for topic in plan.subscriptions]
        return parts

    def _queue(self, name: str, planned: Attributes) -> Iterator[Part]:
        attributes = self._attributes(name)
        if attributes is None:
            if not self.dry_run:
                self.sqs.create_queue(QueueName=name, Attributes=dict(planned))  # type: ignore[arg-type]
            yield Part(what=f"queue {name}", change=PartState.CREATED)
            return
        differing = {key: value for key, value in planned.items() if not _same(attributes.get(key), value)}
        if differing and self.update and not self.dry_run:
            self._set(name, differing)
        yield from (
            Part(
                what=f"queue {name} {key}",
                change=PartState.UPDATED if self.update else PartState.DRIFT,
                observed=attributes.get(key, "none"),
                expected=value,
            )
            for key, value in differing.items()
        )
        if not differing:
            yield Part(what=f"queue {name}", change=PartState.UNCHANGED)

    def _policy(self, queue_arn: str) -> Part:
        what, statement = f"policy {self.plan.sid} of queue {self.plan.queue}", self.plan.statement(queue_arn)
        policy = json.loads((self._attributes(self.plan.queue) or {}).get("Policy") or "{}")
        others = [entry for entry in policy.get("Statement", []) if entry.get("Sid") != self.plan.sid]
        own = [entry for entry in policy.get("Statement", []) if entry.get("Sid") == self.plan.sid]
        if own == [statement]:
            return Part(what=what, change=PartState.UNCHANGED)
        change = PartState.CREATED if not own else PartState.UPDATED if self.update else PartState.DRIFT
        if change is not PartState.DRIFT and not self.dry_run:
            document = {"Version": "2012-10-17", **policy, "Statement": [*others, statement]}
            self._set(self.plan.queue, {"Policy": json.dumps(document, sort_keys=True)})
        return Part(what=what, change=change, observed=json.dumps(own) if own else None, expected=json.dumps(statement))

    def _subscription(self, topic: str, queue_arn: str) -> Part:
        what, sns = f"subscription of {topic}", self.sns_of(topic.split(":")[3])
        policy = self.plan.subscriptions[topic]
        filters = {} if policy is None else {"FilterPolicyScope": "MessageBody", "FilterPolicy": json.dumps(policy)}
        arn = _subscribed(sns, topic, queue_arn)
        if arn is None:
            if not self.dry_run:
                sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn, Attributes=filters)
            return Part(what=what, change=PartState.CREATED)
        attributes = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
        raw = attributes.get("RawMessageDelivery", "false") == "true"
        if not raw and _json(attributes.get("FilterPolicy")) == (policy or {}):
            return Part(what=what, change=PartState.UNCHANGED)
        if self.update and not self.dry_run:
            # Raw deliveries cannot be verified (KFM_SNS_VERIFY).
            for name, value in {"RawMessageDelivery": "false", **(filters or {"FilterPolicy": "{}"})}.items():
                sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName=name, AttributeValue=value)
        observed = f"FilterPolicy {attributes.get('FilterPolicy', 'none')}" + (", RawMessageDelivery" if raw else "")
        change = PartState.UPDATED if self.update else PartState.DRIFT
        return Part(what=what, change=change, observed=observed, expected=json.dumps(policy or {}))

    def _attributes(self, name: str) -> dict[str, str] | None:
        try:
            url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                return None
            raise
        return dict(self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"])  # type: ignore[arg-type]

    def _arn(self, name: str) -> str:
        # A queue that a dry run does not create has no ARN yet.
        return (self._attributes(name) or {}).get("QueueArn", f"arn:aws:sqs:::{name}")

    def _set(self, name: str, changed: Attributes) -> None:
        url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        # Sent with the current policy, because some servers remove a policy that the request omits.
        policy = (self._attributes(name) or {}).get("Policy")
        attributes: dict[Any, str] = {**({"Policy": policy} if policy else {}), **changed}
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)


def _subscribed(sns: SNSClient, topic: str, queue_arn: str) -> str | None:
    for page in sns.get_paginator("list_subscriptions").paginate():
        for row in page["Subscriptions"]:
            if (row["TopicArn"], row["Protocol"], row["Endpoint"]) == (topic, "sqs", queue_arn):
                return row["SubscriptionArn"]
    return None


def _same(current: str | None, planned: str) -> bool:
    if current is None or not planned.startswith("{"):
        return current == planned
    # SQS returns a number in a policy as a number or as text.
    return {key: str(value) for key, value in json.loads(current).items()} == {
        key: str(value) for key, value in json.loads(planned).items()
    }


def _json(text: str | None) -> Any:
    return json.loads(text) if text else {}


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        operation = error.operation_name if isinstance(error, ClientError) else "a request"
        raise QueueUnavailableError(
            "the queue cannot be created",
            observed=f"{operation}: {code}",
            next_step="check region and credentials; creating queues needs sqs:CreateQueue, "
            "sqs:SetQueueAttributes, sns:Subscribe and sns:ListSubscriptions. Created parts stay; repeat the command",
        ) from None
