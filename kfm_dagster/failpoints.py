"""Failpoints: points where fault injection can make this process die, wait or fail.

Every commit and every external call has a failpoint before and after it, because after a crash between the two, the
outcome is unknown. Fault injection (`fault_injection`) acts at these points, as at TiKV's fail points. Belongs here:
the closed list of failpoints, their labels, and the handler of a process. Does not belong here: the faults.
Imports no other module of the package; without a handler, reaching a failpoint costs a comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from enum import StrEnum, unique
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@unique
class Failpoint(StrEnum):
    """A point where the process may die, wait or fail: `<dependency>.<call>.<moment>`."""

    DATABASE_BEGIN = "database.begin"
    """A transaction that reads or writes is about to begin; nothing was sent to the database yet."""
    DATABASE_COMMIT_BEFORE = "database.commit.before"
    """A transaction has made its changes, which no other process sees yet."""
    DATABASE_COMMIT_AFTER = "database.commit.after"
    """A transaction is durable; an error here acts as a commit whose answer is lost."""
    STAGE_COMPUTED = "stage.computed"
    """A node has finished, including its external effects; the stage is not committed."""
    STAGE_COMMITTED = "stage.committed"
    """A stage is durable. The deletion of its messages, which must follow the commit, has not begun."""
    QUEUE_RECEIVE_BEFORE = "queue.receive.before"
    """A receive request is about to be sent."""
    QUEUE_RECEIVE_AFTER = "queue.receive.after"
    """Messages are in flight, and known only to this process."""
    QUEUE_DELETE_BEFORE = "queue.delete.before"
    """A batch of finished messages is about to be deleted."""
    QUEUE_DELETE_AFTER = "queue.delete.after"
    """The messages are deleted; in the ledger, their deletion is still due."""
    QUEUE_VISIBILITY_BEFORE = "queue.visibility.before"
    """The visibility timeout of a batch of messages is about to change."""
    QUEUE_VISIBILITY_AFTER = "queue.visibility.after"
    """The messages have their new visibility timeout."""
    QUEUE_SEND_BEFORE = "queue.send.before"
    """A batch of messages is about to be sent (a drain of the dead-letter queue)."""
    QUEUE_SEND_AFTER = "queue.send.after"
    """The messages are on the queue; an error here acts as a send whose answer is lost."""
    OBJECT_HEAD_BEFORE = "object.head.before"
    """A provider's object is about to be requested for its head, with or without its first bytes."""
    OBJECT_HEAD_AFTER = "object.head.after"
    """The head has arrived."""
    OBJECT_READ_BEFORE = "object.read.before"
    """A range of a provider's object is about to be read."""
    OBJECT_READ_AFTER = "object.read.after"
    """The range has arrived."""
    OBJECT_LIST_BEFORE = "object.list.before"
    """A prefix of a provider's bucket is about to be listed."""
    OBJECT_LIST_AFTER = "object.list.after"
    """The prefix is listed to its end."""
    CATALOG_STAGE_BEFORE = "catalog.stage.before"
    """Files of the catalog are about to be staged, invisible to readers."""
    CATALOG_STAGE_AFTER = "catalog.stage.after"
    """The files are written, and no reader finds them."""
    CATALOG_PROMOTE_BEFORE = "catalog.promote.before"
    """Staged files are about to be promoted."""
    CATALOG_PROMOTE_AFTER = "catalog.promote.after"
    """Readers find the files; the index does not have them yet."""
    CATALOG_SETTLE_BEFORE = "catalog.settle.before"
    """The names of promoted files are about to be made durable."""
    CATALOG_SETTLE_AFTER = "catalog.settle.after"
    """The files survive a power loss; the index does not have them yet."""
    CATALOG_REMOVE_BEFORE = "catalog.remove.before"
    """An obsolete file, such as of an undone run, is about to be deleted; no document links to it any more."""
    CATALOG_REMOVE_AFTER = "catalog.remove.after"
    """The file is deleted; if it is of an undone run, the index still has its Item."""
    LINEAGE_PUBLISH_BEFORE = "lineage.publish.before"
    """A lineage file is about to be published; its bytes are in the outbox."""
    LINEAGE_PUBLISH_AFTER = "lineage.publish.after"
    """Readers find the file; the outbox still has it."""
    LINEAGE_SEND_BEFORE = "lineage.send.before"
    """An event is about to be sent to the OpenLineage backend."""
    LINEAGE_SEND_AFTER = "lineage.send.after"
    """The backend has the event; the outbox still has it."""
    ANNOUNCEMENT_SEND_BEFORE = "announcement.send.before"
    """Events are about to be sent to a subscription's receiver; the attempt is recorded."""
    ANNOUNCEMENT_SEND_AFTER = "announcement.send.after"
    """The receiver has the events; the delivery is not recorded yet."""
    ARTIFACT_PUT_BEFORE = "artifact.put.before"
    """An output is about to be stored."""
    ARTIFACT_PUT_AFTER = "artifact.put.after"
    """The output is stored; the transaction that names it is still open."""
    LANDING_PUT_BEFORE = "landing.put.before"
    """A batch of raw messages is about to be landed."""
    LANDING_PUT_AFTER = "landing.put.after"
    """The batch is landed, but not recorded yet."""


Labels = Mapping[str, str]
"""Labels of a failpoint. Within a stage: `dataset`, `operator`, `partition`, `run` and `units` (the size of the stage's
batch, "" while unknown). Outside of a stage: none."""
Handler = Callable[[Failpoint, Labels], None]
"""Called at every failpoint; an error that the handler raises is raised at the failpoint."""

_labels: ContextVar[Labels] = ContextVar("kfm_failpoint_labels", default={})  # noqa: B039, never changed, only replaced
_handler: Handler | None = None
_clock_skew = timedelta()


def hit(failpoint: Failpoint) -> None:
    """Call the handler, if installed, at a failpoint. Raises the handler's error."""
    if _handler is not None:
        _handler(failpoint, _labels.get())


def install(handler: Handler | None, *, clock_skew: timedelta = timedelta()) -> None:
    """Call `handler` at every failpoint from now on, in all threads, and skew the clock.

    None removes the handler. Only `fault_injection` calls this.
    """
    global _handler, _clock_skew
    _handler, _clock_skew = handler, clock_skew


def clock_skew() -> timedelta:
    """Return the skew of the pipeline's clock; zero unless a handler was installed with a skew."""
    return _clock_skew


@contextmanager
def failpoint_context(**labels: str) -> Iterator[None]:
    """Add labels to the failpoints within the block."""
    token = _labels.set({**_labels.get(), **labels})
    try:
        yield
    finally:
        _labels.reset(token)


def with_context(work: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Return `work` with the current labels, because a pool's thread starts without labels."""
    labels = _labels.get()
    if not labels:
        return work

    def labelled_work(argument: Argument) -> Result:
        with failpoint_context(**labels):
            return work(argument)

    return labelled_work
