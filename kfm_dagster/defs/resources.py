"""Resources: turn configuration into plain objects, which are tested without Dagster.

A process keeps an open pipeline per database; otherwise each tick or step would connect again.
"""

# No postponed annotations here: Dagster reads ResourceDependency from the annotation itself.

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import boto3
import dagster as dg
from dagster_aws.utils import ResourceWithBoto3Configuration
from pydantic import Field

from kfm_dagster.governance.review import OverrideReview
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.sqs import DEFAULT_REGION, Queue, bounded, connect
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_STATES: defaultdict[Settings, ProcessState] = defaultdict(ProcessState)


class SqsQueueResource(ResourceWithBoto3Configuration):
    """The SQS queue of NOAA's topics; dagster-aws provides the boto3 configuration."""

    queue_name: str = Field(default="", description="Primary queue; KFM_SQS_PRIMARY_QUEUE when empty.")

    def connect(self, settings: Settings) -> Queue:
        """Return the queue; no request is made yet."""
        return connect(settings, name=self.queue_name or None, client=self._client(settings))

    def connect_dead_letters(self, settings: Settings) -> Queue:
        """Return the dead-letter queue; no request is made yet."""
        return connect(settings, name=settings.sqs_dlq_queue, client=self._client(settings))

    def _client(self, settings: Settings) -> "SQSClient":
        session = boto3.session.Session(
            aws_access_key_id=self.aws_access_key_id,
            aws_secret_access_key=self.aws_secret_access_key,
            aws_session_token=self.aws_session_token,
            region_name=self.region_name,
            profile_name=self.profile_name,
        )
        return session.client(
            "sqs",
            region_name=session.region_name or DEFAULT_REGION,
            endpoint_url=self.endpoint_url,
            use_ssl=self.use_ssl,
            verify=self.verify,
            config=bounded(settings.receive_threads, max_attempts=self.max_attempts),
        )


class WalResource(dg.ConfigurableResource[Ledger]):
    """The ledger (the NODD WAL) and its database. Only the ledger changes a record's status."""

    dsn: str = Field(
        default="",
        description="sqlite:///FILE or postgresql+psycopg2://...; KFM_WAL_DSN when empty.",
        repr=False,
        json_schema_extra={"dagster__is_secret": True},
    )

    def settings(self) -> Settings:
        """Return the process's settings with this database. Raises ConfigurationError."""
        return Settings.current(**({"wal_dsn": self.dsn} if self.dsn else {}))

    def get(self) -> Ledger:
        """Return the ledger of the process's open pipeline. Raises a KfmError of a single line."""
        return open_pipeline(self.settings(), SqsQueueResource()).ledger


class PipelineResource(dg.ConfigurableResource[Pipeline]):
    """The assembled pipeline: ledger, queue, object stores, catalog, lineage."""

    wal: dg.ResourceDependency[WalResource]
    queue: dg.ResourceDependency[SqsQueueResource]

    def get(self) -> Pipeline:
        """Return the process's open pipeline. Raises a KfmError of a single line."""
        return open_pipeline(self.wal.settings(), self.queue)

    def state(self) -> ProcessState:
        """Return what this process remembers about the deployment between ticks or stages."""
        return _STATES[self.wal.settings()]

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Publish the lineage of a run's steps, because without a daemon no sensor publishes it."""
        if context.run is not None and self.state().held:
            self.get().lineage.publish_staged()


@cache
def open_pipeline(settings: Settings, queue: SqsQueueResource) -> Pipeline:
    """Open a pipeline once per process, settings and queue."""
    pipeline = Pipeline.open(settings, connect_queue=queue.connect, connect_dead_letters=queue.connect_dead_letters)
    OverrideReview(pipeline.database, clock=pipeline.clock).work_in(settings)
    return pipeline
