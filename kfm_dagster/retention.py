"""Retention: delete bulky data that nothing needs, by `configs/retention.yaml` (BEY-10).

The store lists its files, and the database selects the unneeded files. No removed file is recorded, because each run of
retention lists the store again. Belongs here: the model of the policy, the minimum age of each kind, the removal in
batches. No row of the ledger's database is deleted here. Does not belong here: which files are needed
(`sql/queries/retention.sql`), old runs of Dagster (`defs/run_storage.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from obstore.exceptions import NotFoundError
from pydantic import AfterValidator, Field

from kfm_dagster.configs import Duration, Strict, parse, text_in
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.settings import Settings
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.roots import deployment_id, refuse_foreign, storage_root
from kfm_dagster.storage.s3 import Store

RETENTION = "retention.yaml"


@unique
class RetentionKind(StrEnum):
    """A kind of data with a retention time, in the order of removal."""

    DAGSTER_RUNS = "dagster_runs"
    """Finished runs of Dagster, their events and their steps' output."""
    LANDING = "landing"
    """Raw messages, in the batches of their receipt."""
    ARTIFACTS = "artifacts"
    """Outputs of stages."""
    EVIDENCE_SAMPLES = "evidence_samples"
    """Evidence of quarantined units whose cases are closed: bytes of the object, and the message."""


def _at_least(days: int, why: str) -> Callable[[timedelta], timedelta]:
    def check(value: timedelta) -> timedelta:
        if value < timedelta(days=days):
            raise ValueError(f"{days}d at least: {why}")
        return value

    return check


Runs = Annotated[Duration, AfterValidator(_at_least(1, "people look at a run after its end"))]
# With a shorter age, a redelivered message could be landed in a batch that is being removed.
Messages = Annotated[Duration, AfterValidator(_at_least(15, "SQS may deliver a message again for 14 days"))]
Outputs = Annotated[Duration, AfterValidator(_at_least(8, "kfm report looks at the outputs of 7 days"))]
Samples = Annotated[Duration, AfterValidator(_at_least(1, "people look at a case after its end"))]


class KeptFor(Strict):
    """The maximum age of each kind of data; None keeps the kind for ever."""

    dagster_runs: Runs | None = None
    landing: Messages | None = None
    artifacts: Outputs | None = None
    evidence_samples: Samples | None = None


class RetentionPolicy(Strict):
    """`retention.yaml`."""

    version: Literal["1.0.0"]
    keep: KeptFor = Field(description="A kind that is not named is kept for ever.")

    @classmethod
    def load(cls, folder: Path | None) -> Self:
        """Read the folder's file, else the release's own file; raise CardError for a faulty file."""
        text, source = text_in(folder, RETENTION)
        return parse(text, cls, source=source)

    @property
    def ages(self) -> Mapping[RetentionKind, timedelta]:
        """The maximum age of each kind that has a limit, in the order of removal."""
        ages = {kind: getattr(self.keep, kind.value) for kind in RetentionKind}
        return {kind: age for kind, age in ages.items() if age is not None}


REASON = "older than the limit in retention.yaml, and not needed"
BATCH = 10_000
"""Old files per query; many, because each query scans a table that has no index on the hashes."""
PAGE = 1000
"""Files per page of a listing: S3's maximum."""
DELETES = 16
"""Parallel deletions, because a bucket takes tens of milliseconds for each."""
_NAME = re.compile(r"(?P<folder>[a-z]+)/(?P<two>[0-9a-f]{2})/(?P<sha256>(?P=two)[0-9a-f]{62})\.[a-z.]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class OldBatch:
    """A batch of data older than the policy's age: their number, and names of removable data."""

    old: int
    removable: Sequence[str]
    bytes: int | None
    """Size of the removable data; None where it is unknown."""


class Pruner(Protocol):
    """Finds and removes data of a kind."""

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield data older than `before` in bounded batches; change nothing."""

    def remove(self, batch: OldBatch) -> None:
        """Remove the removable data of a batch. Safe to repeat, also after a crash in the middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """A kind's result: numbers of `old` and `removed` data, and `bytes` of the removed data.

    In a plan, `removed` and `bytes` count the data that would be removed.
    """

    kind: RetentionKind
    keep: timedelta
    before: datetime
    old: int
    removed: int
    bytes: int | None

    @property
    def needed(self) -> int:
        """The number of old data that are still needed."""
        return self.old - self.removed


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The policy of a deployment, and a pruner for each kind of data that the deployment stores."""

    policy: RetentionPolicy
    pruners: Mapping[RetentionKind, Pruner]
    database: Database
    clock: Callable[[], datetime]

    def plan(self) -> list[Pruned]:
        """Return the data to remove, for each kind that has a limit; change nothing."""
        return list(self._each(None))

    def run(self, *, actor: str) -> Iterator[Pruned]:
        """Remove old data kind by kind, and yield the result of each kind.

        Each kind gets an entry in the governance log before its first removal.
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
    """Files in a folder of the store, and the statement that selects the removable files."""

    folder: str
    statement: str
    store: Store
    database: Database

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield the files last written earlier than `before`. Raises DependencyUnavailableError."""
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
        """Delete the removable files of a batch. Raises DependencyUnavailableError."""
        with ThreadPoolExecutor(DELETES) as pool:
            list(pool.map(self._delete, batch.removable))

    def _batch(self, old: Sequence[Mapping[str, Any]], before: datetime) -> OldBatch:
        digests = [self._sha256(file["path"]) for file in old]
        with self.database.snapshot() as tx:
            rows = tx.run(self.statement, digests=digests, before=before).all()
        unneeded = {row.digest for row in rows}
        removable = [file for file in old if self._sha256(file["path"]) in unneeded]
        return OldBatch(
            old=len(old),
            removable=[file["path"] for file in removable],
            bytes=sum(file["size"] for file in removable),
        )

    def _sha256(self, path: str) -> str | None:
        """Return the hash that names a file; None for a foreign file."""
        match = _NAME.fullmatch(path)
        return match["sha256"] if match is not None and match["folder"] == self.folder else None

    def _delete(self, path: str) -> None:
        # Another process may delete the same files at the same time.
        with self._answering(), suppress(FileNotFoundError, NotFoundError):
            self.store.delete(path)

    def _answering(self) -> AbstractContextManager[None]:
        return answering("the store", "KFM_STORAGE_URL")


def stored_files(store: Store, database: Database) -> Mapping[RetentionKind, StoredFiles]:
    """Return the pruners of the kinds of data that are files in the store."""
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
    """Return a deployment's retention. `runs` prunes Dagster's runs; None without Dagster.

    Raises CardError for a wrong policy, ConfigurationError for a wrong store URL, and ForeignRootError if the store
    belongs to another deployment, whose files this ledger does not know.
    """
    refuse_foreign([storage_root(settings)], deployment_id(database))
    pruners: dict[RetentionKind, Pruner] = dict(stored_files(open_store(settings.storage), database))
    if runs is not None:
        pruners[RetentionKind.DAGSTER_RUNS] = runs
    return Retention(policy=RetentionPolicy.load(settings.configs_dir), pruners=pruners, database=database, clock=clock)
