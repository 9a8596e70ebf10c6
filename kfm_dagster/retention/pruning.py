"""Pruning: what of each kind is older than its policy and needed by nothing, counted or removed, batch by batch.

Belongs here: the moment before which things go, the entry in the governance log, and what was done in numbers. Does not
belong here: how the old ones of a kind are found and removed (`stored_files.py`, `defs/old_runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.retention.policy import RetentionKind, RetentionPolicy
from kfm_dagster.storage.database import Database

REASON = "older than its policy in retention.yaml, and needed by nothing"


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
                    self._note(decision, kind, keep, before)
                pruner.remove(batch)
            removed += len(batch.removable)
            size = None if size is None or batch.bytes is None else size + batch.bytes
        return Pruned(kind=kind, keep=keep, before=before, old=old, removed=removed, bytes=size)

    def _note(self, decision: Decision, kind: RetentionKind, keep: timedelta, before: datetime) -> None:
        details: dict[str, Any] = {"kind": kind, "keep_seconds": int(keep.total_seconds()), "before": rfc3339(before)}
        GovernanceLog(self.database, clock=self.clock).record(GovernanceAction.RETENTION, decision, details=details)
