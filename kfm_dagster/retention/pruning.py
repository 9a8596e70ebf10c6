"""Pruning: what of each kind is older than its policy and needed by nothing, counted or removed, batch by batch.

What the store lists is asked of the database: nothing is noted of what was removed, so that the next retention finds
what is left. Does not belong here: what still needs a file (`sql/queries/retention.sql`), old runs of Dagster
(`defs/old_runs.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from obstore.exceptions import NotFoundError

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.retention.policy import RetentionKind, RetentionPolicy
from kfm_dagster.settings import Settings
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.roots import deployment_id, refuse_foreign, storage_root
from kfm_dagster.storage.s3 import Store

REASON = "older than its policy in retention.yaml, and needed by nothing"
BATCH = 10_000
"""Old files that one question to the database names: it looks through a table without an index on their hashes."""
PAGE = 1000
"""Files of one answer of a listing: the most that S3 gives."""
DELETES = 16
"""Deletions at the same time; a bucket takes tens of milliseconds for each."""
_NAME = re.compile(r"(?P<folder>[a-z]+)/(?P<two>[0-9a-f]{2})/(?P<sha256>(?P=two)[0-9a-f]{62})\.[a-z.]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class OldBatch:
    """Some of a kind that are older than its policy: how many, and which of them nothing needs."""

    old: int
    removable: Sequence[str]
    bytes: int | None
    """Of those that nothing needs; None where nobody can say."""


class Pruner(Protocol):
    """What finds and removes things of one kind."""

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield what is older than that moment, in bounded batches; what is as old is not. Changes nothing."""

    def remove(self, batch: OldBatch) -> None:
        """Remove what nothing needs of a batch. Harmless to repeat, also after having died in the middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """What of one kind is older than its policy: how many in all, and how many, of how many bytes, go or went."""

    kind: RetentionKind
    keep: timedelta
    before: datetime
    old: int
    removed: int
    bytes: int | None

    @property
    def needed(self) -> int:
        """How many are older and stay, because something needs them."""
        return self.old - self.removed


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The policy of a deployment, and what prunes each kind. A kind without a pruner has nothing to prune here."""

    policy: RetentionPolicy
    pruners: Mapping[RetentionKind, Pruner]
    database: Database
    clock: Callable[[], datetime]

    def plan(self) -> list[Pruned]:
        """Return what would be removed of each kind that has a policy. Changes nothing."""
        return list(self._each(None))

    def run(self, *, actor: str) -> Iterator[Pruned]:
        """Remove it, kind after kind, and yield what was removed once a kind is done.

        Each kind of which something goes has an entry in the governance log before.
        """
        return self._each(Decision(actor=actor, reason=REASON))

    def _each(self, decision: Decision | None) -> Iterator[Pruned]:
        now = self.clock()
        for kind, keep in self.policy.ages.items():
            if (pruner := self.pruners.get(kind)) is not None:
                yield self._one(kind, keep, pruner, now - keep, decision)

    def _one(
        self, kind: RetentionKind, keep: timedelta, pruner: Pruner, before: datetime, decision: Decision | None
    ) -> Pruned:
        old = removed = 0
        size: int | None = 0
        for batch in pruner.batches(before):
            old += batch.old
            if not batch.removable:
                continue
            if decision is not None:
                if not removed:
                    details = {"kind": kind, "keep_seconds": int(keep.total_seconds()), "before": rfc3339(before)}
                    log = GovernanceLog(self.database, clock=self.clock)
                    with self.database.transaction() as tx:
                        log.record(GovernanceAction.RETENTION, decision, details=details, tx=tx)
                pruner.remove(batch)
            removed += len(batch.removable)
            size = None if size is None or batch.bytes is None else size + batch.bytes
        return Pruned(kind=kind, keep=keep, before=before, old=old, removed=removed, bytes=size)


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
        with self._answering():
            for page in self.store.list(self.folder, chunk_size=PAGE):
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


def retention_of(
    settings: Settings, database: Database, *, runs: Pruner | None, clock: Callable[[], datetime]
) -> Retention:
    """Return the retention of a deployment. `runs` prunes Dagster's, None where there is no Dagster.

    Raises CardError for a wrong policy, ConfigurationError, and ForeignRootError where the store is another
    deployment's, whose files this ledger does not know.
    """
    refuse_foreign([storage_root(settings)], deployment_id(database))
    pruners: dict[RetentionKind, Pruner] = dict(stored_files(open_store(settings.storage), database))
    if runs is not None:
        pruners[RetentionKind.DAGSTER_RUNS] = runs
    return Retention(policy=RetentionPolicy.load(settings.configs_dir), pruners=pruners, database=database, clock=clock)
