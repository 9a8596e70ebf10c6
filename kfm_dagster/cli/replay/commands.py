"""`kfm replay`, also `nodd-replay`: repeat units by making their records pending again.

Exit codes: 0 done, 2 wrong usage or an invalid selection, 3 refused by a guard, 4 finished with failures, 5 a
dependency is unavailable, 6 waits for a second person.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import click
import yaml
from rich.console import Console

from kfm_dagster.cli.completion import DATASET, REPLAY
from kfm_dagster.cli.decision_options import (
    actor_option,
    change_ref_option,
    confirm_option,
    decision_of,
    decision_options,
    proposed_line,
    require_confirmation,
)
from kfm_dagster.cli.files import NewFile
from kfm_dagster.cli.filter_options import require_dataset
from kfm_dagster.cli.progress_bar import bar_of
from kfm_dagster.cli.replay.inspect import MOST_ROWS, compare, inspect
from kfm_dagster.cli.replay.interface import (
    SelectionOptions,
    Shell,
    everywhere,
    global_options,
    nothing_selected,
    selecting,
    show,
    show_plan,
    show_report,
    starting,
)
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import ids_option, show_rows
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.governance.log import Decision
from kfm_dagster.plural import counted
from kfm_dagster.recovery.intents import IntentAction, IntentPlan, IntentRecovery
from kfm_dagster.recovery.replay.engine import ReplayEngine, Report
from kfm_dagster.recovery.replay.runs import OPEN, ReplayRun, ReplayState, outcome_line
from kfm_dagster.recovery.replay.selection import Selection, load_selection, selection_from
from kfm_dagster.recovery.work_orders import Started, start
from kfm_dagster.stages.failure import StageFailedError

POLL_SECONDS = 1.0
IDLE_SECONDS = 30.0
"""Time without a change before the warning: a daemon takes about ten seconds to start a run."""
RUN_COLUMNS = ("replay_run_id", "name", "mode", "state", "created_at", "actor", "reason")
INTENT_COLUMNS = ("intent", "node", "started_at", "action", "units", "why")
DONE_AT_ONCE = frozenset({IntentAction.CLOSE, IntentAction.ENTER, IntentAction.RUN})
Change: TypeAlias = Callable[[ReplayEngine, str, Decision], ReplayRun]
MOST_UNITS = 10_000
"""Maximum number of units of failed intents in a selection; the next call takes the remaining units."""


@click.group()
@global_options
def replay() -> None:
    """Ingest known units again: select, dry-run, run, watch.

    Example: kfm replay status
    """


@replay.command()
@selecting
@click.option("--save", type=NewFile(edited=True), help="Write the selection to this new YAML file.")
@everywhere
def select(*, shell: Shell, options: SelectionOptions, save: Path | None) -> None:
    """Count a selection's records by dataset, status and error; show examples. Changes nothing.

    Example: kfm replay select --dataset goes-abi --status failed --event-time-start 2025-12-04 --save incident.yaml
    """
    selection = options.selection(shell.settings)
    with _engine(shell) as engine:
        plan = engine.plan(selection)
    if save is not None:
        save.write_text(yaml.safe_dump(selection.brief(), sort_keys=False), encoding="utf-8")
    show_plan(plan, output=shell.output)


@replay.command("dry-run")
@selecting
@click.option("--change-ref", help="Change or incident reference of the approval.")
@everywhere
def dry_run(*, shell: Shell, options: SelectionOptions, change_ref: str | None) -> None:
    """Show the batches that a run would admit, and the guards that would refuse it.

    Example: kfm replay dry-run --selection-file incident.yaml
    """
    _dry_run(shell, options.selection(shell.settings), change_ref)


@replay.command()
@selecting
@starting
@everywhere
def run(*, shell: Shell, options: SelectionOptions, **how: Any) -> ExitCode:
    """Start a replay and follow it until it has ended; Ctrl-C leaves it running.

    Example: kfm replay run --selection-file incident.yaml --reason "reader fixed" --change-ref INC-1 --confirm
    """
    selection = options.selection(shell.settings)
    if selection.spec.options.dry_run:
        raise ConfigurationError(
            "the selection is for a dry run only",
            observed="options.dry_run true",
            expected="false",
            next_step="kfm replay dry-run, or change the file",
        )
    return _run(shell, selection, **how)


@replay.command("from-spec")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", "dry", is_flag=True, help="Only show the plan, as with options.dry_run in the file.")
@starting
@everywhere
def from_spec(*, shell: Shell, file: Path, dry: bool, **how: Any) -> ExitCode:
    """Run or dry-run a selection file.

    Example: kfm replay from-spec incident.yaml --dry-run
    """
    selection = load_selection(file)
    if dry or selection.spec.options.dry_run:
        return _dry_run(shell, selection, how["change_ref"])
    return _run(shell, selection, **how)


@replay.command()
@click.argument("replay_run_id", type=REPLAY, required=False)
@ids_option
@everywhere
def status(*, shell: Shell, replay_run_id: str | None, ids: bool) -> None:
    """Show the progress of a replay, or list the newest replays.

    Example: kfm replay status --output json
    """
    if ids and (replay_run_id is not None or shell.output != "table"):
        raise click.UsageError("--ids lists the replays: leave out the id, --json and --output")
    ids_of = "replay_run_id" if ids else None
    with _engine(shell, read_only=True) as engine:
        if replay_run_id is None:
            rows = [run.as_json() for run in engine.newest()]
            show(rows, output=shell.output, as_table=lambda: show_rows(rows, RUN_COLUMNS, ids_of=ids_of))
        else:
            replay_run_id = REPLAY.whole_in(engine.pipeline.database, replay_run_id)
            show_report(engine.report(replay_run_id), output=shell.output)


@replay.command()
@click.argument("replay_run_id", type=REPLAY)
@decision_options
@everywhere
def pause(*, shell: Shell, replay_run_id: str, **decided: Any) -> None:
    """Admit no more units until the replay is resumed; admitted units continue.

    Example: kfm replay pause 3b0e6c1e-5d7a-4c11-9a40-7f3e1d2c4b5a --reason "the archive is slow"
    """
    _change(shell, replay_run_id, ReplayEngine.pause, decided)


@replay.command()
@click.argument("replay_run_id", type=REPLAY)
@decision_options
@everywhere
def resume(*, shell: Shell, replay_run_id: str, **decided: Any) -> None:
    """Resume a paused or stopped replay; results that differed before do not stop it again.

    Example: kfm replay resume 3b0e6c1e-5d7a-4c11-9a40-7f3e1d2c4b5a --reason "the archive is back"
    """
    _change(shell, replay_run_id, ReplayEngine.resume, decided)


@replay.command()
@click.argument("replay_run_id", type=REPLAY)
@decision_options
@everywhere
def stop(*, shell: Shell, replay_run_id: str, **decided: Any) -> None:
    """End a replay: no more units are admitted; admitted units continue.

    Example: kfm replay stop 3b0e6c1e-5d7a-4c11-9a40-7f3e1d2c4b5a --reason "wrong dataset"
    """
    _change(shell, replay_run_id, ReplayEngine.stop, decided)


@replay.command()
@click.option("--dataset", type=DATASET, help="Only intents of this dataset.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, MOST_ROWS), help="Maximum number of intents."
)
@click.option("--dry-run", "dry", is_flag=True, help="Only show the action for each intent.")
@click.option("--reason", help="Reason, recorded in the governance log; needed if units are retried.")
@change_ref_option
@actor_option
@confirm_option
@everywhere
def intents(*, shell: Shell, dataset: str | None, limit: int, dry: bool, confirm: bool, **decided: Any) -> ExitCode:
    """Complete the intents of failed runs, except if a later run has done their work.

    Example: kfm replay intents --dry-run
    """
    require_dataset(dataset)
    with _engine(shell, read_only=dry) as engine:
        recovery = IntentRecovery(pipeline=engine.pipeline)
        plans = list(islice(recovery.plans(dataset=dataset), limit))
        units = sorted({wal_id for plan in plans for wal_id in plan.units})[:MOST_UNITS]
        ready = [plan for plan in plans if plan.action in DONE_AT_ONCE]
        if not dry and (units or ready):
            if units:
                selection = selection_from(shell.settings.env, "the intents", name="failed intents", wal_ids=units)
                # Before any change, so that a guard's refusal leaves everything unchanged.
                engine.plan(selection, change_ref=decided["change_ref"]).refuse()
                if not decided["reason"]:
                    raise click.UsageError("retrying units needs a --reason")
            require_confirmation(
                f"replay {counted(len(ready), 'intent')}, and {counted(len(units), 'unit')}?", confirmed=confirm
            )
            plans = [_carried_out(recovery, plan) if plan in ready else plan for plan in plans]
            if units:
                started = start(engine, selection, decision_of(shell.settings, **decided))
                why = f"replay {started.replay_run_id} requeues the units"
                plans = [replace(plan, why=why) if plan.units else plan for plan in plans]
    rows = [plan.as_json() for plan in plans]
    show(rows, output=shell.output, as_table=lambda: show_rows(rows, INTENT_COLUMNS))
    return ExitCode.FINISHED_WITH_FAILURES if any(plan.failed for plan in plans) else ExitCode.DONE


for command in (compare, inspect):
    replay.add_command(command)


@contextmanager
def _engine(shell: Shell, *, read_only: bool = False) -> Iterator[ReplayEngine]:
    with opened_pipeline(shell.settings, read_only=read_only) as pipeline:
        yield ReplayEngine(pipeline=pipeline)


def _change(shell: Shell, replay_run_id: str, change: Change, decided: dict[str, Any]) -> None:
    decision = decision_of(shell.settings, **decided)
    with _engine(shell) as engine:
        replay_run_id = REPLAY.whole_in(engine.pipeline.database, replay_run_id)
        change(engine, replay_run_id, decision)
        show_report(engine.report(replay_run_id), output=shell.output)


def _dry_run(shell: Shell, selection: Selection, change_ref: str | None) -> ExitCode:
    with _engine(shell, read_only=True) as engine:
        plan = engine.plan(selection, change_ref=change_ref)
    show_plan(plan, output=shell.output)
    plan.refuse()
    return ExitCode.DONE


def _run(
    shell: Shell,
    selection: Selection,
    *,
    actor: str | None,
    reason: str | None,
    change_ref: str | None,
    confirm: bool,
    detach: bool,
) -> ExitCode:
    with _engine(shell) as engine:
        plan = engine.plan(selection, change_ref=change_ref)
        plan.refuse()
        if not (why := reason or selection.metadata.description):
            raise click.UsageError("a reason is missing: --reason, or metadata.description of the selection")
        decision = decision_of(shell.settings, actor=actor, reason=why, change_ref=change_ref or selection.change_ref)
        if plan.units or plan.listings:
            what = counted(len(plan.units), "record") if plan.units else f"{counted(plan.listings, 'day')} of datasets"
            require_confirmation(f"repeat {what} ({selection.spec.mode})?", confirmed=confirm)
        started = start(engine, selection, decision)
        if started.replay_run_id is None or plan.listings:
            units = len(started.plan.units)
            ids = {"replay_run_id": started.replay_run_id, "proposal_id": started.proposal_id, "units": units}
            show(ids, output=shell.output, as_table=lambda: click.echo(_line(started)))
            return ExitCode.DONE if started.proposal_id is None else ExitCode.WAITS_FOR_APPROVAL
        console = Console(stderr=True)
        console.print(
            f"replay {started.replay_run_id} runs: {counted(len(started.plan.units), 'unit')}", soft_wrap=True
        )
        if detach:
            show_report(engine.report(started.replay_run_id), output=shell.output)
            return ExitCode.DONE
        report = follow(engine, started.replay_run_id, console=console)
    show_report(report, output=shell.output)
    ended_well = report.run.state is ReplayState.FINISHED and not report.account.bad and not report.differing
    return ExitCode.DONE if ended_well else ExitCode.FINISHED_WITH_FAILURES


def _line(started: Started) -> str:
    if started.proposal_id is not None:
        return proposed_line(started.proposal_id, len(started.plan.units))
    if started.replay_run_id is None:
        return nothing_selected(started.plan)
    return f"backfill {started.replay_run_id} runs: {counted(started.plan.listings, 'day')} of datasets to list"


def follow(
    engine: ReplayEngine,
    replay_run_id: str,
    *,
    console: Console,
    idle_seconds: float = IDLE_SECONDS,
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Report:
    """Advance and follow a replay until it is finished or stopped; return its last report.

    Warns once if there is no progress. Ctrl-C ends this command, not the replay.
    """
    bar = bar_of(console, "units", "{task.fields[waiting]}")
    task = bar.add_task("replaying", total=None, waiting="")
    previous: object = None
    since, warned = now(), False
    try:
        with bar:
            while True:
                engine.advance(replay_run_id)
                report = engine.report(replay_run_id)
                account = report.account
                bar.update(task, total=account.units, completed=account.units - account.open, waiting=_waiting(report))
                if report.ended:
                    return report
                current = (report.run.state, dict(account.outcomes))
                if current != previous:
                    previous, since = current, now()
                elif not warned and now() - since >= idle_seconds:
                    console.print(_reason_for_no_progress(report), soft_wrap=True)
                    warned = True
                wait(POLL_SECONDS)
    except KeyboardInterrupt:
        console.print(
            f"the replay continues without this terminal; kfm replay status {replay_run_id} shows it, "
            f'kfm replay stop {replay_run_id} --reason "..." ends it',
            soft_wrap=True,
        )
        raise


def _waiting(report: Report) -> str:
    if report.run.state is ReplayState.PAUSED:
        return f"paused: {report.run.state_reason}"
    return str(report.hold) if report.hold else outcome_line(report.account.outcomes, among=OPEN)


def _reason_for_no_progress(report: Report) -> str:
    if report.run.state is ReplayState.PAUSED:
        return f"the replay is paused ({report.run.state_reason}); next: kfm replay resume {report.run.replay_run_id}"
    if report.hold is not None:
        return f"no units are admitted: {report.hold}"
    return "no progress: no daemon seems to work on this ledger; start kfm drain or kfm ui"


def _carried_out(recovery: IntentRecovery, plan: IntentPlan) -> IntentPlan:
    try:
        return recovery.carry_out(plan)
    except StageFailedError as error:
        return replace(plan, why=str(error), failed=True)
