"""The lineage outbox: recorded batches reach the lineage root and the backend, whatever is down in between.

A batch is in the outbox from the transaction that records it until each place has it. A place that fails is tried again
later, further apart each time, and no batch waits behind another. The root gets a batch's file out of the row, and may
get it twice: the same bytes under the same name.

Belongs here: recording a batch, publishing, and what still waits. Does not belong here: what a batch says (`store.py`,
`step_events.py`, `invalidation.py`), one file (`files.py`), the backend's half (`delivery.py`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from kfm_dagster.lineage.files import STORE_ERRORS, LineageFiles
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.backoff import DELIVERY
from kfm_dagster.storage.database import Database, Transaction

_LOG = logging.getLogger(__name__)

FILES, BACKEND = "files", "backend"

CODEC = "zstd"
"""Level 1, Arrow's default: 0.01 ms a unit, and a fifteenth of the bytes."""


BATCH_ID_DIGITS = 32
"""Hexadecimal digits of a batch's id: 128 bits of a SHA-256."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one file at `href`, below the lineage root, tells of so many units or steps."""

    batch_id: str
    path: LineagePath
    dataset: str
    run_id: str
    href: str
    units: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """A batch that a destination did not take; `not_taken` counts the events that the backend was offered in vain."""

    batch_id: str
    destination: str
    href: str
    attempts: int
    next_attempt_at: datetime
    last_error: str
    not_taken: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Batches that one destination has not taken; `error` is what it said of one of them, None before it failed."""

    batches: int = 0
    units: int = 0
    oldest: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Undelivered:
    """What lineage still waits, for the root that readers see and for the backend; `failing` are the worst batches."""

    files: Waiting
    backend: Waiting
    failing: Sequence[Failing]


class Outbox:
    """Takes batches in and publishes them. Any number of processes may work on one outbox.

    `deliver` tells whether there is a backend, which gets OpenLineage.
    """

    def __init__(
        self, database: Database, files: LineageFiles, *, deliver: bool, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._files = files
        self._deliver = deliver
        self._clock = clock

    def record(self, tx: Transaction, batch: Batch, content: bytes) -> None:
        """Record a batch, which from then on waits for each place that is to have it."""
        now = self._clock()
        deliver = self._deliver and batch.path is LineagePath.OPENLINEAGE
        tx.run(
            "lineage.insert_batch",
            batch_id=batch.batch_id,
            path=batch.path,
            dataset=batch.dataset,
            run_id=batch.run_id,
            href=batch.href,
            sha256=hashlib.sha256(content).hexdigest(),
            unit_count=batch.units,
            delivery="pending" if deliver else "none",
            created_at=now,
        )
        packed = pa.compress(content, codec=CODEC, asbytes=True)
        row = {"batch_id": batch.batch_id, "next_attempt_at": now}
        tx.run("lineage.insert_outbox", row, destination=FILES, content=packed, content_bytes=len(content))
        if deliver:
            tx.run("lineage.insert_outbox", row, destination=BACKEND, content=None, content_bytes=None)

    def publish_unless_failing(self) -> None:
        """Publish what is due, but leave it to a later tick while the root does not take files.

        So a run pays for a dead root once, not with every batch.
        """
        with self._database.snapshot() as tx:
            failing = tx.run("lineage.files_refused").scalar_one()
        if not failing:
            self.publish()

    def publish(self, *, most: int = 100) -> int:
        """Publish the files that are due, oldest first; return how many. Ends at the first that fails.

        That one is put off, so the next call gets past it.
        """
        with self._database.snapshot() as tx:
            due = tx.run("lineage.files_due", now=self._clock(), most=most).scalars().all()
        for number, batch_id in enumerate(due):
            if not self._publish(batch_id):
                return number
        return len(due)

    def undelivered(self, *, most: int = 20) -> Undelivered:
        """Return what waits, and the batches that failed most often."""
        with self._database.snapshot() as tx:
            waits = backlog(tx)
            failing = tx.run("lineage.failing", most=most).all()
        return Undelivered(
            files=waits[FILES],
            backend=waits[BACKEND],
            failing=[
                Failing(
                    batch_id=row.batch_id,
                    destination=row.destination,
                    href=row.href,
                    attempts=row.attempts,
                    next_attempt_at=row.next_attempt_at,
                    last_error=row.last_error,
                    not_taken=len(row.not_taken),
                )
                for row in failing
            ],
        )

    def _publish(self, batch_id: str) -> bool:
        with self._database.snapshot() as tx:
            row = tx.run("lineage.file_due", batch_id=batch_id).one_or_none()
        if row is None:
            return True  # another process was quicker
        try:
            content = pa.decompress(bytes(row.content), row.content_bytes, codec=CODEC, asbytes=True)
            self._files.publish(row.href, bytes(content))
        except STORE_ERRORS as error:
            _LOG.warning("the lineage root does not take %s: %s", row.href, error_text(error))
            with self._database.transaction() as tx:
                tx.run(
                    "lineage.put_off_file",
                    batch_id=batch_id,
                    next_attempt_at=self._clock() + DELIVERY.pause(row.attempts + 1),
                    last_error=error_text(error),
                )
            return False
        with self._database.transaction() as tx:
            tx.run("lineage.mark_published", batch_id=batch_id, published_at=self._clock())
            tx.run("lineage.leave_outbox", batch_id=batch_id, destination=FILES)
        return True


def backlog(tx: Transaction) -> Mapping[str, Waiting]:
    """Return what waits for the root (FILES) and for the backend (BACKEND)."""
    waits = {
        row.destination: Waiting(batches=row.batches, units=int(row.units), oldest=row.oldest_at, error=row.error)
        for row in tx.run("lineage.backlog")
    }
    return {FILES: Waiting(), BACKEND: Waiting()} | waits
