"""A dead-letter queue with every kind of message, and a ledger that knows most of them.

Belongs here: helpers of dead-letter tests. Does not belong here: their assertions.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud, ProvisionedQueues, create_queues
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.clocks import locked
from kfm_dagster_tests.factories import bring, finished
from kfm_dagster_tests.integration.chain import Clock, announce, assert_conserved, raw_message
from kfm_dagster_tests.transactions import own_tx

START = datetime(2025, 4, 2, tzinfo=UTC)
PARTITION = "2025-04-02"
DATASET = "nexrad-l2"
DECISION = Decision(actor="jane", reason="the feed was repaired", change_ref="INC-7")
MALFORMED = '{"Type": "Notification", "Message": '
TEST_EVENT = '{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "noaa-goes19"}'


def event(number: int) -> ObjectEvent:
    """Return the announcement of a volume unique to this number."""
    moment = START + timedelta(seconds=number)
    return ObjectEvent(
        bucket="unidata-nexrad-level2",
        key=f"{moment:%Y/%m/%d}/KTLX/KTLX{moment:%Y%m%d_%H%M%S}_V06",
        size=1000,
        etag=f"{number:032x}",
        event_time=moment + timedelta(minutes=5),
    )


@dataclass(kw_only=True)
class DlqFixture:
    """A pipeline with its primary and dead-letter queue; `bodies` are all bodies ever sent."""

    pipeline: Pipeline
    cloud: EmbeddedCloud
    queues: ProvisionedQueues
    bodies: set[str] = field(default_factory=set)

    def environment(self) -> dict[str, str]:
        """Return the variables of ledger, cloud and queues for commands; messages are unsigned."""
        settings = self.pipeline.settings
        return self.cloud.environment() | {
            "KFM_SNS_VERIFY": "off",
            "KFM_HOME": str(settings.home),
            "KFM_WAL_DSN": settings.database_url,
            "KFM_SQS_PRIMARY_QUEUE": settings.sqs_primary_queue,
            "KFM_SQS_DLQ_QUEUE": settings.sqs_dlq_queue,
        }

    def body(self, *numbers: int) -> str:
        """Return one message that announces the volumes of these numbers."""
        return announce([event(number) for number in numbers], registry=self.pipeline.registry).body

    def unit(self, number: int) -> Envelope:
        """Return the unit of a number."""
        message = raw_message(self.body(number), name=str(number))
        (unit,) = parse_message(message, registry=self.pipeline.registry, queue="q").envelopes
        return unit

    def wal_ids(self, numbers: Iterable[int]) -> list[WalId]:
        """Return the ids of units."""
        return [self.unit(number).wal_id for number in numbers]

    def receive_and_let_die(self, bodies: Sequence[str]) -> None:
        """Receive messages from the primary queue until SQS moves them to the dead-letter queue.

        Their units stay pending, since the messages are not acknowledged.
        """
        self._send(self.pipeline.queue.send(bodies), bodies)
        while take_in(self.pipeline, ProcessState()).received:
            assert_conserved(self.pipeline)
        rows = self.ask("SELECT receipt_handle FROM nodd_wal_deliveries WHERE queue <> :dlq", dlq=self.dlq)
        self.pipeline.queue.change_visibility([(row.receipt_handle, 0) for row in rows])
        assert self.pipeline.queue.receive(10, budget_seconds=20) == []
        assert self.pipeline.queue.depth().total == 0

    def bury(self, bodies: Sequence[str]) -> None:
        """Put messages that the pipeline has never received on the dead-letter queue."""
        self._send(self.pipeline.dead_letters.send(bodies), bodies)

    def bring_to(self, status: str, numbers: Iterable[int], *, code: str | None = None) -> None:
        """Bring pending units to another status, as runs do."""
        bring(self.pipeline.ledger, status, [self.unit(number) for number in numbers], code=code)

    def finish_everything(self) -> None:
        """Ingest pending and running units successfully, and acknowledge their messages."""
        ledger = self.pipeline.ledger
        own_tx(ledger).release_lost(run_ids=ledger.in_progress_runs())
        # Units of dead runs are claimed separately.
        while claimed := own_tx(ledger).claim(dataset=DATASET, partition=PARTITION, run_id="last", limit=10_000):
            own_tx(ledger).settle([finished(unit) for unit in claimed], run_id="last")
        self.pipeline.acknowledger.acknowledge()
        self.assert_sound()

    def assert_sound(self) -> None:
        """Check the balances of units and messages, and that no message was deleted before its units were terminal."""
        assert_conserved(self.pipeline)
        early = self.ask(
            "SELECT delivery.message_id, record.status FROM nodd_wal_deliveries AS delivery "
            "INNER JOIN nodd_wal_delivery_units AS unit ON delivery.message_id = unit.message_id "
            "LEFT JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id "
            "WHERE delivery.state = 'deleted' AND coalesce(record.status, '') NOT IN ('succeeded', 'quarantined')"
        )
        assert early == []

    def dead_bodies(self) -> list[str]:
        """Return every body on the dead-letter queue, hidden or not."""
        dlq = self.pipeline.dead_letters
        hidden = self.ask("SELECT receipt_handle FROM nodd_wal_deliveries WHERE queue = :dlq", dlq=self.dlq)
        dlq.change_visibility([(row.receipt_handle, 0) for row in hidden])
        return [message.body for message in dlq.look(10_000, budget_seconds=30)]

    def requeues(self) -> dict[str, int]:
        """Count how often drains requeued each unit."""
        rows = self.ask(
            "SELECT wal_id, count(*) AS times FROM nodd_wal_transitions WHERE reason = 'dlq-drain' "
            "AND to_status = 'pending' GROUP BY wal_id"
        )
        return {row.wal_id: row.times for row in rows}

    @property
    def dlq(self) -> str:
        return self.pipeline.settings.sqs_dlq_queue

    def ask(self, sql: str, **parameters: object) -> list[sa.Row]:
        with self.pipeline.database.engine.begin() as connection:
            return list(connection.execute(sa.text(sql), parameters))

    def _send(self, sent: Collection[object], bodies: Sequence[str]) -> None:
        assert len(sent) == len(bodies)
        self.bodies |= set(bodies)


def open_dlq_fixture(cloud: EmbeddedCloud, home: Path, url: str) -> DlqFixture:
    """Create queues on a running cloud, and a pipeline over a fresh database."""
    name = secrets.token_hex(6)
    queues = create_queues(
        cloud.client("sqs"),
        primary_queue=f"{name}-work",
        dlq=f"{name}-dead",
        visibility_timeout=900,
        max_receive_count=1,
    )
    chosen = Settings(
        home=home,
        wal_dsn=url,
        sqs_primary_queue=f"{name}-work",
        sqs_dlq_queue=f"{name}-dead",
        retry_backoff_seconds=60,
    )
    return DlqFixture(pipeline=open_pipeline(cloud, chosen, ContractRegistry.load()), cloud=cloud, queues=queues)


def open_pipeline(cloud: EmbeddedCloud, settings: Settings, registry: ContractRegistry) -> Pipeline:
    """Open a pipeline over queues of the cloud, with a fixed clock."""
    sqs = cloud.client("sqs")
    pipeline = Pipeline(
        settings=settings,
        registry=registry,
        database=Database.open(settings.database_url),
        clock=Clock(),
        connect_queue=lambda chosen: connect(chosen, client=sqs),
        connect_dead_letters=lambda chosen: connect(chosen, name=chosen.sqs_dlq_queue, client=sqs),
    )
    pipeline.window.make()  # as every ingesting process does
    hold_roots(pipeline.settings, pipeline.database)
    return locked(pipeline)


def reopened(dlq_fixture: DlqFixture, **changes: object) -> DlqFixture:
    """Return the same queues and database under other settings or contracts (`registry`)."""
    registry = changes.pop("registry", dlq_fixture.pipeline.registry)
    settings = dlq_fixture.pipeline.settings.model_copy(update=changes)
    return dataclasses.replace(dlq_fixture, pipeline=open_pipeline(dlq_fixture.cloud, settings, registry))
