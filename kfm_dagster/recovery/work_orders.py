"""Work orders: replays, releases and discards that a person starts or proposes (WSM-21).

A decision about quarantined units applies to all of them, at the versions that the person saw, or to none. A dry run of
discarding counts the units, and the decision covers these units only. Belongs here: starting a selection, the open
cases of quarantined units, releasing these units, carrying out approved proposals. Does not belong here: approvals
(`governance/review.py`), batches (`replay/engine.py`), replays of runs (`ingest/run_replay.py`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import IllegalTransitionError, RecordMovedError, RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.review import Command, Proposal
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.plan import PlannedReplay
from kfm_dagster.recovery.replay.selection import Selection, selection_of
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A started replay, or a proposal for a second person; both ids are None if no unit matched."""

    plan: PlannedReplay
    proposal_id: int | None = None
    replay_run_id: str | None = None


def start(engine: ReplayEngine, selection: Selection, decision: Decision) -> Started:
    """Start a replay of records or a backfill of days, or propose it if a review is required.

    Nothing is recorded if no unit and no day matches. Raises GuardError if a guard refuses the selection.
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
    """Requeue all units of `seen` or none; if a review is required, return the proposal's id.

    Raises RecordMovedError for a unit whose version is not the one in `seen` any more, UnattributedDecisionError
    without a change reference, and UnknownReplayReasonError.
    """
    if ledger.review.required(settings, decision, tx=tx):
        ledger.check_reason(replay_reason, tx=tx)
        units = {GovernanceAction.RELEASE: seen}
        return ledger.review.propose(Command.RELEASE, decision, units, content={"replay_reason": replay_reason}, tx=tx)
    _release(ledger, seen, decision, replay_reason, tx)
    return None


def approve(engine: ReplayEngine, proposal_id: int, decision: Decision) -> tuple[Proposal, str | None]:
    """Approve and carry out a proposal in one transaction; return proposal and replay id.

    Raises RefusedError, RecordMovedError for a unit changed since the proposal, GuardError if a guard refuses now.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscardPlan:
    """Units to discard: the named units with open cases, each with its version.

    `named` also counts the units that cannot be discarded, because they were discarded or released before.
    """

    named: int
    versions: Mapping[WalId, int]
    breakdown: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of these units by dataset and error code."""

    @property
    def seen(self) -> str:
        """Digest of a decision's units and versions."""
        lines = "".join(f"{wal_id} {version}\n" for wal_id, version in sorted(self.versions.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    def require_seen(self, seen: str) -> None:
        """Refuse a decision whose dry run had other units or versions. Raises RefusedError."""
        if seen != self.seen:
            raise RefusedError(
                "the units have changed since the dry run",
                observed=f"{len(self.versions)} units by now",
                next_step="repeat the dry run, then decide",
            )


def plan_discard(wal_ids: Sequence[str], *, tx: Transaction) -> DiscardPlan:
    """Return the plan of discarding the named units; change nothing."""
    rows = tx.run("evidence.discardable", wal_ids=sorted(set(wal_ids))).all()
    return DiscardPlan(
        named=len(set(wal_ids)),
        versions={WalId(row.wal_id): row.quarantined_version for row in rows},
        breakdown=dict(sorted(Counter((row.dataset, row.last_error_code or "") for row in rows).items())),
    )


def open_versions(
    cases: QuarantineCases,
    records: Sequence[NoddWalRecord],
    *,
    version: int | None,
    to_status: Status,
    tx: Transaction,
) -> dict[WalId, int]:
    """Return the versions of quarantined units whose cases are open.

    Raises RecordMovedError for a version other than `version`, IllegalTransitionError for a unit that is not
    quarantined, RefusedError for a discarded unit.
    """
    for record in records:
        if version is not None and record.version != version:
            raise RecordMovedError(record.wal_id, version=version, current=record.version)
        if record.status is not Status.QUARANTINED:
            raise IllegalTransitionError(
                wal_id=record.wal_id,
                from_status=record.status,
                to_status=to_status,
                expected="a unit of kfm units cases",
                why="the unit is not quarantined",
            )
        if cases.of(record.wal_id, tx=tx)[0].state is CaseState.DISCARDED:
            raise RefusedError(
                "the unit is discarded permanently",
                observed=record.wal_id,
                next_step=f"see the decision: kfm units evidence {record.wal_id}",
            )
    return {WalId(record.wal_id): record.version for record in records}
