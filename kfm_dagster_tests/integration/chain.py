"""The chain without Dagster: pipelines over a folder, notifications, runs that can die.

Belongs here: helpers of several integration tests. Does not belong here: reading a run's results (`traces.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.identity import uuid8
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.feed import SUBJECT, ObjectEvent, topic_of
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.intake import IntakeReport, record
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, Source, chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.clocks import locked
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.transactions import own_tx

DAY = date(2025, 4, 2)
DATASET, PARTITION = "nexrad-l2", DAY.isoformat()
START = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 5000
ANNOUNCED = datetime(2025, 4, 3, tzinfo=UTC)
"""The default event time of an object."""


@dataclass
class Clock:
    """A clock that only moves by `forward`."""

    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class FakeQueue:
    """A queue that records requests; each delivery of a message has its own receipt."""

    waiting: list[SqsMessage] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    visibility: list[tuple[str, int]] = field(default_factory=list)
    receives: int = 0

    def receive(self, max_messages: int, *, budget_seconds: float, **_: Any) -> list[SqsMessage]:
        self.receives += 1
        messages, self.waiting = self.waiting[:max_messages], self.waiting[max_messages:]
        return messages

    def delete(self, receipts: Sequence[str]) -> list[str]:
        self.deleted += receipts
        return []

    def change_visibility(self, changes: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        self.visibility += changes
        return []


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object and its announcement; if `stored` is None, the object is missing."""

    bucket: str
    key: str
    stored: bytes | None
    announced: bytes

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def event(self, *, event_time: datetime = ANNOUNCED) -> ObjectEvent:
        etag = hashlib.md5(self.announced).hexdigest()
        return ObjectEvent(bucket=self.bucket, key=self.key, size=len(self.announced), etag=etag, event_time=event_time)


def good(bucket: str, key: str, content: bytes) -> StoredObject:
    """Return an object that matches its announcement."""
    return StoredObject(bucket=bucket, key=key, stored=content, announced=content)


def put(root: Path, objects: Iterable[StoredObject], *, written: datetime | None = None) -> None:
    """Store objects at `<bucket>/<key>`, with the time at which they were `written`."""
    for item in objects:
        path = root / item.bucket / item.key
        if item.stored is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(item.stored)
            if written is not None:
                os.utime(path, (written.timestamp(), written.timestamp()))


def open_pipeline(
    home: Path, objects: Path | None, *, url: str = "", queue: FakeQueue | None = None, **settings: Any
) -> Pipeline:
    """Open a pipeline over a folder of objects (None: over S3), with a Clock and a FakeQueue."""
    values = {"retry_backoff_seconds": 60.0, **settings}
    chosen = Settings(home=home, object_root=objects, wal_dsn=url, **values)
    if not url:
        migrated_sqlite(home / "kfm.db")
    fake = queue or FakeQueue()
    return locked(
        Pipeline(
            settings=chosen,
            registry=ContractRegistry.load(),
            database=Database.open(chosen.database_url),
            clock=Clock(),
            connect_queue=lambda *_: fake,
        )
    )


def open_copy(recorded: Path, folder: Path, *, url: str, seconds: float) -> Pipeline:
    """Open a pipeline over a copy of a recorded folder; its clock is `seconds` ahead of a new Clock."""
    shutil.copytree(recorded, folder, dirs_exist_ok=True)
    opened = open_pipeline(folder / "home", folder / "objects", url=url)
    opened.clock.forward(seconds)
    return opened


def announce(
    events: Sequence[ObjectEvent], *, registry: ContractRegistry, name: str | None = None, delivery: int = 1
) -> SqsMessage:
    """Return one notification of some events, as delivery number `delivery` by SQS."""
    payload = json.dumps({"Records": [event.record() for event in events]})
    identity = name or hashlib.sha256(payload.encode()).hexdigest()
    topic = topic_of(registry, events[0].bucket)
    body = {
        "Type": "Notification",
        "MessageId": uuid8("sns", identity),
        "TopicArn": topic,
        "Subject": SUBJECT,
        "Message": payload,
        "Timestamp": "2025-04-03T00:00:01.000Z",
    }
    return raw_message(json.dumps(body), name=identity, delivery=delivery)


