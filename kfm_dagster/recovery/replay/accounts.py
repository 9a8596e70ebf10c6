"""Accounts of replays: what came of their units, counted. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import rfc3339


@unique
class UnitOutcome(StrEnum):
    """What came of a unit of a replay; the database's view `replay_outcomes` says it."""

    SELECTED = "selected"
    """Its batch has not come."""
    SKIPPED = "skipped"
    """It was not let in."""
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    RETRYING = "retrying"
    """An attempt failed and another one is due."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """An attempt failed and no further one is due."""
    QUARANTINED = "quarantined"


OPEN = (UnitOutcome.SELECTED, UnitOutcome.PENDING, UnitOutcome.IN_PROGRESS, UnitOutcome.RETRYING)
"""Outcomes that are none yet."""
BAD = (UnitOutcome.FAILED, UnitOutcome.QUARANTINED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """How many units of a replay had which outcome; the buckets sum to the selection."""

    outcomes: Mapping[UnitOutcome, int]
    skipped: Mapping[str, int]
    by_dataset: Mapping[str, Mapping[UnitOutcome, int]]

    @property
    def units(self) -> int:
        """Units of the selection."""
        return sum(self.outcomes.values())

    @property
    def open(self) -> int:
        """Units that nothing final came of yet."""
        return sum(self.outcomes[outcome] for outcome in OPEN)

    @property
    def bad(self) -> int:
        """Units that were let in and ended badly."""
        return sum(self.outcomes[outcome] for outcome in BAD)

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "units": self.units,
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in UnitOutcome},
            "skipped": dict(self.skipped),
            "datasets": {
                name: {outcome.value: count for outcome, count in counts.items()}
                for name, counts in self.by_dataset.items()
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Differing:
    """A unit whose result differs from the one before, without permission."""

    wal_id: WalId
    dataset: str
    attempt: int
    at: datetime

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {"wal_id": self.wal_id, "dataset": self.dataset, "attempt": self.attempt, "at": rfc3339(self.at)}


def outcome_line(counts: Mapping[UnitOutcome, int], *, among: Iterable[UnitOutcome] = UnitOutcome) -> str:
    """Say how many units had which outcome, in one line without zeros."""
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in among if counts.get(outcome)) or "no units"
