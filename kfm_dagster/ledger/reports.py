"""What the ledger answers: one frozen value per operation. The buckets of a report are disjoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.ledger.state_machine import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureResult:
    """Which units got their record now, and where those stand that had one."""

    created: frozenset[WalId]
    existing: Mapping[WalId, Status]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleReport:
    """Final statuses of a batch. `failed` may be tried again, `quarantined` not; `lost` were no longer this run's."""

    succeeded: tuple[WalId, ...] = ()
    failed: tuple[WalId, ...] = ()
    quarantined: tuple[WalId, ...] = ()
    lost: tuple[WalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverReport:
    """Claims taken from dead runs.

    `readmitted` wait for another run, `quarantined` had no attempt left, `failed` stay so: the policy allows no replay.
    """

    readmitted: tuple[WalId, ...] = ()
    quarantined: tuple[WalId, ...] = ()
    failed: tuple[WalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPartition:
    """Work that waits in one partition of one dataset; `oldest` is the earliest event time."""

    dataset: str
    partition: str
    units: int
    oldest: datetime
