"""Work orders: replays and releases that a person starts, or proposes for approval (WSM-21).

Belongs here: starting a selection, releasing quarantined units, carrying out approved proposals. Does not belong here:
approvals (`governance/review.py`), batches (`replay/engine.py`), replays of runs (`ingest/run_replay.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import RecordMovedError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.review import Command, Proposal
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.plan import PlannedReplay
from kfm_dagster.recovery.replay.selection import Selection, selection_of
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A started replay, or a proposal for a second person; without ids when no unit matched."""

    plan: PlannedReplay
    proposal_id: int | None = None
    replay_run_id: str | None = None


def start(engine: ReplayEngine, selection: Selection, decision: Decision) -> Started:
    """Start a replay of records or a backfill of days; propose it where it needs a review.

    Records nothing for an empty selection. Raises GuardError when a guard refuses it.
    """
    decision = engine.attributed(selection, decision)
    plan = engine.plan(selection, change_ref=decision.change_ref)
    plan.refuse()
    if not plan.units and not plan.listings:
        return Started(plan=plan)
    review = engine.pipeline.ledger.review
    if plan.overrides:
        with engine.pipeline.database.transaction() as tx:
            if review.required(engine.pipeline.settings, decision, tx=tx):
                content = {"selection": selection.as_json()}
                proposal_id = review.propose(Command.REPLAY, decision, plan.overrides, content=content, tx=tx)
                return Started(plan=plan, proposal_id=proposal_id)
    return Started(plan=plan, replay_run_id=engine.start(selection, decision).replay_run_id)


def release(
    ledger: Ledger,
    seen: Mapping[WalId, int],
    *,
    settings: Settings,
    decision: Decision,
    replay_reason: str,
    tx: Transaction,
) -> int | None:
    """Requeue all quarantined units or none; under review, return the id of a proposal instead.

    Raises RecordMovedError for a unit that is no longer at the seen version, UnattributedDecisionError
    without a change reference, and UnknownReplayReasonError.
    """
    if ledger.review.required(settings, decision, tx=tx):
        ledger.check_reason(replay_reason, tx=tx)
        units = {GovernanceAction.RELEASE: seen}
        return ledger.review.propose(Command.RELEASE, decision, units, content={"replay_reason": replay_reason}, tx=tx)
    _release(ledger, seen, decision, replay_reason, tx)
    return None


def approve(engine: ReplayEngine, proposal_id: int, decision: Decision) -> tuple[Proposal, str | None]:
    """Approve a proposal and carry it out in one transaction; return it and its replay's id.

    Raises RefusedError, RecordMovedError for a unit that has changed since, and GuardError where a guard refuses the
    replay by now.
    """
    ledger = engine.pipeline.ledger
    review = ledger.review
    with ledger.database.transaction() as tx:
        proposal = review.approve(proposal_id, decision, tx=tx)
        units = review.units(proposal_id, tx=tx)
        replay_run_id = None
        if proposal.command is Command.RELEASE:
            versions = units[GovernanceAction.RELEASE]
            _release(ledger, versions, proposal.decision, proposal.content["replay_reason"], tx)
        elif proposal.command is Command.REPLAY:
            selection = selection_of(proposal.content["selection"], source=f"proposal {proposal_id}")
            replay_run_id = engine.start(selection, proposal.decision, approved=units, tx=tx).replay_run_id
    return proposal, replay_run_id


def _release(
    ledger: Ledger, seen: Mapping[WalId, int], decision: Decision, replay_reason: str, tx: Transaction
) -> None:
    released = ledger.override(
        seen,
        from_status=Status.QUARANTINED,
        action=GovernanceAction.RELEASE,
        decision=decision,
        replay_reason=replay_reason,
        tx=tx,
    )
    for wal_id in sorted(seen.keys() - released):
        raise RecordMovedError(wal_id, version=seen[wal_id])
