"""The governance log: action, actor, time, reason and change of each decision (SEC-02).

Append-only; the database refuses to change or delete an entry. Belongs here: writing and reading entries. Does not
belong here: executing a decision, which `ledger/` and `recovery/` do in the transaction that logs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.errors import KfmError
from kfm_dagster.settings import Environment
from kfm_dagster.storage.database import Database, Transaction

DAGSTER_UI = "dagster-ui"
"""Actor of work started in the Dagster UI, which has no users' names; the database's schema repeats this text."""


class UnattributedDecisionError(KfmError):
    """A decision needs an actor, a reason and, for an override, a change reference."""


@unique
class GovernanceAction(StrEnum):
    """Action by a person, by a replay or rule in a person's name, or by the ledger's policy."""

    QUARANTINE = "quarantine"
    """Took units out of automatic flows. If the ledger does this, the database itself writes the entry."""
    RELEASE = "release"
    """Requeued quarantined units."""
    DISCARD = "discard"
    """Closed the case of a quarantined unit; the unit is then excluded permanently."""
    REPAIR_AND_REPLACE = "repair_and_replace"
    """Requeued succeeded units; another result than before is allowed."""
    REPEAT = "repeat"
    """Requeued succeeded units; their result must be the same."""
    KILL_SWITCH_ON = "kill_switch_on"
    KILL_SWITCH_OFF = "kill_switch_off"
    REPLAY_STARTED = "replay_started"
    REPLAY_PAUSED = "replay_paused"
    REPLAY_RESUMED = "replay_resumed"
    REPLAY_STOPPED = "replay_stopped"
    REPLAY_FINISHED = "replay_finished"
    REPLAY_MISMATCH = "replay_mismatch"
    """A replay's result differs from the previous success, and no approval allows this."""
    DLQ_DRAIN = "dlq_drain"
    DLQ_REDRIVE = "dlq_redrive"
    DLQ_DISCARD = "dlq_discard"
    RECONCILED = "reconciled"
    """Ingested objects that a bucket had and the ledger lacked."""
    MASK = "mask"
    """Published data with generalised locations, as the dataset's steward requested."""
    RETENTION = "retention"
    """Deleted old, unneeded data by the policy of retention.yaml."""
    ALERT_ACKNOWLEDGED = "alert_acknowledged"
    """Acknowledged an alert."""
    OVERRIDE_PROPOSED = "override_proposed"
    """Proposed that units leave a terminal state; a second person has to approve it."""
    OVERRIDE_APPROVED = "override_approved"
    OVERRIDE_WITHDRAWN = "override_withdrawn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A decision's actor, reason, and change or incident.

    Raises UnattributedDecisionError for an empty part and for a part that is too long. `dagster_run_id` is the Dagster
    run that executes a decision of the Dagster UI.
    """

    actor: str
    reason: str
    change_ref: str | None = None
    dagster_run_id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, value, longest in (
            ("actor", self.actor, 200),
            ("reason", self.reason, 1000),
            ("change reference", self.change_ref, 200),
        ):
            if value is not None and not 1 <= len(value.strip()) <= longest:
                raise UnattributedDecisionError(
                    f"the {name} is missing or too long",
                    observed=f"{len(value)} characters",
                    expected=f"1 to {longest}",
                    next_step="give the actor, the reason and the change (--actor, --reason, --change-ref)",
                )

    @property
    def row(self) -> dict[str, Any]:
        """The columns of a decision."""
        return {"actor": self.actor, "reason": self.reason, "change_ref": self.change_ref}

    @property
    def details(self) -> dict[str, str]:
        """The members that the decision adds to the details of its entry."""
        return {"dagster_run_id": self.dagster_run_id} if self.dagster_run_id else {}

    def require_change_ref(self) -> None:
        """Refuse a decision without a change reference. Raises UnattributedDecisionError."""
        if self.change_ref is None:
            raise UnattributedDecisionError(
                "the decision needs a change reference",
                observed="none",
                expected="the change or incident that approves it",
                next_step="give a change reference (--change-ref)",
            )


def decision_in(env: Environment, *, actor: str, reason: str, change_ref: str | None) -> Decision:
    """Return a decision; prod needs a change reference. Raises UnattributedDecisionError."""
    decision = Decision(actor=actor, reason=reason, change_ref=change_ref)
    if env is Environment.PROD:
        decision.require_change_ref()
    return decision


@dataclass(frozen=True, kw_only=True, slots=True)
class GovernanceEntry:
    """An entry. If it allows a transition, it has the record's version and both statuses.

    `proposal_id` is the entry that proposed the decision, `approved_by` the actor who approved the proposal.
    """

    entry_id: int
    at: datetime
    actor: str
    action: str
    dataset: str | None
    wal_id: str | None
    record_version: int | None
    from_status: str | None
    to_status: str | None
    reason: str
    change_ref: str | None
    details: Mapping[str, Any] = field(default_factory=dict)
    proposal_id: int | None = None
    approved_by: str | None = None

    change: str | None = field(init=False)
    """The transition that the entry allows, or the end of the kill switch that it turns on; None for other entries."""

    def __post_init__(self) -> None:
        change = None
        if self.record_version is not None:
            change = f"{self.from_status} > {self.to_status} (version {self.record_version})"
        elif self.action == GovernanceAction.KILL_SWITCH_ON:
            change = f"until {self.details.get('expires_at') or 'it is released'}"
        object.__setattr__(self, "change", change)


class GovernanceLog:
    """Writes and reads entries."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def record(
        self,
        action: GovernanceAction,
        decision: Decision,
        *,
        dataset: str | None = None,
        wal_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        proposal_id: int | None = None,
        tx: Transaction,
    ) -> int:
        """Write an entry that allows no transition of a record; return the entry's id."""
        entry = {
            **decision.row,
            "action": action,
            "dataset": dataset,
            "wal_id": wal_id,
            "details": {**(details or {}), **decision.details},
            "proposal_id": proposal_id,
        }
        (entry_id,) = self.record_many([entry], tx=tx)
        return entry_id

    def record_many(self, entries: Iterable[Mapping[str, Any]], *, tx: Transaction) -> list[int]:
        """Write entries in one statement, one row for each; return their ids."""
        batch = [dict(entry) for entry in entries]
        if not batch:
            return []
        rows = tx.run("governance.record", batch=batch, at=self._clock())
        return [row.entry_id for row in rows]

    def holds(self, action: GovernanceAction, *, dataset: str, run_id: str, tx: Transaction) -> bool:
        """Return whether an entry of this action and dataset names the run in its details."""
        entry = tx.run("governance.of_run", action=action, dataset=dataset, run_id=run_id).one_or_none()
        return entry is not None

    def entries(
        self,
        *,
        action: GovernanceAction | None = None,
        dataset: str | None = None,
        wal_id: str | None = None,
        limit: int = 100,
        tx: Transaction,
    ) -> list[GovernanceEntry]:
        """Return the newest entries, newest first."""
        return tx.rows(
            GovernanceEntry, "governance.entries", action=action, dataset=dataset, wal_id=wal_id, limit=limit
        )
