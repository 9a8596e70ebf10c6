"""What the replay engine answers: one frozen value per operation."""

from __future__ import annotations

from dataclasses import dataclass

from kfm_dagster.recovery.replay.accounts import Account, Differing
from kfm_dagster.recovery.replay.pace import Hold
from kfm_dagster.recovery.replay.runs import ENDED, ReplayRun, ReplayState
from kfm_dagster.recovery.replay.units import AdmittedBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Advance:
    """What one advance did: let a batch in, was held, changed the state, or nothing."""

    replay_run_id: str
    state: ReplayState
    admitted: AdmittedBatch | None = None
    hold: Hold | None = None

    def __str__(self) -> str:
        if self.admitted is not None:
            return f"replay {self.replay_run_id}: {self.admitted}"
        return f"replay {self.replay_run_id}: {self.state}" + (f", {self.hold}" if self.hold else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A replay, the account of its units, the results that differ, and what holds it at this moment."""

    run: ReplayRun
    account: Account
    differing: tuple[Differing, ...]
    hold: Hold | None

    @property
    def ended(self) -> bool:
        """Tell whether nothing more comes without a person."""
        return self.run.state in ENDED

    def as_json(self) -> dict[str, object]:
        """Return the published form."""
        return {
            **self.run.as_json(),
            **self.account.as_json(),
            "mismatches": [found.as_json() for found in self.differing],
            "hold": None if self.hold is None else str(self.hold),
        }
