"""Refusals: the names of the guards, what one says, and what it is asked about. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum, unique

from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.recovery.replay.limits import Limits
from kfm_dagster.recovery.replay.selection import Selection
from kfm_dagster.settings import Environment


@unique
class Guard(StrEnum):
    """What can refuse a replay."""

    ENVIRONMENT = "environment"
    """The selection is for another environment."""
    SCOPE = "scope"
    """A dimension is missing: a dataset, a time, and a status or an error code; or explicit wal_ids."""
    GLOBAL_SCOPE = "global_scope"
    """Every dataset is meant at once."""
    WINDOW = "window"
    """The time is open, or longer than one replay may cover."""
    MAX_SELECTION_RECORDS = "max_selection_records"
    """More records than one replay may select."""
    MAX_BATCH_SIZE = "max_batch_size"
    """Larger batches than a transaction should hold."""
    MAX_BATCHES = "max_batches"
    """More batches than one replay may have."""
    RATE = "rate"
    """Faster than the environment allows."""
    APPROVAL = "approval"
    """Results would be replaced, or units released, without a governed approval."""
    CHANGE_REFERENCE = "change_reference"
    """The environment wants a change or incident reference."""
    KILL_SWITCH = "kill_switch"
    """A dataset of the selection is switched off."""
    DOWNGRADE = "downgrade"
    """Results of a newer release would be replaced by those of this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why a guard refuses."""

    guard: Guard
    what: str
    observed: object
    expected: object
    next_step: str

    def as_json(self) -> dict[str, str]:
        """Return the published form."""
        return {name: str(value) for name, value in asdict(self).items()}


class GuardError(KfmError):
    """A guard refused the replay."""

    exit_code = ExitCode.REFUSED

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        first, *more = refusals
        self.refusals = tuple(refusals)
        also = f" (and {', '.join(refusal.guard for refusal in more)})" if more else ""
        super().__init__(
            f"guard {first.guard} refused{also}: {first.what}",
            observed=first.observed,
            expected=first.expected,
            next_step=first.next_step,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A selection, and under which circumstances it is to be carried out."""

    selection: Selection
    env: Environment
    limits: Limits
    change_ref: str | None

    @property
    def max_records(self) -> int:
        """Records that it may select."""
        of_days = self.selection.spec.filters.days.are_bounded
        return self.limits.max_records_of_days if of_days else self.limits.max_selection_records

    @property
    def max_batches(self) -> int:
        """Batches that it may have: so many as its records fill."""
        if self.selection.spec.filters.days.are_bounded:
            return max(self.limits.max_batches, -(-self.max_records // self.batch_size))
        return self.limits.max_batches

    @property
    def batch_size(self) -> int:
        """Units of a batch."""
        return self.selection.spec.limits.batch_size or self.limits.default_batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFacts:
    """What the ledger says about a request. `more` tells that records beyond the limit match."""

    records: int
    more: bool
    switched_off: frozenset[str]
    newer_results: int
    code_version: str
