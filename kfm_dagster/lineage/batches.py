"""Lineage batches: recorded with their bytes, and published at the lineage root later.

A batch is in the outbox from the transaction that records it until all its destinations have it. No batch waits for
another batch. A file appears complete under its final name, in a folder or a bucket. The file's bytes come from the
batch's row, so that two processes write the same bytes.

Belongs here: recording a batch, publishing it to the root, and the backlog. Does not belong here: a batch's content
(`store.py`, `noted.py`, `revisions.py`), sending to the backend (`delivery.py`), retries (`outbox.py`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.publisher import Publisher, PublishError, open_publisher, publish


class LineageFiles:
    """Files below the lineage root, which is a folder or s3://bucket/prefix."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @classmethod
    def open(cls, location: str) -> LineageFiles:
        """Open the root; a folder is created on first write. Raises ConfigurationError."""
        return cls(open_publisher(location, setting="KFM_LINEAGE_URL", private=True))

    def publish(self, href: str, content: bytes) -> None:
        """Write a file durably; the same bytes can be published again. Raises PublishError."""
        hit(Failpoint.LINEAGE_PUBLISH_BEFORE)
        publish(self._publisher, [{href: content}])
        hit(Failpoint.LINEAGE_PUBLISH_AFTER)

    def read(self, href: str) -> bytes:
        """Return a published file. Raises PublishError."""
        content = self._publisher.read([href]).get(href)
        if content is None:
            raise PublishError(StacIssue.IO_ERROR, f"{href} is missing")
        return content


_LOG = logging.getLogger(__name__)

FILES, BACKEND = "files", "backend"

LEASE = timedelta(seconds=120)
"""Lease of a delivery on its batch, renewed whenever the delivery saves its progress. With the client's default
timeout, an event takes 5 s at most."""

CODEC = "zstd"
"""Compression at level 1, Arrow's default, takes 0.01 ms a unit and leaves a fifteenth of the bytes."""


def batch_id_of(content: bytes) -> str:
    """Return a batch's id from these bytes (such as its content): 128 bits of SHA-256, as hex."""
    return hashlib.sha256(content).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """A failed delivery of a batch; `not_taken` counts sent events that were not accepted."""

    batch_id: str
    destination: str
    href: str
    attempts: int
    next_attempt_at: datetime
    last_error: str
    not_taken: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Batches that a destination lacks; `error` is an error of the destination, or None."""

    batches: int = 0
    units: int = 0
    oldest: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Undelivered:
    """Lineage not yet at the root or the backend; `failing`: the batches with most failures."""

    files: Waiting
    backend: Waiting
    failing: Sequence[Failing]


class LineageBatches:
    """Records and publishes batches. Any number of processes can share an outbox.

    `deliver`: whether OpenLineage batches are also sent to a configured backend.
    """

    def __init__(
        self, database: Database, files: LineageFiles, *, deliver: bool, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._files = files
        self._deliver = deliver
        self._clock = clock
        self.outbox = Outbox(database, "lineage", lease=LEASE, clock=clock)

    def record(
        self,
        tx: Transaction,
        content: bytes,
        *,
        batch_id: str,
        path: LineagePath,
        dataset: str,
        run_id: str,
        href: str,
        units: int,
    ) -> None:
        """Record a batch, and queue it for each of its destinations.

        The batch's file, at `href` below the lineage root, has the lineage of `units` units, steps or failed attempts.
        """
        import pyarrow as pa  # noqa: PLC0415, a process that only reads the backlog does not need it

        deliver = self._deliver and path is LineagePath.OPENLINEAGE
        tx.run(
            "lineage.insert_batch",
            batch_id=batch_id,
            path=path,
            dataset=dataset,
            run_id=run_id,
            href=href,
            sha256=hashlib.sha256(content).hexdigest(),
            unit_count=units,
            delivery="pending" if deliver else "none",
            created_at=self._clock(),
        )
        file = {"href": href, "bytes": len(content)}
        packed = pa.compress(content, codec=CODEC, asbytes=True)
        self.outbox.put(tx, FILES, batch_id, payload=file, content=packed)
        if deliver:
            self.outbox.put(tx, BACKEND, batch_id, payload=[])

    def publish_unless_failing(self) -> None:
        """Publish due files, unless a waiting file has an error: then a later tick publishes them.

        So a run waits for a dead root only once, and not again for each batch.
        """
        with self._database.snapshot() as tx:
            failing = backlog(tx)[FILES].error is not None
        if not failing:
            self.publish()

    def publish(self, *, most: int = 100) -> int:
        """Publish due files, oldest first, until one fails; return the number of published files.

        The failed file is deferred, so that the next call skips it.
        """
        published = 0
        while published < most and (entry := self.outbox.due([FILES])) is not None and self._publish(entry):
            published += 1
        return published

    def _publish(self, entry: Entry) -> bool:
        import pyarrow as pa  # noqa: PLC0415, likewise

        href, size = entry.payload["href"], entry.payload["bytes"]
        try:
            self._files.publish(href, pa.decompress(entry.content, size, codec=CODEC, asbytes=True))
        except (PublishError, OSError) as error:
            _LOG.warning("the lineage root does not accept %s: %s", href, error_text(error))
            self.outbox.defer(entry, error_text(error))
            return False
        with self._database.transaction() as tx:
            tx.run("lineage.mark_published", batch_id=entry.subject, published_at=self._clock())
            self.outbox.done(tx, entry)
        return True


def backlog(tx: Transaction) -> Mapping[str, Waiting]:
    """Return the batches that wait for the root (FILES) and for the backend (BACKEND)."""
    waiting = {
        row.consumer: Waiting(batches=row.batches, units=int(row.units), oldest=row.oldest_at, error=row.error)
        for row in tx.run("lineage.backlog")
    }
    return {FILES: Waiting(), BACKEND: Waiting()} | waiting
