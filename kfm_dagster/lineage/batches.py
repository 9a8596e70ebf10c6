"""Lineage batches: recorded with their bytes, and published at the lineage root later.

A batch is in the outbox from the transaction that records it until root and backend have it; no batch waits for
another. A file appears complete under its final name, in a folder or a bucket. The file's bytes come from the row, so
that two processes write the same bytes.

Belongs here: recording a batch, publishing it to the root, and the backlog. Does not belong here: a batch's content
(`store.py`, `noted.py`, `revisions.py`), sending to the backend (`delivery.py`), retries (`outbox.py`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from obstore.exceptions import BaseError

from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.outbox import Entry, Outbox
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.private import private_folder

STAGING = ".staging"
"""Folder of unfinished files, outside readers' patterns (`openlineage/**`, `prov/**`)."""

LEFTOVER_SECONDS = 24 * 3600.0
"""Age of an unfinished file of a dead process; writing a file takes well under a second."""

STORE_ERRORS = (OSError, BaseError)
"""Errors of a folder or a bucket that cannot write or read a file."""


class FolderFiles:
    """Lineage in a folder. Files are synced, because the database that names them is synced."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, href: str, content: bytes) -> None:
        """Write a partial file, sync and rename it, so that other processes see only whole files."""
        partial = self._staging() / f"{secrets.token_hex(16)}.partial"
        try:
            hit(Failpoint.LINEAGE_STAGE_BEFORE)
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            hit(Failpoint.LINEAGE_STAGE_AFTER)
            final = self._root / href
            private_folder(final.parent)
            hit(Failpoint.LINEAGE_PUBLISH_BEFORE)
            partial.replace(final)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._sync(PurePosixPath(href).parent)
        hit(Failpoint.LINEAGE_PUBLISH_AFTER)

    def read(self, href: str) -> bytes:
        """Return a published file."""
        return (self._root / href).read_bytes()

    def _staging(self) -> Path:
        """Return the folder of unfinished files, after removing the files of dead processes."""
        folder = self._root / STAGING
        private_folder(folder)
        for leftover in folder.glob("*.partial"):
            with suppress(FileNotFoundError):  # another process finished or removed it
                if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                    leftover.unlink()
        return folder

    def _sync(self, folder: PurePosixPath) -> None:
        for path in (folder, *folder.parents):
            descriptor = os.open(self._root / path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class BucketFiles:
    """Lineage in a bucket, where a PUT is atomic and durable by itself."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def publish(self, href: str, content: bytes) -> None:
        """PUT the file."""
        hit(Failpoint.LINEAGE_PUBLISH_BEFORE)
        self._store.put(href, content)
        hit(Failpoint.LINEAGE_PUBLISH_AFTER)

    def read(self, href: str) -> bytes:
        """Return a published file."""
        return bytes(self._store.get(href).bytes())


LineageFiles = FolderFiles | BucketFiles
"""The lineage root. Hrefs are relative to it; the same bytes may be published again. Methods raise STORE_ERRORS."""


def open_files(location: str) -> LineageFiles:
    """Open a folder (created on first write) or `s3://bucket/prefix`. Raises ConfigurationError."""
    return BucketFiles(open_store(location)) if "://" in location else FolderFiles(Path(location).absolute())


_LOG = logging.getLogger(__name__)

FILES, BACKEND = "files", "backend"

LEASE = timedelta(seconds=120)
"""Time that a delivery owns its batch after a write; with the client's default timeout, an event takes 5 s at most."""

CODEC = "zstd"
"""Level 1, Arrow's default, takes 0.01 ms a unit and leaves a fifteenth of the bytes."""


def batch_id_of(content: bytes) -> str:
    """Return a batch's id, from its content or other bytes: 128 bits of a SHA-256, as hex."""
    return hashlib.sha256(content).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """A batch that a destination did not accept; `not_taken` counts the backend's unaccepted events."""

    batch_id: str
    destination: str
    href: str
    attempts: int
    next_attempt_at: datetime
    last_error: str
    not_taken: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Batches that a destination lacks; `error` is its error for one of them, or None."""

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
    """Records and publishes batches. Any number of processes may share an outbox.

    `deliver`: whether a backend is configured, so that OpenLineage batches are sent there, too.
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

        The batch's file, at `href` below the lineage root, covers `units` units or steps.
        """
        import pyarrow as pa  # noqa: PLC0415, reading a backlog needs none of it

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
        """Publish due files; if the root is failing, leave them to a later tick.

        So a run waits for a dead root only once, and not with every batch.
        """
        with self._database.snapshot() as tx:
            failing = backlog(tx)[FILES].error is not None
        if not failing:
            self.publish()

    def publish(self, *, most: int = 100) -> int:
        """Publish due files, oldest first, up to the first failure; return the number published.

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
        except STORE_ERRORS as error:
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
