"""The embedded cloud: S3, SNS and SQS on loopback, for the same clients as AWS.

`EmbeddedCloud` runs moto's server as a child process. Belongs here: start and stop of the cloud, the environment that
points every AWS client at the cloud, and the creation of buckets, topics under their true ARNs, our queue with its
dead-letter queue, and the subscriptions. Does not belong here: publishing (`feed.py`).

Accounts are as in AWS: each topic lives in its owner's account (moto takes the account from the header
`x-moto-account-id`), buckets and queues in moto's default account, and the subscriptions are made by the queue's owner.
Unlike in AWS, policies apply only to requests without credentials, and messages are signed with the server's own
certificate (`sns_signing.py`), which only processes with `EmbeddedCloud.environment` trust.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import boto3
from botocore.config import Config

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.child_server import ChildServer
from kfm_dagster.demo.sns_signing import AUTHORITY_PATH
from kfm_dagster.errors import DependencyUnavailableError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

REGION = "us-east-1"
"""Region of NODD's topics and of most of its buckets."""
ACCESS_KEY_ID = "testing"
SECRET_ACCESS_KEY = "testing"  # noqa: S105 - moto takes any
TIMEOUT_SECONDS = 10
LOOPBACK = "127.0.0.1,localhost"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvisionedQueues:
    """URLs and ARNs of the queue and its dead-letter queue."""

    queue_url: str
    queue_arn: str
    dlq_url: str
    dlq_arn: str


