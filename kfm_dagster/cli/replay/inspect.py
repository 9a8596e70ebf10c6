"""`kfm replay inspect` and `compare`: units, records, and results that differ. Only reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET, REPLAY, RUN
from kfm_dagster.cli.replay.interface import SelectionOptions, Shell, everywhere, selecting, show
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_rows, show_section
from kfm_dagster.deployment.explained_runs import explanations
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.nodes import MessageParse
from kfm_dagster.ingest.run_replay import RunReplayRefusedError, compare_run
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.recovery.replay import runs
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.views.view import json_row

UNIT_FIELDS = ("position", "batch", "outcome", "skip_reason", "wal_id", "dataset", "last_error_code", "object_uri")
RECORD_FIELDS = ("wal_id", "dataset", "status", "attempts", "last_error_code", "event_time", "object_uri")
MISMATCH_FIELDS = ("wal_id", "dataset", "attempt", "earlier_attempt", "at", "replay_run_id", "permitted")
COMPARED_FIELDS = ("stage", "units", "keys_differing", "results_differing", "first", "diverges")
MOST_ROWS = 100_000


@click.command()
@click.argument("replay_run_id", type=REPLAY, required=False)
@selecting
@click.option("--fields", help="Fields to show, separated by commas.")
@click.option("--rows", default=50, show_default=True, type=click.IntRange(1, MOST_ROWS), help="Number of rows.")
@click.option("--mismatches", is_flag=True, help="Show the results that differ from an earlier success.")
@everywhere
def inspect(
    *,
    shell: Shell,
    replay_run_id: str | None,
    options: SelectionOptions,
    fields: str | None,
    rows: int,
    mismatches: bool,
) -> None:
    """Show the units of a replay, the records of a selection, or the results that differ.

    Example: kfm replay inspect 3b0e6c1e-5d7a-4c11-9a40-7f3e1d2c4b5a --fields wal_id,outcome,last_error_code
    """
    if options.names and (mismatches or replay_run_id is not None):
        raise click.UsageError(f"{options.names} selects records; leave out the replay's id and --mismatches")
    with opened_pipeline(shell.settings, read_only=True) as pipeline:
        engine = ReplayEngine(pipeline=pipeline)
        units: Sequence[Any]
        available: Sequence[str] = MISMATCH_FIELDS
        default: Sequence[str] = MISMATCH_FIELDS
        if replay_run_id is not None:
            replay_run_id = REPLAY.whole_in(pipeline.database, replay_run_id)
        if mismatches:
            units = _mismatches(engine, replay_run_id, rows)
        elif replay_run_id is not None:
            with pipeline.database.snapshot() as view:
                _ = runs.get(view, replay_run_id)
                units = view.run("replay.outcomes", replay_run_id=replay_run_id, limit=rows).mappings().all()
            available, default = list(json_row(units[0])) if units else UNIT_FIELDS, UNIT_FIELDS
        else:
            planned = engine.plan(options.selection(shell.settings)).units[:rows]
            with pipeline.database.snapshot() as tx:
                records = [pipeline.ledger.get(unit.wal_id, tx=tx) for unit in planned]
            units = [record for record in records if record is not None]
            available, default = tuple(NoddWalRecord.model_fields), RECORD_FIELDS
    names = _chosen(fields, available) or default
    selected = [{name: row.get(name) for name in names} for row in map(json_row, units)]
    show(selected, output=shell.output, as_table=lambda: show_rows(selected, names))


def _mismatches(engine: ReplayEngine, replay_run_id: str | None, rows: int) -> Sequence[object]:
    """Return results that differ, newest first: all, or the unpermitted results of a replay."""
    ledger = engine.pipeline.ledger
    if replay_run_id is None:
        return ledger.mismatches(limit=rows)
    differing = {(unit.wal_id, unit.attempt) for unit in engine.report(replay_run_id).differing}
    return [unit for unit in ledger.mismatches(limit=MOST_ROWS) if (unit.wal_id, unit.attempt) in differing][:rows]


def _chosen(fields: str | None, known: Sequence[str]) -> Sequence[str]:
    """Return the names in `fields`. Raises click.BadParameter for a field that the rows lack."""
    names = [part.strip() for part in (fields or "").split(",") if part.strip()]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{', '.join(unknown)}; known are {', '.join(known)}", param_hint="--fields")
    return names


@click.command()
@click.argument("run", type=RUN, metavar="RUN")
@click.option("--dataset", type=DATASET, help="Only this dataset of the run.")
@everywhere
def compare(*, shell: Shell, run: str, dataset: str | None) -> ExitCode:
    """Repeat a run's stages from their checkpoints, the last stage first; compare the results.

    Changes nothing. Exit code 4 if results differ. RUN is named as for kfm runs show: by its id, by at least the first
    8 characters of the id, or by `latest`.

    Example: kfm replay compare 6f9b2f0e-2f64-4c43-9a51-6a1f3a0e9c55
    """
    with opened_pipeline(shell.settings, read_only=True) as pipeline:
        states = looked_up_states(pipeline.database, shell.settings)
        run_id = explanations(pipeline.database, shell.settings).root_of(run)
        plan = pipeline.card.replay_plan.replay
        computed = {state.dataset_id for state in states.of_run(run_id)}
        datasets = [
            name
            for name in sorted(pipeline.registry.contracts)
            if f"{name}.{MessageParse.operator}" in computed and dataset in {None, name}
        ]
        if not datasets:
            raise RunReplayRefusedError(
                observed=f"{run_id} has no stage of {dataset or 'any dataset'}",
                expected="a run that has received units of the dataset",
                next_step=f"kfm runs show {run_id} shows what the run did",
            )
        rows = [
            {**comparison.as_json(), "diverges": comparison.diverges(plan)}
            for name in datasets
            for comparison in compare_run(pipeline, dataset=name, run_id=run_id)
        ]
    if not any(row["units"] for row in rows):
        raise RunReplayRefusedError(
            observed=f"{run_id} brought no unit to success, so there is nothing to compare",
            expected="a run with units that succeeded",
            next_step="kfm runs show latest",
        )
    show(rows, output=shell.output, as_table=lambda: show_section(f"run {run_id}", rows, COMPARED_FIELDS))
    return ExitCode.FINISHED_WITH_FAILURES if any(row["diverges"] for row in rows) else ExitCode.DONE
