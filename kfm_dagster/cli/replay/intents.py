"""`kfm replay intents`: carry out intents of failed runs that no later run has applied."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET
from kfm_dagster.cli.decision_options import (
    actor_option,
    change_ref_option,
    confirm_option,
    decision_of,
    require_confirmation,
)
from kfm_dagster.cli.replay.inspect import MOST_ROWS
from kfm_dagster.cli.replay.options import Shell, everywhere
from kfm_dagster.cli.replay.output import show
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.errors import ExitCode
from kfm_dagster.recovery.intents import IntentAction, IntentPlan, IntentRecovery
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import selection_from
from kfm_dagster.recovery.work_orders import start
from kfm_dagster.stages.failure import StageFailedError

COLUMNS = ("intent", "node", "started_at", "action", "units", "why")
DONE_AT_ONCE = frozenset({IntentAction.CLOSE, IntentAction.ENTER, IntentAction.RUN})
MOST_UNITS = 10_000
"""Units of one selection; the next call admits the rest."""


@click.command()
@click.option("--dataset", type=DATASET, help="Only this dataset's.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, MOST_ROWS), help="The first so many.")
@click.option("--dry-run", "dry", is_flag=True, help="Only say what would be done with each.")
@click.option("--reason", help="Why, for readers of the governance log; needed where units are let in again.")
@change_ref_option
@actor_option
@confirm_option
@everywhere
def intents(*, shell: Shell, dataset: str | None, limit: int, dry: bool, confirm: bool, **decided: Any) -> ExitCode:
    """Carry out what failed runs intended and no later run has done, from each intent's payload, through the ledger.

    Example: kfm replay intents --dry-run
    """
    with opened_pipeline(shell.settings, read_only=dry) as pipeline:
        plans = list(islice(IntentRecovery(pipeline=pipeline).plans(dataset=dataset), limit))
        units = sorted({wal_id for plan in plans for wal_id in plan.units})[:MOST_UNITS]
        ready = [plan for plan in plans if plan.action in DONE_AT_ONCE]
        if not dry and (units or ready):
            engine = ReplayEngine(pipeline=pipeline)
            if units:
                selection = selection_from(shell.settings.env, "the intents", name="failed intents", wal_ids=units)
                # Before any change, so that a guard's refusal leaves all as it is.
                engine.plan(selection, change_ref=decided["change_ref"]).refuse()
                if not decided["reason"]:
                    raise click.UsageError("say why units are let in again: --reason")
            require_confirmation(f"replay {len(ready)} intents, and {len(units)} units?", confirmed=confirm)
            plans = [_carried_out(IntentRecovery(pipeline=pipeline), plan) if plan in ready else plan for plan in plans]
            if units:
                started = start(engine, selection, decision_of(shell.settings, **decided))
                why = f"replay {started.replay_run_id} lets them in"
                plans = [replace(plan, why=why) if plan.units else plan for plan in plans]
    rows = [plan.as_json() for plan in plans]
    show(rows, output=shell.output, as_table=lambda: show_rows(rows, COLUMNS))
    return ExitCode.FINISHED_WITH_FAILURES if any(plan.failed for plan in plans) else ExitCode.DONE


def _carried_out(replay: IntentRecovery, plan: IntentPlan) -> IntentPlan:
    try:
        return replay.carry_out(plan)
    except StageFailedError as error:
        return replace(plan, why=str(error), failed=True)