class EmbeddedCloud:
    """S3, SNS and SQS on loopback with data in memory, while the context is open."""

    def __init__(self, *, primary_queue: str = "kfm-nodd-primary", dlq: str = "kfm-nodd-dlq") -> None:
        self.primary_queue = primary_queue
        self.dlq = dlq
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server = ChildServer(
            name="the embedded cloud (moto)",
            command=[sys.executable, "-m", "kfm_dagster.demo.moto_server"],
            # MOTO_ACCOUNT_ID would put every request, also those made as NOAA, into the same account.
            environment={name: value for name, value in os.environ.items() if not name.startswith("MOTO_")},
            next_step="pip install 'kfm-dagster[demo]'",
        )

    def __enter__(self) -> Self:
        self._server.start()
        self._folder = tempfile.TemporaryDirectory(prefix="kfm-cloud-")
        # A proxy of the machine cannot reach this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.endpoint_url + AUTHORITY_PATH, timeout=TIMEOUT_SECONDS) as answer:
            self._authority.write_bytes(answer.read())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`. Raises DependencyUnavailableError outside the context."""
        return self._server.endpoint_url

    @property
    def pid(self) -> int | None:
        """Process id of the server; None outside the context."""
        return self._server.pid

    def environment(self) -> dict[str, str]:
        """Return variables that point clients and `Settings` of another process at this cloud.

        Only a process with these variables trusts this cloud's signatures, and it refuses all other signatures.
        """
        return {
            **aws_environment(self.endpoint_url, primary_queue=self.primary_queue, dlq=self.dlq),
            "KFM_SNS_VERIFY": "require",
            "KFM_SNS_TRUSTED_URL": self.endpoint_url,
            "KFM_SNS_TRUSTED_CA": str(self._authority),
        }

    @property
    def _authority(self) -> Path:
        if self._folder is None:
            raise DependencyUnavailableError("the embedded cloud is not running")
        return Path(self._folder.name) / "sns-authority.pem"

    @overload
    def client(self, service: Literal["s3"], *, account: str | None = None) -> S3Client: ...
    @overload
    def client(self, service: Literal["sns"], *, account: str | None = None) -> SNSClient: ...
    @overload
    def client(self, service: Literal["sqs"], *, account: str | None = None) -> SQSClient: ...
    def client(self, service: Literal["s3", "sns", "sqs"], *, account: str | None = None) -> Any:
        """Build a boto3 client of this cloud that acts as an account (12 digits), by default ours."""
        client = aws_client(service, endpoint_url=self.endpoint_url)
        if account is not None:

            def act_as(params: dict[str, Any], **_: object) -> None:
                params["headers"]["x-moto-account-id"] = account

            client.meta.events.register("before-call", act_as)
        return client

    def provision(
        self, registry: ContractRegistry, *, visibility_timeout: int = 900, max_receive_count: int = 5
    ) -> ProvisionedQueues:
        """Create the contracts' buckets and topics, the queues, and the topics' subscriptions.

        Idempotent. visibility_timeout is in seconds. After max_receive_count receives, SQS moves a message to the DLQ.
        """
        s3 = self.client("s3")
        for bucket in registry.buckets:
            s3.create_bucket(Bucket=bucket)
            s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(_anyone_reads(bucket)))
        queues = create_queues(
            self.client("sqs"),
            primary_queue=self.primary_queue,
            dlq=self.dlq,
            visibility_timeout=visibility_timeout,
            max_receive_count=max_receive_count,
            topic_arns=list(registry.topics),
        )
        subscriber = self.client("sns")
        publishers: dict[str, SNSClient] = {}
        for arn in registry.topics:
            account, name = arn.split(":")[4:6]
            if account not in publishers:
                publishers[account] = self.client("sns", account=account)
            publishers[account].create_topic(Name=name)
            subscriber.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queues.queue_arn)
        return queues


def aws_environment(endpoint_url: str, *, primary_queue: str, dlq: str) -> dict[str, str]:
    """Return variables that point another process's AWS clients only at a loopback endpoint."""
    return {
        "AWS_ENDPOINT_URL": endpoint_url,
        # A service's own variable has precedence over AWS_ENDPOINT_URL, so it must not lead to the real AWS.
        "AWS_ENDPOINT_URL_S3": endpoint_url,
        "AWS_ENDPOINT_URL_SNS": endpoint_url,
        "AWS_ENDPOINT_URL_SQS": endpoint_url,
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
        "AWS_ALLOW_HTTP": "true",  # otherwise obstore refuses plain HTTP
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "KFM_SQS_PRIMARY_QUEUE": primary_queue,
        "KFM_SQS_DLQ_QUEUE": dlq,
        # A proxy of the machine cannot reach this machine's loopback.
        "NO_PROXY": LOOPBACK,
        "no_proxy": LOOPBACK,
    }


def aws_client(service: Literal["s3", "sns", "sqs"], *, endpoint_url: str) -> Any:
    """Build a boto3 client of a loopback endpoint, whatever the environment."""
    return _session().client(
        service,
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(proxies={}, s3={"addressing_style": "path"}, max_pool_connections=32),
    )


@functools.cache
def _session() -> boto3.session.Session:
    """Share a session, because each new session reads botocore's service descriptions."""
    return boto3.session.Session()


def create_queues(
    sqs: SQSClient,
    *,
    primary_queue: str,
    dlq: str,
    visibility_timeout: int,
    max_receive_count: int,
    topic_arns: Sequence[str] = (),
) -> ProvisionedQueues:
    """Create or update a queue for the topics' messages, and its dead-letter queue."""

    def create(name: str, attributes: Mapping[QueueAttributeNameType, str]) -> tuple[str, str]:
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        # Set afterwards, because CreateQueue refuses an existing queue whose attributes differ.
        sqs.set_queue_attributes(QueueUrl=url, Attributes=dict(attributes))
        return url, arn

    dlq_url, dlq_arn = create(dlq, {"MessageRetentionPeriod": str(14 * 24 * 3600)})  # SQS's longest, 14 days
    redrive = {"deadLetterTargetArn": dlq_arn, "maxReceiveCount": max_receive_count}
    attributes: dict[QueueAttributeNameType, str] = {
        "VisibilityTimeout": str(visibility_timeout),
        "RedrivePolicy": json.dumps(redrive),
    }
    if topic_arns:
        attributes["Policy"] = json.dumps(_accept_from(topic_arns))
    queue_url, queue_arn = create(primary_queue, attributes)
    return ProvisionedQueues(queue_url=queue_url, queue_arn=queue_arn, dlq_url=dlq_url, dlq_arn=dlq_arn)


def _anyone_reads(bucket: str) -> dict[str, Any]:
    """Return the policy of NODD's buckets: objects and listings need no credentials."""
    resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    # For HEAD, AWS requires s3:GetObject, but moto requires s3:HeadObject.
    actions = ["s3:GetObject", "s3:HeadObject", "s3:ListBucket"]
    statement = {"Effect": "Allow", "Principal": "*", "Action": actions, "Resource": resources}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _accept_from(topic_arns: Sequence[str]) -> dict[str, Any]:
    """Return the queue policy that lets SNS deliver from these topics, and from no other."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "sns.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": "*",
                "Condition": {"ArnEquals": {"aws:SourceArn": list(topic_arns)}},
            }
        ],
    }
