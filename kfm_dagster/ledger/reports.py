"""Results of the ledger's operations as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.envelope import Lane, WalId
from kfm_dagster.ledger.state_machine import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureResult:
    """Units whose record was created now, and the statuses of units with an earlier record.

    `stale` are the created units that were announced after a newer version of their object; they are quarantined
    already. `superseded` are earlier versions, in any status, that a created unit made obsolete. `refused` units have
    no record, only the database's error text.
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
    """Final statuses of a batch. `failed` units may be retried, `quarantined` units not.

    The run no longer had the claim of `lost` units. `mismatched` units succeeded with a result that must not differ
    from the earlier one, but does.
    """

    succeeded: tuple[WalId, ...] = ()
    failed: tuple[WalId, ...] = ()
    quarantined: tuple[WalId, ...] = ()
    lost: tuple[WalId, ...] = ()
    mismatched: tuple[WalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverReport:
    """Claims revoked from dead or rolled-back runs.

    `requeued` units wait for another run, `quarantined` units for a person. `failed` units stay failed, because their
    dataset is switched off or has no contract.
    """

    requeued: tuple[WalId, ...] = ()
    quarantined: tuple[WalId, ...] = ()
    failed: tuple[WalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPartition:
    """Pending work in a lane of a dataset's partition."""

    dataset: str
    partition: str
    lane: Lane = Lane.LIVE
    units: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingUnits:
    """Units of a dataset that need attention, with the same status and error code.

    `retried` of them are retried automatically; `first_at` is when the first of them reached its status.
    """

    dataset: str
    status: Status
    code: str
    units: int
    retried: int
    first_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DayReport:
    """Statuses of the units of a dataset's day, across all runs.

    `counts` has every status. `failing` counts by error code the failed and quarantined units that need attention:
    units without a newer version and without a discarded case.
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
    """A run that holds claims of a dataset, and until when."""

    run_id: str
    dataset: str
    worker_id: str
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectVersion:
    """A version of an object, and the version that made it obsolete."""

    wal_id: WalId
    object_version: str | None
    sequencer: str | None
    event_time: datetime
    status: Status
    superseded_by: WalId | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A success with another result than the previous success of the unit."""

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
    """Number of a dataset's transitions to a status since the ledger began.

    `replay_reason` is set for returns to pending, else ''; `attempt` for claims, else 0.
    """

    dataset: str
    to_status: Status
    replay_reason: str
    attempt: int
    moves: int

    @classmethod
    def of(cls, row: Any) -> MoveCount:
        """Build the count from a total, whose label is a status followed by a reason or an attempt."""
        status, _, detail = row.label.partition(" ")
        return cls(
            dataset=row.subject,
            to_status=Status(status),
            replay_reason=detail if status == Status.PENDING else "",
            attempt=int(detail) if status == Status.IN_PROGRESS else 0,
            moves=int(row.amount),
        )