def raw_message(body: str, *, name: str, delivery: int = 1) -> SqsMessage:
    """Return a message with any body, as delivery number `delivery` by SQS."""
    message_id = uuid8("sqs", name)
    return SqsMessage(
        message_id=message_id,
        body=body,
        receipt_handle=f"{message_id}#{delivery}",
        receive_count=delivery,
        sent_at=datetime(2025, 4, 3, 0, 0, 2, tzinfo=UTC),
    )


def take(pipeline: Pipeline, *messages: SqsMessage) -> IntakeReport:
    """Record messages, and check that every unit and message is accounted for."""
    report = record(pipeline, messages, KillSwitchPolicy.now(pipeline.ledger.switches))
    assert_conserved(pipeline)
    return report


def notify(
    pipeline: Pipeline, *items: StoredObject, name: str | None = None, event_time: datetime = ANNOUNCED
) -> IntakeReport:
    """Record one message that announces objects, stored or not."""
    events = [item.event(event_time=event_time) for item in items]
    return take(pipeline, announce(events, registry=pipeline.registry, name=name))


def notify_each(pipeline: Pipeline, *items: StoredObject) -> IntakeReport:
    """Record one message for each object, in one batch."""
    return take(pipeline, *(announce([item.event()], registry=pipeline.registry) for item in items))


def deliver(pipeline: Pipeline, *items: StoredObject, name: str | None = None) -> IntakeReport:
    """Store objects, and record one message that announces all of them."""
    put(pipeline.settings.object_root, items)
    return notify(pipeline, *items, name=name)


def deliver_each(pipeline: Pipeline, *items: StoredObject) -> IntakeReport:
    """Store objects, and record one message for each, in one batch."""
    put(pipeline.settings.object_root, items)
    return notify_each(pipeline, *items)


def enqueue(pipeline: Pipeline, queue: FakeQueue, *items: StoredObject) -> list[SqsMessage]:
    """Store objects, and put a message of each on a queue."""
    put(pipeline.settings.object_root, items)
    messages = [announce([item.event()], registry=pipeline.registry) for item in items]
    queue.waiting += messages
    return messages


def assert_conserved(pipeline: Pipeline) -> None:
    """Check that every received unit and message is accounted for (BEY-03)."""
    account = pipeline.deliveries.conservation()
    assert (account.residual_units, account.residual_messages) == (0, 0), account


class CrashError(BaseException):
    """Database and files see the death of a process; no handler of the product catches this error."""


@dataclass(frozen=True, kw_only=True)
class Failpoint:
    """The death of a run at a point of an operator: computed, committing or committed."""

    operator: str
    point: str

    def __str__(self) -> str:
        return f"{self.operator}-{self.point}"


def run_chain(
    pipeline: Pipeline,
    dataset: str,
    partition: str,
    run_id: str,
    source: Source = Source.LISTING,
    *,
    limit: int = LIMIT,
    dies_at: Failpoint | None = None,
    seen: Callable[[StageBatch], None] = lambda _: None,
) -> StageBatch:
    """Run the nodes as Dagster's ops and IO manager do; check conservation after every step.

    `seen` gets every node's output. Raises CrashError at `dies_at`.
    """
    shared: dict[str, Any] = {"dataset": dataset, "partition": partition, "read_ahead": {}}

    def die(*_: object) -> Any:
        if dies_at and dies_at.point != "committing":
            assert_conserved(pipeline)
        raise CrashError(str(dies_at))

    batch: StageBatch | None = None
    for kind in chain():
        first = {"source": source, "limit": limit} if kind is MessageParse else {}
        stage_node = node(pipeline, kind, run_id, **shared, **first)
        stage = pipeline.stages.run(stage_node, run_id=run_id, upstream=batch)
        assert_conserved(pipeline)
        match dies_at.point if dies_at and dies_at.operator is kind.operator else None:
            case "computed":
                die()
            case "committing":  # called inside the transaction, after the ledger's part and the artifact
                stage_node.summarize = die
            case "committed":
                stage_node.after_commit = die
        batch = pipeline.stages.commit(stage)
        assert_conserved(pipeline)
        seen(batch)
    assert batch is not None
    return batch


