"""Review: overrides in prod, or from the Dagster UI, need a second person (WSM-21, SEC-10).

A proposal is an entry of the governance log. It changes no unit. It names each unit with the version of its record that
the proposer saw. The decision on a proposal is another entry. The database refuses an override that needs review,
unless another actor has approved the same versions. The override changes these versions, so an approval is valid only
once. Does not belong here: executing an override (`recovery/work_orders.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import RefusedError
from kfm_dagster.governance.log import DAGSTER_UI, Decision, GovernanceAction, GovernanceLog
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.database import Database, Transaction

APPROVED_WITHIN = timedelta(days=7)
"""Time until a proposal expires: later, its reason may no longer hold. The trigger
governance_log_decides_on_a_proposal uses the same time."""

Units = Mapping[GovernanceAction, Mapping[WalId, int]]
"""Proposed units with their versions, by action."""


@unique
class Command(StrEnum):
    """Command that an approval executes."""

    RELEASE = "release"
    """Requeue quarantined units."""
    REPLAY = "replay"
    """Start a replay with succeeded or quarantined units in its selection."""
    RUN_REPLAY = "run_replay"
    """Execute nothing: after the approval, a person starts the replaying Dagster run again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A proposed override of `units` units; `content` has the command's other arguments."""

    proposal_id: int
    at: datetime
    decision: Decision
    command: Command
    units: int
    content: Mapping[str, Any]

    @property
    def expires_at(self) -> datetime:
        """Time when the proposal expires, so that it can no longer be approved."""
        return self.at + APPROVED_WITHIN


class OverrideReview:
    """Proposals of a deployment."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._log = GovernanceLog(database, clock=clock)
        self._clock = clock

    def work_in(self, settings: Settings) -> None:
        """In prod, mark the database permanently as a database of prod."""
        if settings.env is Environment.PROD:
            with self._database.transaction() as tx:
                self._is_prod(settings, tx)

    def required(self, settings: Settings, decision: Decision, *, tx: Transaction) -> bool:
        """Return whether an override waits for a second person.

        It waits if the settings are of prod, if the database is of prod, or if the Dagster UI made the decision.
        """
        return self._is_prod(settings, tx) or _same(decision.actor, DAGSTER_UI)

    def propose(
        self,
        command: Command,
        decision: Decision,
        units: Units,
        *,
        content: Mapping[str, Any] | None = None,
        tx: Transaction,
    ) -> int:
        """Propose an override; return the proposal's id. Raises UnattributedDecisionError."""
        decision.require_change_ref()
        batch = [
            {"wal_id": wal_id, "version": version, "action": action}
            for action, versions in units.items()
            for wal_id, version in versions.items()
        ]
        details = {**(content or {}), "command": command, "units": len(batch)}
        proposal_id = self._log.record(GovernanceAction.OVERRIDE_PROPOSED, decision, details=details, tx=tx)
        tx.run("governance.propose_units", proposal_id=proposal_id, batch=batch)
        return proposal_id

    def waiting(self, *, tx: Transaction) -> list[Proposal]:
        """Return the proposals that can be approved, the newest first."""
        proposals = [_proposal(row) for row in tx.run("governance.proposals", proposal_id=None)]
        return [proposal for proposal in proposals if proposal.expires_at > self._clock()]

    def units(self, proposal_id: int, *, tx: Transaction) -> Units:
        """Return a proposal's units with their versions, by action."""
        versions: dict[GovernanceAction, dict[WalId, int]] = {}
        for row in tx.run("governance.proposed_units", proposal_id=proposal_id):
            versions.setdefault(GovernanceAction(row.action), {})[WalId(row.wal_id)] = row.version
        return versions

    def unapproved(
        self, versions: Mapping[WalId, int], action: GovernanceAction, *, actor: str, tx: Transaction
    ) -> frozenset[WalId]:
        """Return the units whose versions have no approval for this actor and action."""
        batch = [{"wal_id": wal_id, "version": version} for wal_id, version in versions.items()]
        rows = tx.run("governance.unapproved", batch=batch, action=action, actor=actor)
        return frozenset(WalId(row.wal_id) for row in rows)

    def approve(self, proposal_id: int, decision: Decision, *, tx: Transaction) -> Proposal:
        """Approve a proposal; the caller must execute its command in the same transaction.

        Raises RefusedError for an unknown, expired or decided proposal, and if the proposer approves it.
        """
        proposal = self._open(proposal_id, tx)
        if _same(proposal.decision.actor, decision.actor):
            raise RefusedError(
                "a proposal cannot be approved by its proposer",
                observed=f"proposal {proposal_id} by {proposal.decision.actor}, approved by {decision.actor}",
                expected="two actors",
                next_step=f"let another person approve it, or kfm governance withdraw {proposal_id}",
            )
        if self._clock() >= proposal.expires_at:
            raise RefusedError(
                "the proposal has expired",
                observed=f"proposal {proposal_id} of {rfc3339(proposal.at)}",
                expected=f"an approval before {rfc3339(proposal.expires_at)}",
                next_step="propose it again",
            )
        self._decide(GovernanceAction.OVERRIDE_APPROVED, proposal, decision, tx)
        return proposal

    def withdraw(self, proposal_id: int, decision: Decision, *, tx: Transaction) -> Proposal:
        """Close a proposal without executing it; every actor is allowed to. Raises RefusedError."""
        proposal = self._open(proposal_id, tx)
        self._decide(GovernanceAction.OVERRIDE_WITHDRAWN, proposal, decision, tx)
        return proposal

    def _is_prod(self, settings: Settings, tx: Transaction) -> bool:
        """Return whether database or settings are of prod; settings of prod mark the database."""
        if Environment.PROD in tx.run("deployment.values", fact="environment").scalars().all():
            return True
        if settings.env is not Environment.PROD:
            return False
        row = {"value": settings.env, "at": self._clock(), "actor": settings.worker_id}
        tx.run("deployment.add", fact="environment", reason="processes of this environment work here", **row)
        return True

    def _open(self, proposal_id: int, tx: Transaction) -> Proposal:
        tx.lock("kfm_dagster.review")
        row = tx.run("governance.proposals", proposal_id=proposal_id).one_or_none()
        if row is None:
            raise RefusedError(
                "unknown proposal", observed=proposal_id, next_step="see the open proposals: kfm governance pending"
            )
        if row.decision is not None:
            raise RefusedError(
                "the proposal was decided already",
                observed=f"{row.decision} by {row.decided_by} at {rfc3339(row.decided_at)}",
                expected="an open proposal",
                next_step="propose the override again if it is still needed",
            )
        return _proposal(row)

    def _decide(self, action: GovernanceAction, proposal: Proposal, decision: Decision, tx: Transaction) -> None:
        details = {"command": proposal.command, "proposed_by": proposal.decision.actor, "units": proposal.units}
        self._log.record(action, decision, details=details, proposal_id=proposal.proposal_id, tx=tx)


def _same(actor: str, other: str) -> bool:
    return actor.strip().casefold() == other.strip().casefold()


def _proposal(row: Any) -> Proposal:
    content = dict(row.details)
    return Proposal(
        proposal_id=row.entry_id,
        at=row.at,
        decision=Decision(
            actor=row.actor,
            reason=row.reason,
            change_ref=row.change_ref,
            dagster_run_id=content.pop("dagster_run_id", None),
        ),
        command=Command(content.pop("command")),
        units=content.pop("units"),
        content=content,
    )
