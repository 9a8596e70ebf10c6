"""Old files of the store: landed batches, outputs of stages and evidence, each under the hash of its bytes.

What the store lists is asked of the database, batch by batch: nothing is noted of what was removed, so that whoever
comes next finds what is left. Belongs here: listing and deleting. Does not belong here: what still needs a file
(`sql/queries/retention.sql`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from obstore.exceptions import NotFoundError

from kfm_dagster.retention.policy import RetentionKind
from kfm_dagster.retention.pruning import OldBatch
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.s3 import Store

BATCH = 10_000
"""Old files that one question to the database names: it looks through a table without an index on their hashes."""
PAGE = 1000
"""Files of one answer of a listing: the most that S3 gives."""
DELETES = 16
"""Deletions at the same time; a bucket takes tens of milliseconds for each."""
_NAME = re.compile(r"(?P<folder>[a-z]+)/(?P<two>[0-9a-f]{2})/(?P<sha256>(?P=two)[0-9a-f]{62})\.[a-z.]+")


@dataclass(frozen=True, kw_only=True)
class StoredFiles:
    """Files of one folder of the store, and the statement that says which of them may go."""

    folder: str
    statement: str
    store: Store
    database: Database

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield the files that were written before that moment. Raises DependencyUnavailableError."""
        old: list[Mapping[str, Any]] = []
        for page in self._pages():
            old += [file for file in page if file["last_modified"] < before and self._sha256(file["path"])]
            if len(old) >= BATCH:
                yield self._batch(old, before)
                old = []
        if old:
            yield self._batch(old, before)

    def remove(self, batch: OldBatch) -> None:
        """Delete the files that nothing needs. Raises DependencyUnavailableError."""
        with ThreadPoolExecutor(DELETES) as pool:
            list(pool.map(self._delete, batch.removable))

    def _pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        with self._answering():
            yield from self.store.list(self.folder, chunk_size=PAGE)

    def _batch(self, old: Sequence[Mapping[str, Any]], before: datetime) -> OldBatch:
        digests = [self._sha256(file["path"]) for file in old]
        with self.database.snapshot() as tx:
            rows = tx.run(self.statement, digests=digests, before=before).all()
        free = {row.digest for row in rows}
        going = [file for file in old if self._sha256(file["path"]) in free]
        return OldBatch(
            old=len(old),
            removable=[file["path"] for file in going],
            bytes=sum(file["size"] for file in going),
        )

    def _sha256(self, path: str) -> str | None:
        """Return the hash that names a file; None for what is not a file of ours."""
        found = _NAME.fullmatch(path)
        return found["sha256"] if found is not None and found["folder"] == self.folder else None

    def _delete(self, path: str) -> None:
        # Two retentions at once delete the same.
        with self._answering(), suppress(FileNotFoundError, NotFoundError):
            self.store.delete(path)

    def _answering(self) -> AbstractContextManager[None]:
        return answering("the store", "KFM_STORAGE_URL")


def stored_files(store: Store, database: Database) -> Mapping[RetentionKind, StoredFiles]:
    """Return what prunes the kinds that are files of the store."""
    kinds = {
        RetentionKind.LANDING: ("landing", "retention.landing"),
        RetentionKind.ARTIFACTS: ("artifacts", "retention.artifacts"),
        RetentionKind.EVIDENCE_SAMPLES: ("evidence", "retention.evidence"),
    }
    return {
        kind: StoredFiles(folder=folder, statement=statement, store=store, database=database)
        for kind, (folder, statement) in kinds.items()
    }
