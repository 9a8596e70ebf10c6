"""`kfm replay compare`: repeat a run, compare results. Only reads objects and checkpoints."""

from __future__ import annotations

import click

from kfm_dagster.cli.completion import DATASET, RUN
from kfm_dagster.cli.replay.options import Shell, everywhere
from kfm_dagster.cli.replay.output import show
from kfm_dagster.cli.session import explanations, opened_pipeline
from kfm_dagster.cli.tables import show_section
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.nodes import MessageParse
from kfm_dagster.ingest.run_replay import RunReplayRefusedError, compare_run
from kfm_dagster.run_state.choice import looked_up_states

COLUMNS = ("stage", "units", "keys_differing", "results_differing", "first", "diverges")


@click.command()
@click.argument("run", type=RUN, metavar="RUN")
@click.option("--dataset", type=DATASET, help="Only this dataset of the run.")
@everywhere
def compare(*, shell: Shell, run: str, dataset: str | None) -> ExitCode:
    """Do a run's stages again from their checkpoints, last one first, and compare. Changes nothing; 4 says it differs.

    RUN is named as for kfm explain: by its id, the first 8 characters or more of it, or `latest`.

    Example: kfm replay compare 6f9b2f0e-2f64-4c43-9a51-6a1f3a0e9c55
    """
    with opened_pipeline(shell.settings, read_only=True) as pipeline:
        states = looked_up_states(pipeline.database, shell.settings)
        run_id = explanations(pipeline.database, states, shell.settings).root_of(run)
        plan = pipeline.card.replay_plan.replay
        known = {state.dataset_id for state in states.of_run(run_id)}
        datasets = [
            name
            for name in sorted(pipeline.registry.contracts)
            if f"{name}.{MessageParse.operator}" in known and dataset in {None, name}
        ]
        if not datasets:
            raise RunReplayRefusedError(
                observed=f"{run_id} has done nothing of {dataset or 'any dataset'}",
                expected="a run that has received units of it",
                next_step=f"kfm explain {run_id} tells what it did",
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
            next_step="kfm explain latest",
        )
    show(rows, output=shell.output, as_table=lambda: show_section(f"run {run_id}", rows, COLUMNS))
    return ExitCode.FINISHED_WITH_FAILURES if any(row["diverges"] for row in rows) else ExitCode.DONE
