"""`kfm bench`: how fast, and against what."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.exports.validation_page import figure


@click.command()
@click.option("--units", default=2000, show_default=True, type=click.IntRange(1, 100_000), help="Messages to drain.")
@click.option("--dataset", default="nexrad-l2", show_default=True, help="Dataset whose samples are ingested.")
@click.option("--run-per-message", is_flag=True, help="Also measure one Dagster run per message.")
@click.option("--floor", is_flag=True, help="Also measure a plain loop without guarantees.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kfm/bench"),
    show_default=True,
    help="Where objects, databases and the queue server go.",
)
@click.option(
    "--timeout", default=3600, show_default=True, type=click.IntRange(1), help="Seconds after which to give up."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bench(
    *, units: int, dataset: str, run_per_message: bool, floor: bool, home: Path, timeout: int, as_json: bool
) -> None:
    """Drain a backlog of sample units through sensor, daemon and runs, and print what it cost.

    Needs Node.js for the queue: a local SQS that is fast enough not to be what is measured, installed once by npm.

    Example: kfm bench --units 20000 --dataset hrrr --run-per-message --floor
    """
    from kfm_dagster.embedded.bench import run_bench  # noqa: PLC0415, psutil comes with the `demo` extra

    refuse_unwritable_home(home)
    console = Console(stderr=True)
    with drain_bar(console) as report:
        result = run_bench(
            home,
            dataset=dataset,
            units=units,
            run_per_message=run_per_message,
            floor=floor,
            timeout_seconds=timeout,
            report=report,
            say=console.print,
        )
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        figures = [{"figure": name, "value": figure(value)} for name, value in result.as_json().items()]
        show_rows(figures, ("figure", "value"))
