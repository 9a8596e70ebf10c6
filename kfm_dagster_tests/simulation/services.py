"""The simulated services: SQS with dead letters, the product's stores, and a follower.

Each is a dictionary with only the guarantees of the real service: SQS delivers at least once, in any order, hides a
message for a time, and moves it to the dead letters after too many receives; a store or a publication may fail. Most
calls have a point before and after them, where the scheduler can stop the caller (`scheduling.py`).
Does not belong here: callers, and the providers' objects (`objects.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
from obstore.exceptions import AlreadyExistsError, GenericError, NotFoundError, PermissionDeniedError

from kfm_dagster.catalog.changes import ChangeKind, FollowError, ItemChange
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.lineage.openlineage import JOB_NAMESPACE
from kfm_dagster.notifications.messages import QueueRules, SendOutcome, SqsMessage
from kfm_dagster.storage.publisher import PublishError
from kfm_dagster.storage.s3 import Fetched
from kfm_dagster_tests.simulation.faults import Fault
from kfm_dagster_tests.simulation.scheduling import Scheduler

if TYPE_CHECKING:
    from kfm_dagster_tests.simulation.invariants import Account

PRIMARY, DEAD_LETTERS = "kfm-nodd-primary", "kfm-nodd-dlq"
VISIBILITY = 900.0
MAX_RECEIVES = 4
BATCH = 10


@dataclass(kw_only=True, eq=False)
class Message:
    """A message on a queue. `units` are the ids of the units that its body announces."""

    message_id: str
    body: str
    units: frozenset[str]
    sent_at: datetime
    visible_at: datetime
    receives: int = 0
    handle: str | None = None
    done: set[str] = field(default_factory=set)
    """Units that became terminal since the last delivery of the message, or were terminal then."""


class Broker:
    """The queues of SQS. Set `watcher`, which records the messages, before the first call."""

    watcher: Account

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.queues: dict[str, dict[str, Message]] = {PRIMARY: {}, DEAD_LETTERS: {}}
        self.deleted: list[Message] = []
        self.sent_again: set[str] = set()
        """Bodies that the product sent to a queue."""
        self._sent = 0

    def send(self, queue: str, body: str, units: frozenset[str], *, delay: float = 0.0) -> Message:
        """Put a message on a queue."""
        now = self.scheduler.now
        self._sent += 1
        message = Message(
            message_id=f"message-{self._sent}",
            body=body,
            units=units,
            sent_at=now,
            visible_at=now + timedelta(seconds=delay),
        )
        self.queues[queue][message.message_id] = message
        return message

    def receive(self, queue: str, limit: int, hidden: float) -> list[SqsMessage]:
        """Deliver visible messages in any order; move exhausted ones to the dead letters."""
        now, rng = self.scheduler.now, self.scheduler.rng
        visible = [message for message in self.queues[queue].values() if message.visible_at <= now]
        rng.shuffle(visible)
        delivered = []
        for message in visible[: min(limit, BATCH)]:
            if queue == PRIMARY and message.receives >= MAX_RECEIVES:
                del self.queues[PRIMARY][message.message_id]
                self.queues[DEAD_LETTERS][message.message_id] = message
                self.scheduler.happened["dead-lettered"] += 1
                continue
            message.receives += 1
            message.handle = f"{message.message_id}/{message.receives}"
            # SQS delivers at least once: sometimes a message stays visible to the next receiver.
            twice = self.scheduler.happens(Fault.DELIVERED_TWICE)
            message.visible_at = now + timedelta(seconds=5 if twice else hidden)
            self.watcher.received(message)
            delivered.append(
                SqsMessage(
                    message_id=message.message_id,
                    body=message.body,
                    receipt_handle=message.handle,
                    receive_count=message.receives,
                    sent_at=message.sent_at,
                )
            )
        return delivered

    def held(self, queue: str, receipt: str) -> Message | None:
        """Return the message of a receipt that is still valid."""
        message = self.queues[queue].get(receipt.partition("/")[0])
        return message if message is not None and message.handle == receipt else None


class SimulatedQueue:
    """The pipeline's replacement of `notifications.sqs.Queue`."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self.name = name
        self.url = f"https://simulated/{name}"

    def receive(
        self,
        max_messages: int,
        *,
        budget_seconds: float = 0,
        threads: int | None = None,
        visibility_seconds: float | None = None,
        max_bytes: int = 0,
        max_units: int | None = None,
        wait_seconds: int = 0,
    ) -> list[SqsMessage]:
        hit(Failpoint.QUEUE_RECEIVE_BEFORE)
        hidden = VISIBILITY if visibility_seconds is None else visibility_seconds
        messages = self._broker.receive(self.name, max_messages, hidden)
        hit(Failpoint.QUEUE_RECEIVE_AFTER)
        return messages

    def delete(self, receipts: Sequence[str]) -> list[str]:
        refused = []
        for receipt in receipts:
            hit(Failpoint.QUEUE_DELETE_BEFORE)
            message = self._broker.held(self.name, receipt)
            if message is None:
                # For an expired receipt SQS answers with or without an error, and deletes nothing.
                if self._broker.scheduler.rng.random() < 0.5:
                    refused.append(receipt)
            else:
                self._broker.watcher.deleted(message)
                self._broker.deleted.append(self._broker.queues[self.name].pop(message.message_id))
            hit(Failpoint.QUEUE_DELETE_AFTER)
        return refused

    def change_visibility(self, changes: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        refused = []
        hit(Failpoint.QUEUE_VISIBILITY_BEFORE)
        for receipt, seconds in changes:
            message = self._broker.held(self.name, receipt)
            if message is None:
                refused.append((receipt, seconds))
            else:
                message.visible_at = self._broker.scheduler.now + timedelta(seconds=seconds)
        hit(Failpoint.QUEUE_VISIBILITY_AFTER)
        return refused

    def give_back(self, messages: Sequence[SqsMessage]) -> None:
        self.change_visibility([(message.receipt_handle or "", 0) for message in messages])

    def send(self, bodies: Sequence[str]) -> list[SendOutcome]:
        hit(Failpoint.QUEUE_SEND_BEFORE)
        # A message that is sent again announces the units of the original.
        units_by_body = {
            message.body: message.units for queue in self._broker.queues.values() for message in queue.values()
        }
        self._broker.sent_again.update(bodies)
        sent = [self._broker.send(self.name, body, units_by_body.get(body, frozenset())) for body in bodies]
        hit(Failpoint.QUEUE_SEND_AFTER)
        return [SendOutcome(message_id=message.message_id) for message in sent]

    def rules(self) -> QueueRules:
        return QueueRules(
            visibility_timeout=timedelta(seconds=VISIBILITY),
            retention=timedelta(days=14),
            max_receive_count=MAX_RECEIVES if self.name == PRIMARY else None,
            dead_letter_arn="arn:simulated" if self.name == PRIMARY else None,
        )


class SimulatedStore:
    """The pipeline's replacement of the store of landed messages, outputs and evidence."""

    def __init__(self, happens: Callable[[Fault], bool]) -> None:
        self.files: dict[str, bytes] = {}
        self._happens = happens

    def put(self, path: str, content: bytes, *, mode: str) -> None:
        self._answer()
        if path in self.files:
            raise AlreadyExistsError(path)
        self.files[path] = content

    def get(self, path: str, *, options: Mapping[str, Any] | None = None) -> Fetched:
        self._answer()
        if path not in self.files:
            raise NotFoundError(path)
        return Fetched(meta={}, attributes={}, content=self.files[path])

    def _answer(self) -> None:
        if self._happens(Fault.STORE_SILENT):
            raise GenericError("simulated")
        if self._happens(Fault.STORE_REFUSES):
            raise PermissionDeniedError("simulated")


class SimulatedLineageFiles:
    """The lineage root, in which a file is published completely or not at all."""

    def __init__(self, happens: Callable[[Fault], bool]) -> None:
        self.files: dict[str, bytes] = {}
        self._happens = happens

    def publish(self, href: str, content: bytes) -> None:
        hit(Failpoint.LINEAGE_PUBLISH_BEFORE)
        if self._happens(Fault.LINEAGE_FAILS):
            raise OSError("simulated")
        self.files[href] = content
        hit(Failpoint.LINEAGE_PUBLISH_AFTER)

    def read(self, href: str) -> bytes:
        return self.files[href]

    def events(self) -> list[dict[str, Any]]:
        """Return the published events of the package's own jobs."""
        lines = [line for href, file in self.files.items() if href.endswith(".ndjson") for line in file.splitlines()]
        return [event for event in map(orjson.loads, lines) if event["job"]["namespace"] == JOB_NAMESPACE]


class SimulatedPublisher:
    """The publisher of the catalog's files; a promoted file stays even if its transaction fails."""

    def __init__(self, happens: Callable[[Fault], bool]) -> None:
        self.files: dict[str, bytes] = {}
        self.happens = happens
        self.seen: Callable[[str, bytes], None] = lambda path, content: None
        """The observer of the published files."""

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        return {path: self.files[path] for path in paths if path in self.files}

    def names(self, folder: str) -> Sequence[str]:
        split = (path.rpartition("/") for path in self.files)
        return [name for parent, _, name in split if parent == folder]

    def folders(self, folder: str) -> Sequence[str]:
        deeper = (path.removeprefix(f"{folder}/").split("/") for path in self.files if path.startswith(f"{folder}/"))
        return sorted({parts[0] for parts in deeper if len(parts) > 1})

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            hit(Failpoint.CATALOG_REMOVE_BEFORE)
            self.files.pop(path, None)
            hit(Failpoint.CATALOG_REMOVE_AFTER)

    @contextmanager
    def staging(self, files: Mapping[str, bytes]) -> Iterator[_Staged]:
        hit(Failpoint.CATALOG_STAGE_BEFORE)
        yield _Staged(files, self)


class _Staged:
    def __init__(self, files: Mapping[str, bytes], publisher: SimulatedPublisher) -> None:
        self._files = files
        self._publisher = publisher

    def promote(self, paths: Sequence[str]) -> Mapping[str, PublishError]:
        failed = {}
        for path in paths:
            hit(Failpoint.CATALOG_PROMOTE_BEFORE)
            if self._publisher.happens(Fault.CATALOG_FAILS):
                failed[path] = PublishError(StacIssue.IO_ERROR, "simulated")
            else:
                self._publisher.files[path] = self._files[path]
                self._publisher.seen(path, self._files[path])
            hit(Failpoint.CATALOG_PROMOTE_AFTER)
        return failed

    def settle(self) -> None:
        """Do nothing: a promoted file is durable immediately."""


class Mirror:
    """A follower that stores the change id of each row, so that no stalled writer undoes a newer change."""

    name = "mirror"
    after: Sequence[str] = ()

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rows: dict[tuple[str, str], ItemChange] = {}

    @property
    def items(self) -> dict[tuple[str, str], Any]:
        """Return the mirror's Items by collection and Item id."""
        return {key: row.item for key, row in self._rows.items() if row.kind is not ChangeKind.WITHDRAWN}

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Apply each change in a separate step, unless the drawn fault makes the mirror refuse it."""
        for change in changes:
            self._scheduler.pause("mirror.take")
            if self._scheduler.happens(Fault.FOLLOWER_FAILS):
                self._scheduler.happened["follower failed"] += 1
                raise FollowError(observed="simulated")
            key = contract.stac.collection, change.item_id
            if key not in self._rows or self._rows[key].change_id < change.change_id:
                self._rows[key] = change

    def forget(self, contract: DatasetContract) -> None:
        """Delete the Items of a collection."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != contract.stac.collection}
