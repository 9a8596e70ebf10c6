"""`kfm worker`: continuous ingest by this process; `kfm drain`: empty a queue and end."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType

import click
from rich.console import Console

from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.main import signals_handled
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.deployment.drain import account, flush_lineage, say_what_is_held
from kfm_dagster.deployment.drain import drain as drain_queue
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ingest.preflight import hold_roots, preflight
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.settings import Settings
from kfm_dagster.worker.resident import RunLocks, WorkedBatch, Worker


@click.command()
@click.option("--timeout", default=86_400, show_default=True, type=POSITIVE, help="Seconds after which to give up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def drain(*, timeout: int, as_json: bool) -> None:
    """Work the queue until it is empty, with a daemon and code server of its own.

    Also works until running replays are over and running backfills are listed; days that a kill switch holds are named.

    Example: KFM_SQS_PRIMARY_QUEUE=kfm-nodd-primary kfm drain
    """
    with _opened() as pipeline:
        started = utc_now()
        with (
            drain_bar(Console(stderr=True)) as report,
            Deployment(pipeline.settings.home, environment={}) as deployment,
        ):
            drain_queue(deployment, pipeline, timeout_seconds=timeout, report=report)
        flush_lineage(pipeline.lineage, _say)
        say_what_is_held(pipeline.ledger, _say)
        result = account(pipeline, since=started)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        units = sum(counts["received"] for counts in result.datasets.values())
        click.echo(f"drained: {units} units in the ledger, {result.seconds:.0f} s")


@contextmanager
def _opened() -> Iterator[Pipeline]:
    """Open the deployment to ingest: without a queue and stores that answer, no ledger is created."""
    settings = Settings.load()
    read_configuration(settings)
    refuse_unwritable_home(settings.home)
    preflight(settings, connect(settings).depth)
    with closing(Pipeline.open(settings)) as pipeline:
        hold_roots(settings, pipeline.database)
        yield pipeline


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command()
@click.option("--max-batches", type=POSITIVE, help="End after so many batches.")
@click.option("--until-empty", is_flag=True, help="End once the queue is empty and no live unit is on its way.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per batch.")
def worker(*, max_batches: int | None, until_empty: bool, as_json: bool) -> None:
    """Ingest within seconds of a message: wait at the queue, beside sensors and runs, until SIGTERM or Ctrl-C.

    It shares the work by the ledger's claims, and shows in Dagster as materialisations without a run. Ends after the
    batch in work; killed at any moment, it loses and doubles nothing (docs/worker.md).

    Example: kfm worker --json
    """
    with _opened() as pipeline:
        # Imported here, because importing Dagster takes seconds.
        from kfm_dagster.defs.runless import RunlessReports  # noqa: PLC0415

        settings = pipeline.settings
        with closing(RunlessReports(settings.dagster_home, pipeline, warn=_warn)) as reports:
            resident = Worker(
                pipeline=pipeline,
                locks=RunLocks.of(settings),
                report=lambda batch: _report(batch, reports.report, as_json=as_json),
                warn=_warn,
            )
            collect_rarely()

            # The first signal ends it after the current batch, the second one at once.
            def stop(number: int, frame: FrameType | None) -> None:
                if resident.stopping:
                    signal.default_int_handler(number, frame)
                resident.stop()

            with signals_handled({signal.SIGTERM: stop, signal.SIGINT: stop}):
                resident.work(until_empty=until_empty, max_batches=max_batches)


def _report(batch: WorkedBatch, to_dagster: Callable[[WorkedBatch], None], *, as_json: bool) -> None:
    summary = batch.as_json()
    to_dagster(batch)
    if as_json:
        click.echo(json.dumps(summary))
        return
    ends = ", ".join(f"{summary[name]} {name}" for name in ("succeeded", "retrying", "quarantined", "lost"))
    click.echo(f"{batch.dataset} {batch.partition}: {ends} in {batch.seconds:.2f} s ({batch.run_id})")


def _warn(line: str) -> None:
    click.echo(f"kfm worker: {line}", err=True)
