"""`kfm demo`: the whole product on one machine, on sample or on real objects."""

from __future__ import annotations

import json
import shlex
from itertools import islice
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.demo.run import run_demo
from kfm_dagster.deployment.account import DrainResult
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings

MAX_SKIPPED_SHOWN = 20
COUNTS = ("received", "succeeded", "failed", "quarantined", "duplicates")


@click.command()
@click.option(
    "--objects",
    type=click.Path(path_type=Path),
    help="Folder of real objects laid out as DIR/<bucket>/<key>, instead of the samples.",
)
@click.option("--all-datasets", is_flag=True, help="Samples of every dataset that ships, not of three alone.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kfm"),
    show_default=True,
    envvar="KFM_HOME",
    help="Data root.",
)
@click.option(
    "--timeout", default=900, show_default=True, type=click.IntRange(1), help="Seconds after which the demo gives up."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def demo(*, objects: Path | None, all_datasets: bool, home: Path, timeout: int, as_json: bool) -> None:
    """Ingest objects through a real queue, daemon and runs, and show what became of each.

    Starts an S3, SNS and SQS server and a Dagster deployment on loopback, publishes the objects' notifications
    (the samples with a duplicate, a malformed message, a missing and a truncated object), waits until the queue
    is drained, and stops what it started.

    Example: kfm demo --objects ./nodd --json
    """
    if objects is not None and all_datasets:
        raise click.UsageError("--objects and --all-datasets exclude each other: a folder has the datasets that it has")
    refuse_unwritable_home(home)
    console = Console(stderr=True)
    with drain_bar(console) as report:
        result = run_demo(
            home, objects=objects, all_datasets=all_datasets, timeout_seconds=timeout, report=report, say=console.print
        )
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        show_result(result, kfm=_typed_for(home))


def _typed_for(home: Path) -> str:
    """Return how a command that looks at the home is begun."""
    is_default = home.absolute() == Settings.load().home.absolute()
    return "kfm" if is_default else f"KFM_HOME={shlex.quote(str(home))} kfm"


def show_result(result: DrainResult, *, kfm: str = "kfm") -> None:
    """Print what the demo did, by dataset, with what went wrong and what was skipped; `kfm` begins the next command."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("dataset", no_wrap=True)
    for name in (*COUNTS, "ms/unit"):
        table.add_column(name, justify="right", no_wrap=True)
    for dataset, counts in result.datasets.items():
        table.add_row(
            dataset,
            *(str(counts[name]) for name in COUNTS),
            f"{result.ms_per_unit.get(dataset, 0):.1f}",
        )
    console = Console()
    console.print(table)
    if result.earlier:
        before = counted(result.earlier, "message")
        line = f"all that this home has ever taken in is counted; {before} came before this demo"
        console.print(line, soft_wrap=True, highlight=False)
    console.print(_messages(result, kfm), soft_wrap=True, highlight=False, markup=False)
    for failing in result.failing:
        console.print(f"  {failing}", soft_wrap=True, highlight=False)
    for name, why in islice(result.skipped.items(), MAX_SKIPPED_SHOWN):
        console.print(f"  skipped {name}: {why}", soft_wrap=True, highlight=False, markup=False)
    if (more := len(result.skipped) - MAX_SKIPPED_SHOWN) > 0:
        console.print(f"  and {more} files more were skipped; --json names them all", highlight=False)
    console.print(f"catalog   {result.catalog}/catalog.json", soft_wrap=True, highlight=False)
    console.print(f"lineage   {result.lineage}", soft_wrap=True, highlight=False)
    console.print(f"database  {result.database}", soft_wrap=True, highlight=False)
    console.print(f"next      {kfm} wal list; {kfm} ui (make ui)", soft_wrap=True, highlight=False, markup=False)
    console.print(f"{result.seconds:.0f} s", highlight=False)


def _messages(result: DrainResult, kfm: str) -> str:
    """Count the messages, and name the commands that say why some gave no unit."""
    parts = [f"{counted(result.messages, 'message')} received"]
    parts.append(f"{result.rejected} of them rejected" + (f" ({kfm} wal rejected)" if result.rejected else ""))
    if result.ignored:
        parts.append(f"{result.ignored} ignored ({kfm} wal ignored)")
    return ", ".join(parts)
