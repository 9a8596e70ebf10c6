"""Overrides of one database: carried out at once, or proposed where a second person approves them first (WSM-21).

Belongs here: releasing quarantined units, and carrying out what was approved; `starting.py` proposes replays, and
`ingest/run_replay.py` replays of runs. Does not belong here: who has approved what (`governance/review.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import RecordMovedError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.review import Command, Proposal, Units
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import selection_of
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedOut:
    """An approved proposal, and the replay that it started, if any."""

    proposal: Proposal
    units: Units
    replay_run_id: str | None = None


def release(
    ledger: Ledger,
    seen: Mapping[WalId, int],
    *,
    settings: Settings,
    decision: Decision,
    replay_reason: str,
    tx: Transaction,
) -> int | None:
    """Let quarantined units in again, all or none; where that is reviewed, propose it and return the proposal's id.

    Raises RecordMovedError for a unit that no longer stands at the version that was seen, UnattributedDecisionError
    without a change reference, and UnknownReplayReasonError.
    """
    if ledger.review.required(settings, decision, tx=tx):
        ledger.check_reason(replay_reason, tx=tx)
        units = {GovernanceAction.RELEASE: seen}
        return ledger.review.propose(Command.RELEASE, decision, units, content={"replay_reason": replay_reason}, tx=tx)
    _release(ledger, seen, decision, replay_reason, tx)
    return None


def approve(engine: ReplayEngine, proposal_id: int, decision: Decision) -> CarriedOut:
    """Approve a proposal and carry it out as its proposer's decision, both or neither.

    Raises ReviewError, RecordMovedError for a unit that has changed since, and GuardError for a replay that a guard
    refuses by now.
    """
    ledger = engine.pipeline.ledger
    review = ledger.review
    with ledger.database.transaction() as tx:
        proposal = review.approve(proposal_id, decision, tx=tx)
        units = review.units(proposal_id, tx=tx)
        replay_run_id = None
        if proposal.command is Command.RELEASE:
            seen = units[GovernanceAction.RELEASE]
            _release(ledger, seen, proposal.decision, proposal.content["replay_reason"], tx)
        elif proposal.command is Command.REPLAY:
            selection = selection_of(proposal.content["selection"], source=f"proposal {proposal_id}")
            replay_run_id = engine.start(selection, proposal.decision, approved=units, tx=tx).replay_run_id
    return CarriedOut(proposal=proposal, units=units, replay_run_id=replay_run_id)


def _release(
    ledger: Ledger, seen: Mapping[WalId, int], decision: Decision, replay_reason: str, tx: Transaction
) -> None:
    moved = ledger.override(
        seen,
        from_status=Status.QUARANTINED,
        action=GovernanceAction.RELEASE,
        decision=decision,
        replay_reason=replay_reason,
        tx=tx,
    )
    for wal_id in sorted(seen.keys() - moved):
        raise RecordMovedError(wal_id, version=seen[wal_id])
