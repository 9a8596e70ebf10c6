"""The plan of a dataset's queue: attributes, senders, subscriptions, reader's rights. Pure.

`deploy/terraform/queue` is the same for Terraform; a test compares both. Does not belong here: reading or
changing AWS (`making.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.preflight import stores
from kfm_dagster.settings import Settings

QUEUE_RETENTION = 7 * 86_400
"""Seconds; shorter than a dead letter's, whose age counts from when it was first sent."""
DLQ_RETENTION = 14 * 86_400
"""SQS's longest."""
LEASE_MARGIN_SECONDS = 60
"""A lease lasts a minute longer than a message stays hidden."""
MAX_PREFIXES = 37
"""SNS multiplies a filter's values by their depth, 4 here, and allows 150 (SNS developer guide, filter policies)."""
READ = ("sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:ReceiveMessage", "sqs:DeleteMessage")
"""Actions of a queue's reader; receiving also needs ChangeMessageVisibility, and a redrive SendMessage."""
WORK = (*READ, "sqs:ChangeMessageVisibility", "sqs:SendMessage")

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePlan:
    """The plan of a dataset's queue; `subscriptions` are topic > filter policy or None."""

    dataset: str
    queue: str
    dlq: str
    visibility_timeout: int
    max_receive_count: int
    subscriptions: Mapping[str, Document | None]

    @classmethod
    def of(cls, contract: DatasetContract, registry: ContractRegistry, settings: Settings) -> QueuePlan:
        """Plan by contract and settings. Raises ConfigurationError for a dataset without topics."""
        topics = [topic.arn for topic in contract.notifications.topics]
        if not topics:
            raise ConfigurationError(
                f"{contract.id} needs no queue",
                observed="its contract names no topic",
                expected="notifications.topics",
                next_step="nothing: its buckets are listed (storage.scheduled_listing)",
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
    """Return a subscription's filter: keys of the topic's datasets; None to pass everything."""
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
    ours = sorted({place.removeprefix("s3://").rstrip("/") for *_, place in stores(settings) if place[:5] == "s3://"})
    statements: list[Document] = [
        _allow("KfmQueues", WORK, queues),
        _allow("KfmListObjects", ("s3:ListBucket",), sources),
        _allow("KfmReadObjects", ("s3:GetObject", "s3:GetObjectVersion"), [f"{arn}/*" for arn in sources]),
    ]
    if ours:
        buckets = sorted({f"arn:aws:s3:::{place.partition('/')[0]}" for place in ours})
        files = [f"arn:aws:s3:::{place}/*" for place in ours]
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
