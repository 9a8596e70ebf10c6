"""What the ledger answers: one frozen value per operation. The buckets of a report are disjoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.envelope import Lane, WalId
from kfm_dagster.ledger.state_machine import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureResult:
    """Which units got their record now, and where those stand that had one.

    Of those created, `stale` were announced after a newer version of their object and are out already; `superseded` are
    earlier versions that a created one made obsolete, in whatever state. `refused` have no record, only the
    database's words.
    """

    created: frozenset[WalId]
    existing: Mapping[WalId, Status]
    stale: frozenset[WalId] = frozenset()
    superseded: frozenset[WalId] = frozenset()
    refused: Mapping[WalId, str] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, parts: Sequence[EnsureResult], refused: Mapping[WalId, str]) -> EnsureResult:
        """Return the result of a batch that was written in parts."""
        created: frozenset[WalId] = frozenset().union(*(part.created for part in parts))
        older = frozenset().union(*(part.stale | part.superseded for part in parts))
        return cls(
            created=created,
            existing={wal_id: status for part in parts for wal_id, status in part.existing.items()},
            stale=older & created,
            superseded=older - created,
            refused=refused,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleReport:
    """Final statuses of a batch. `failed` may be tried again, `quarantined` not; `lost` were no longer this run's.

    `mismatched` are those of the succeeded whose result differs from an earlier success, without permission.
    """

    succeeded: tuple[WalId, ...] = ()
    failed: tuple[WalId, ...] = ()
    quarantined: tuple[WalId, ...] = ()
    lost: tuple[WalId, ...] = ()
    mismatched: tuple[WalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverReport:
    """Claims taken from dead runs.

    `requeued` wait for another run, `quarantined` had no attempt left, `failed` stay so: the policy allows no replay.
    """

    requeued: tuple[WalId, ...] = ()
    quarantined: tuple[WalId, ...] = ()
    failed: tuple[WalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPartition:
    """Work that waits in one lane of one partition of one dataset."""

    dataset: str
    partition: str
    lane: Lane = Lane.LIVE
    units: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingUnits:
    """Units of a dataset that failed or are quarantined for one code, and that somebody has to care for.

    `retried` of them get another attempt by themselves; `first_at` is since when the first of them stands so.
    """

    dataset: str
    status: Status
    code: str
    units: int
    retried: int
    first_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DayReport:
    """What became of the units of one day of a dataset, whichever runs did it.

    `counts` has every status. `failing` are those of the failed and quarantined that somebody has to care for, by error
    code: not those of which a newer version is known, and not those whose case is closed.
    """

    counts: Mapping[Status, int]
    failing: Mapping[str, int]

    @property
    def units(self) -> int:
        """Every unit of the day."""
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingUnit:
    """A unit that failed or is quarantined, and why."""

    wal_id: WalId
    object_uri: str
    status: Status
    attempts: int
    code: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who holds claims of a dataset, and until when."""

    run_id: str
    dataset: str
    worker_id: str
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectVersion:
    """One version of an object, and the one that made it obsolete."""

    wal_id: WalId
    object_version: str | None
    sequencer: str | None
    event_time: datetime
    status: Status
    superseded_by: WalId | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A success whose result differs from the success before it."""

    wal_id: WalId
    dataset: str
    attempt: int
    earlier_attempt: int
    at: datetime
    replay_run_id: str | None
    item_differs: bool
    provenance_differs: bool
    permitted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveCount:
    """How often records of a dataset moved to a status, since the ledger began.

    `replay_reason` is that of a return to pending, or ''; `attempt` that of a claim, or 0.
    """

    dataset: str
    to_status: Status
    replay_reason: str
    attempt: int
    moves: int

    @classmethod
    def of(cls, row: Any) -> MoveCount:
        """Build the count from a total, whose label is the status with the reason or the attempt behind it."""
        status, _, detail = row.label.partition(" ")
        return cls(
            dataset=row.subject,
            to_status=Status(status),
            replay_reason=detail if status == Status.PENDING else "",
            attempt=int(detail) if status == Status.IN_PROGRESS else 0,
            moves=int(row.amount),
        )
