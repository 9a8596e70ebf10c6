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
from kfm_dagster.cli.numbers import POSITIVE
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.demo.run import run_demo
from kfm_dagster.deployment.drain import DrainResult
from kfm_dagster.errors import ExitCode
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
@click.option("--timeout", default=900, show_default=True, type=POSITIVE, help="Seconds after which the demo gives up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def demo(*, objects: Path | None, all_datasets: bool, home: Path, timeout: int, as_json: bool) -> ExitCode:
    """Ingest objects through a real queue, daemon and runs, and show what became of each.

    Starts an S3, SNS and SQS server and a Dagster deployment on loopback, publishes the objects' notifications
    (the samples with a duplicate, a malformed message, a missing and a truncated object), waits until the queue
    is drained, and stops what it started. Ends with 4 where something did not end as it has to: each sample as it was
    made to, and each object of a folder in the catalog or in quarantine.

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
    return ExitCode.FINISHED_WITH_FAILURES if result.unexpected else ExitCode.DONE


def _typed_for(home: Path) -> str:
    """Return how a command that looks at the home is begun."""
    is_default = home.absolute() == Settings.load().home.absolute()
    return "kfm" if is_default else f"KFM_HOME={shlex.quote(str(home))} kfm"


def show_result(result: DrainResult, *, kfm: str = "kfm") -> None:
    """Print what the demo did, by dataset, with what went wrong and what was skipped; `kfm` begins the next command."""
    console = Console(highlight=False)
    console.print(_table(result))
    if result.earlier:
        before = counted(result.earlier, "message")
        console.print(
            f"all that this home has ever taken in is counted; {before} came before this demo", soft_wrap=True
        )
    console.print(_messages(result, kfm), soft_wrap=True, markup=False)
    if result.failing:
        console.print(f"in quarantine ({kfm} quarantine list):", soft_wrap=True, markup=False)
    for failing in result.failing:
        console.print(f"  {failing}", soft_wrap=True, markup=False)
    for name, why in islice(result.skipped.items(), MAX_SKIPPED_SHOWN):
        console.print(f"  skipped {name}: {why}", soft_wrap=True, markup=False)
    if (more := len(result.skipped) - MAX_SKIPPED_SHOWN) > 0:
        console.print(f"  and {more} files more were skipped; --json names them all")
    console.print(_ends(result), soft_wrap=True)
    for line in result.unexpected[:MAX_SKIPPED_SHOWN]:
        console.print(f"  {line}", soft_wrap=True, markup=False)
    console.print(f"catalog   {result.catalog}/catalog.json", soft_wrap=True, markup=False)
    console.print(f"lineage   {result.lineage}", soft_wrap=True, markup=False)
    console.print(f"database  {result.database}", soft_wrap=True, markup=False)
    console.print(f"next      {kfm} status; {kfm} ui (make ui)", soft_wrap=True, markup=False)
    console.print(f"{result.seconds:.0f} s")


def _table(result: DrainResult) -> Table:
    """Return a row for each dataset of which something came."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("dataset", no_wrap=True)
    for name in COUNTS:
        table.add_column(name, justify="right", no_wrap=True)
    for dataset, counts in result.datasets.items():
        if any(counts.values()):
            table.add_row(dataset, *(str(counts[name]) for name in COUNTS))
    return table


def _ends(result: DrainResult) -> str:
    """Say whether every object that was published ended as it had to."""
    published = f"{counted(result.published, 'object')} published"
    if not result.unexpected:
        return f"as expected: every one of {published} is in the catalog, or in quarantine as it has to be"
    return f"NOT as expected, of {published}:"


def _messages(result: DrainResult, kfm: str) -> str:
    """Count the messages, and name the commands that say why some gave no unit."""
    parts = [f"{counted(result.messages, 'message')} received"]
    parts.append(f"{result.rejected} of them rejected" + (f" ({kfm} wal rejected)" if result.rejected else ""))
    if result.ignored:
        parts.append(f"{result.ignored} ignored ({kfm} wal ignored)")
    return ", ".join(parts)