def run_pending(pipeline: Pipeline, run_id: str, **options: Any) -> StageBatch:
    """Run the chain over the pending units of DATASET and DAY, with `run_chain`'s options."""
    return run_chain(pipeline, DATASET, PARTITION, run_id, Source.LEDGER, **options)


def node(
    pipeline: Pipeline,
    kind: type[ChainNode],
    run_id: str,
    *,
    dataset: str = DATASET,
    partition: str = PARTITION,
    **more: Any,
) -> Any:
    """Return a node of a run; the first node claims from the ledger by default."""
    first = {"source": Source.LEDGER, "limit": LIMIT} if kind is MessageParse else {}
    return kind(pipeline=pipeline, dataset=dataset, partition=partition, run_id=run_id, **{**first, **more})


def step(pipeline: Pipeline, stage_node: Any, upstream: StageBatch | None = None) -> StageBatch:
    """Run and commit a node; then check that every unit and message is accounted for."""
    batch = pipeline.stages.commit(pipeline.stages.run(stage_node, run_id=stage_node.run_id, upstream=upstream))
    assert_conserved(pipeline)
    return batch


def steps(
    pipeline: Pipeline, run_id: str, kinds: Iterable[type[ChainNode]], batch: StageBatch | None = None
) -> StageBatch:
    """Run and commit some nodes of a run, one after another."""
    for kind in kinds:
        batch = step(pipeline, node(pipeline, kind, run_id), batch)
    assert batch is not None
    return batch


def work_until_done(pipeline: Pipeline) -> None:
    """Retry units, run pending ones and collect evidence, as the ledger's sensor does, until none is pending."""
    for number in range(12):
        clock = pipeline.clock
        clock.forward(3600)
        own_tx(pipeline.ledger).retry_due(now=clock(), limit=LIMIT)
        pending = pipeline.ledger.pending_by_partition()
        if not pending:
            pipeline.acknowledger.acknowledge()
            EvidenceCollector(pipeline).collect()
            return
        for entry in pending:
            run_chain(pipeline, entry.dataset, entry.partition, f"round-{number}-{entry.partition}", Source.LEDGER)
    raise AssertionError(f"units are left after 12 rounds: {own_tx(pipeline.ledger).counts()}")


def partitions_of(root: Path, registry: ContractRegistry) -> dict[tuple[str, str], list[str]]:
    """Return the URIs of a folder's data objects by dataset and day."""
    partitions: dict[tuple[str, str], list[str]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        bucket, _, key = path.relative_to(root).as_posix().partition("/")
        route = registry.route(bucket=bucket, key=key)
        if route.contract is not None and route.kind is KeyKind.DATA:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            match = registry.grammars[route.contract.id].match(key, written)
            partitions.setdefault((route.contract.id, match.start.date().isoformat()), []).append(
                f"s3://{bucket}/{key}"
            )
    return partitions


def volumes(count: int) -> list[StoredObject]:
    """Return the first `count` of DAY's 24 sound NEXRAD volumes."""
    return list(_volumes()[:count])


@cache
def _volumes() -> tuple[StoredObject, ...]:
    return tuple(good(bucket, key, content) for bucket, key, content in nexrad_level2_samples(DAY, 24))


def missing(item: StoredObject) -> StoredObject:
    """Return the object, announced but missing."""
    return dataclasses.replace(item, stored=None)


def truncated(item: StoredObject) -> StoredObject:
    """Return the object, announced with its full size and stored without its last quarter."""
    return dataclasses.replace(item, stored=item.announced[: len(item.announced) * 3 // 4])


def replaced(item: StoredObject, content: bytes) -> StoredObject:
    """Return other content under the object's key, announced with this content's size and ETag."""
    return good(item.bucket, item.key, content)


def renumbered(item: StoredObject, number: bytes = b"777") -> StoredObject:
    """Return the volume with another volume number (ICD 2620010, volume header, bytes 9 to 11)."""
    return replaced(item, item.announced[:9] + number + item.announced[12:])
