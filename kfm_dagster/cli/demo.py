"""`kfm demo` ingests samples or real objects; `kfm cloud` serves its S3, SNS and SQS."""

from __future__ import annotations

import json
import shlex
import threading
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path

import click
from rich.console import Console

from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.files import NewFile, refuse_unwritable_home
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cli.tables import object_as_json, show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed
from kfm_dagster.demo.run import DEMO_ENVIRONMENT, run_demo
from kfm_dagster.demo.sample_day import SAMPLE_DAY, mend_samples, publish_samples
from kfm_dagster.deployment.drain import DrainResult
from kfm_dagster.errors import ExitCode
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings

MAX_RECEIVE_COUNT = 5
"""Receives after which the cloud's queue moves a message to its dead letters."""
OUTAGE_BEFORE = timedelta(days=7)
"""Time by which the dead letters precede the demo's objects, so that no demo's ledger knows their units."""


@click.command()
@click.option(
    "--outage",
    is_flag=True,
    help="First publish two more days to the dead-letter queue, as after days without a consumer.",
)
@click.option("--env-file", type=NewFile(), help="Also write the export lines to this file.")
def cloud(*, outage: bool, env_file: Path | None) -> None:
    """Serve S3, SNS and SQS with the sample objects on loopback.

    Prints the variables that point a kfm or AWS command at these servers. They keep all data in memory, until Ctrl-C.

    Example: kfm cloud --outage --env-file cloud.env
    """
    settings = Settings.load()
    registry = ContractRegistry.load(settings.contracts_dir)
    with EmbeddedCloud(primary_queue=settings.sqs_primary_queue, dlq=settings.sqs_dlq_queue) as servers:
        servers.provision(registry, max_receive_count=MAX_RECEIVE_COUNT)
        feed = Feed(servers, registry)
        if outage:
            publish_samples(feed, first_day=SAMPLE_DAY - OUTAGE_BEFORE)
            queue = Queue(servers.client("sqs"), name=servers.primary_queue, threads=settings.receive_threads)
            # One receive more than allowed, so that the queue's redrive policy moves every message.
            for _ in range(MAX_RECEIVE_COUNT + 1):
                queue.look(queue.depth().visible, budget_seconds=60)
        publish_samples(feed)
        variables = {**servers.environment(), **DEMO_ENVIRONMENT}
        lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
        if env_file is not None:
            env_file.write_text(lines, encoding="utf-8")
        click.echo(lines, nl=False)
        click.echo("# serving until Ctrl-C", err=True)
        with suppress(KeyboardInterrupt):  # Ctrl-C is the way to end the servers, not a failure
            threading.Event().wait()


MAX_SKIPPED_SHOWN = 20
COUNTS = ("received", "succeeded", "failed", "quarantined", "duplicates")


@click.command()
@click.option(
    "--objects",
    type=click.Path(path_type=Path),
    help="Folder of real objects laid out as DIR/<bucket>/<key>, instead of the samples.",
)
@click.option("--mend", is_flag=True, help="Only repair the broken samples of a running kfm ui, for a retry.")
@click.option("--all-datasets", is_flag=True, help="Ingest samples of all datasets of the package, instead of three.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kfm"),
    show_default=True,
    envvar="KFM_HOME",
    help="Data root.",
)
@click.option("--timeout", default=900, show_default=True, type=POSITIVE, help="Seconds after which the demo gives up.")
@object_as_json
def demo(*, objects: Path | None, mend: bool, all_datasets: bool, home: Path, timeout: int, as_json: bool) -> ExitCode:
    """Ingest sample objects through a real queue, daemon and runs.

    Starts an S3, SNS and SQS server and a Dagster deployment on loopback, publishes the objects' notifications, waits
    until the queue is drained, and stops what it started. The samples include a duplicate, a malformed message, a
    missing object and a truncated object. Exit code 4 if any result is unexpected: a sample must have its intended
    result, and an object of --objects must be in the catalog or in quarantine.

    Example: kfm demo --objects ./nodd --json
    """
    if objects is not None and all_datasets:
        raise click.UsageError("--objects and --all-datasets exclude each other: the folder determines the datasets")
    refuse_unwritable_home(home)
    if mend:
        if objects is not None or all_datasets:
            raise click.UsageError("--mend cannot be combined with --objects or --all-datasets")
        uris = mend_samples(home)
        click.echo(json.dumps({"mended": uris}) if as_json else "\n".join(f"{uri} is whole" for uri in uris))
        return ExitCode.DONE
    console = Console(stderr=True)
    with drain_bar(console) as report:
        result = run_demo(
            home, objects=objects, all_datasets=all_datasets, timeout_seconds=timeout, report=report, say=console.print
        )
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        is_default = home.absolute() == Settings.load().home.absolute()
        show_result(result, kfm="kfm" if is_default else f"KFM_HOME={shlex.quote(str(home))} kfm")
    return ExitCode.FINISHED_WITH_FAILURES if result.unexpected else ExitCode.DONE


def show_result(result: DrainResult, *, kfm: str = "kfm") -> None:
    """Print results by dataset, faults and skipped files; `kfm` begins each shown command."""
    rows = [{"dataset": dataset, **counts} for dataset, counts in result.datasets.items() if any(counts.values())]
    show_rows(rows, ("dataset", *COUNTS))
    if result.earlier:
        before = counted(result.earlier, "message")
        click.echo(f"the counts include everything in this home; {before} came before this demo")
    click.echo(_messages(result, kfm))
    if result.failing:
        click.echo(f"in quarantine ({kfm} units cases):")
    for failing in result.failing:
        click.echo(f"  {failing}")
    for name, why in islice(result.skipped.items(), MAX_SKIPPED_SHOWN):
        click.echo(f"  skipped {name}: {why}")
    if (more := len(result.skipped) - MAX_SKIPPED_SHOWN) > 0:
        click.echo(f"  and {more} more files were skipped; --json names them all")
    published = f"{counted(result.published, 'object')} published"
    if result.unexpected:
        click.echo(f"NOT as expected, of {published}:")
    else:
        click.echo(f"as expected: each of {published} is in the catalog, or in quarantine where expected")
    for line in result.unexpected[:MAX_SKIPPED_SHOWN]:
        click.echo(f"  {line}")
    click.echo(f"catalog   {result.catalog}/catalog.json")
    click.echo(f"lineage   {result.lineage}")
    click.echo(f"database  {result.database}")
    click.echo(f"next      {kfm} status; {kfm} ui (make ui)")
    click.echo(f"{result.seconds:.0f} s")


def _messages(result: DrainResult, kfm: str) -> str:
    """Return the message counts, with the commands that explain messages without units."""
    parts = [f"{result.rejected} rejected" + (f" ({kfm} units rejected)" if result.rejected else "")]
    if result.ignored:
        parts.append(f"{result.ignored} ignored, such as those of index files ({kfm} units ignored)")
    received, again = (sum(counts[name] for counts in result.datasets.values()) for name in ("received", "duplicates"))
    files = counted(received + again, "file")
    parts.append(f"the others announce {files} (a message can announce several), {again} of these for a second time")
    return f"{counted(result.messages, 'message')} received: {', '.join(parts)}"
