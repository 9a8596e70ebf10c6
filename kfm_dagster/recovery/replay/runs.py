"""Replay runs in the database: their states, frozen selections, and units' outcomes.

Belongs here: rows of `replay_runs` and `replay_units` as values, and the statements that read and write them. Does not
belong here: decisions (`engine.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from sqlalchemy import RowMapping

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import RefusedError, UnknownNameError
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.recovery.replay.selection import Mode, Selection, selection_of
from kfm_dagster.settings import Environment
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.statements import value_of
from kfm_dagster.views.view import json_row


@unique
class ReplayState(StrEnum):
    """The state of a replay."""

    PLANNED = "planned"
    """The selection is being frozen; no other process sees this state."""
    RUNNING = "running"
    """Batches are admitted in order."""
    PAUSED = "paused"
    """A person paused the replay."""
    STOPPED = "stopped"
    """Stopped by a person, or by the engine because a result differs; the replay can be resumed."""
    FINISHED = "finished"
    """Every unit is decided on, and every admitted unit has ended."""


ENDED = (ReplayState.STOPPED, ReplayState.FINISHED)
"""States in which no process advances a replay; a person can resume a stopped replay."""
NEXT_STATES: Mapping[ReplayState, tuple[ReplayState, ...]] = {
    ReplayState.PLANNED: (ReplayState.RUNNING,),
    ReplayState.RUNNING: (ReplayState.PAUSED, ReplayState.STOPPED, ReplayState.FINISHED),
    ReplayState.PAUSED: (ReplayState.RUNNING, ReplayState.STOPPED),
    ReplayState.STOPPED: (ReplayState.RUNNING,),
    ReplayState.FINISHED: (),
}
"""The legal changes of state (RPL-05); the database refuses other changes (`sql/schema`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRun:
    """A replay, with its approved selection and its present state."""

    replay_run_id: str
    name: str
    env: Environment
    state: ReplayState
    state_reason: str | None
    selection: Selection
    spec_sha256: str
    batches: int
    decision: Decision
    mismatches_seen: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        own = ("replay_run_id", "name", "env", "state", "state_reason", "spec_sha256", "batches")
        run = {name: getattr(self, name) for name in (*own, "created_at", "updated_at", "finished_at")}
        return json_row({**run, "mode": self.selection.spec.mode, **self.decision.row})


@unique
class UnitOutcome(StrEnum):
    """The outcome of a replay's unit, from the database's view `replay_outcomes`."""

    SELECTED = "selected"
    """The unit's batch is not admitted yet."""
    SKIPPED = "skipped"
    """The unit was not admitted."""
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    RETRYING = "retrying"
    """An attempt failed, and another attempt will follow."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """An attempt failed, and no other attempt will follow."""
    QUARANTINED = "quarantined"


OPEN = (UnitOutcome.SELECTED, UnitOutcome.PENDING, UnitOutcome.IN_PROGRESS, UnitOutcome.RETRYING)
"""Outcomes that are not final."""
BAD = (UnitOutcome.FAILED, UnitOutcome.QUARANTINED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Units of a replay by outcome; the numbers add up to the number of selected units."""

    outcomes: Mapping[UnitOutcome, int]
    skipped: Mapping[str, int]
    by_dataset: Mapping[str, Mapping[UnitOutcome, int]]

    @property
    def units(self) -> int:
        """Units of the selection."""
        return sum(self.outcomes.values())

    @property
    def open(self) -> int:
        """Units without a final outcome yet."""
        return sum(self.outcomes[outcome] for outcome in OPEN)

    @property
    def bad(self) -> int:
        """Admitted units that failed or are quarantined."""
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
    """A unit whose result differs from its earlier result, although no approval allows this."""

    wal_id: WalId
    dataset: str
    attempt: int
    at: datetime


def create(
    tx: Transaction,
    *,
    replay_run_id: str,
    selection: Selection,
    units: Sequence[Mapping[str, Any]],
    decision: Decision,
    at: datetime,
) -> None:
    """Record a replay with its frozen selection, and start it."""
    tx.run(
        "replay.create",
        decision.row,
        replay_run_id=replay_run_id,
        name=selection.metadata.name,
        mode=selection.spec.mode,
        env=selection.metadata.env,
        spec=selection.as_json(),
        spec_sha256=selection.sha256(),
        batches=units[-1]["batch"] if units else 0,
        at=at,
    )
    tx.run("replay.freeze", replay_run_id=replay_run_id, units=units)
    change_state(tx, replay_run_id, ReplayState.PLANNED, ReplayState.RUNNING, at=at)


def change_state(
    tx: Transaction,
    replay_run_id: str,
    from_state: ReplayState,
    to_state: ReplayState,
    *,
    at: datetime,
    state_reason: str | None = None,
    mismatches_seen: int | None = None,
) -> None:
    """Compare and swap a replay's state. Raises RefusedError, or the database's own error."""
    changed = tx.run(
        "replay.change_state",
        replay_run_id=replay_run_id,
        from_state=from_state,
        to_state=to_state,
        state_reason=state_reason,
        mismatches_seen=mismatches_seen,
        at=at,
        finished_at=at if to_state is ReplayState.FINISHED else None,
    ).one_or_none()
    if changed is None:
        raise RefusedError(
            "the replay is in another state",
            observed=f"{replay_run_id} is not {from_state}",
            next_step="kfm replay status",
        )


def record(
    log: GovernanceLog, action: GovernanceAction, run: ReplayRun, decision: Decision, tx: Transaction, **details: object
) -> None:
    """Log a decision about a replay; for a backfill, once for each dataset."""
    context = {"replay_run_id": run.replay_run_id, "spec_sha256": run.spec_sha256, "batches": run.batches, **details}
    for dataset in run.selection.spec.filters.datasets if run.selection.spec.mode is Mode.BACKFILL else [None]:
        log.record(action, decision, dataset=dataset, details=context, tx=tx)


def get(tx: Transaction, replay_run_id: str) -> ReplayRun:
    """Return a replay. Raises UnknownNameError."""
    row = tx.run("replay.run", replay_run_id=replay_run_id).mappings().one_or_none()
    if row is None:
        raise UnknownNameError("unknown replay", observed=replay_run_id, next_step="see the ids: kfm replay status")
    return _run(row)


def newest(tx: Transaction, *, limit: int, backfills: bool = False) -> list[ReplayRun]:
    """Return replays of records, or backfills, the newest first."""
    return [_run(row) for row in tx.run("replay.runs", limit=limit, backfills=backfills).mappings()]


def running(tx: Transaction) -> list[str]:
    """Return the ids of running replays, the oldest first."""
    return list(tx.run("replay.running").scalars())


def account(tx: Transaction, replay_run_id: str) -> Account:
    """Count a replay's units by outcome."""
    outcomes: Counter[UnitOutcome] = Counter(dict.fromkeys(UnitOutcome, 0))
    skipped: Counter[str] = Counter()
    by_dataset: dict[str, Counter[UnitOutcome]] = {}
    for row in tx.run("replay.account", replay_run_id=replay_run_id):
        outcome = UnitOutcome(row.outcome)
        outcomes[outcome] += row.units
        by_dataset.setdefault(row.dataset, Counter())[outcome] += row.units
        if row.skip_reason is not None:
            skipped[row.skip_reason] += row.units
    return Account(outcomes=outcomes, skipped=skipped, by_dataset=by_dataset)


def outcome_line(counts: Mapping[UnitOutcome, int], *, among: Iterable[UnitOutcome] = UnitOutcome) -> str:
    """Return the numbers of units by outcome as a line; outcomes without units are left out."""
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in among if counts.get(outcome)) or "no units"


def differing(tx: Transaction, replay_run_id: str) -> list[Differing]:
    """Return a replay's units whose result differs from the earlier result without approval."""
    return tx.rows(Differing, "replay.differing", replay_run_id=replay_run_id)


def _run(row: RowMapping) -> ReplayRun:
    # If this release cannot read the spec any more, the error names the replay by `source`.
    selection = selection_of(row["spec"], source=f"replay {row['replay_run_id']}")
    decision = Decision(actor=row["actor"], reason=row["reason"], change_ref=row["change_ref"])
    return value_of(ReplayRun, {**row, "selection": selection, "decision": decision})
