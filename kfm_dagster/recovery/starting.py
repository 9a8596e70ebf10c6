"""Starting what a selection asks for: a replay of records, or a backfill of days. The command and the job both call it.

Nothing selected is an answer, and nothing is recorded of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.review import Command
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.plan import PlannedReplay
from kfm_dagster.recovery.replay.selection import Mode, Selection
from kfm_dagster.recovery.replay.units import datasets_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """What was started, or proposed where a second person approves it first; no id when nothing was selected."""

    plan: PlannedReplay
    proposal_id: int | None = None
    replay_run_id: str | None = None
    backfill_id: str | None = None


def start(engine: ReplayEngine, selection: Selection, decision: Decision) -> Started:
    """Start a selection. Raises GuardError when a guard refuses it."""
    decision = engine.attributed(selection, decision)
    plan = engine.plan(selection, change_ref=decision.change_ref)
    plan.refuse()
    if selection.spec.mode is Mode.BACKFILL:
        first, last = selection.days
        datasets = datasets_of(selection, engine.pipeline.registry)
        backfills = Backfills.of(engine.pipeline)
        begun = backfills.start(datasets=datasets, first_day=first, last_day=last, decision=decision)
        return Started(plan=plan, backfill_id=begun.backfill_id)
    if not plan.units:
        return Started(plan=plan)
    review = engine.pipeline.ledger.review
    if plan.overrides and review.required(engine.pipeline.settings, decision):
        content = {"selection": selection.as_json()}
        return Started(plan=plan, proposal_id=review.propose(Command.REPLAY, decision, plan.overrides, content=content))
    return Started(plan=plan, replay_run_id=engine.start(selection, decision).replay_run_id)
