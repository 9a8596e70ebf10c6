"""`kfm drain`: work a queue off by a deployment on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.numbers import POSITIVE
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.deployment.drain import account, flush_lineage, say_what_is_held
from kfm_dagster.deployment.drain import drain as drain_queue
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ingest.preflight import hold_roots, preflight
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.settings import Settings


@click.command()
@click.option("--timeout", default=86_400, show_default=True, type=POSITIVE, help="Seconds after which to give up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def drain(*, timeout: int, as_json: bool) -> None:
    """Work the queue until it is empty, with a daemon and code server of its own.

    Also works until running replays are over and running backfills are listed; days that a kill switch holds are named.

    Example: KFM_SQS_PRIMARY_QUEUE=kfm-nodd-primary kfm drain
    """
    settings = Settings.load()
    # What opening the pipeline does first, and then the queue: without one there is nothing to make a ledger for.
    read_configuration(settings)
    refuse_unwritable_home(settings.home)
    preflight(settings, connect(settings).depth)
    pipeline = Pipeline.open(settings)
    started = utc_now()
    try:
        hold_roots(pipeline.settings, pipeline.database)
        with (
            drain_bar(Console(stderr=True)) as report,
            Deployment(Path(settings.home), environment={}) as deployment,
        ):
            drain_queue(deployment, pipeline, timeout_seconds=timeout, report=report)
        flush_lineage(pipeline.lineage, _say)
        say_what_is_held(pipeline.ledger, _say)
        result = account(pipeline, since=started)
    finally:
        pipeline.close()
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        units = sum(counts["received"] for counts in result.datasets.values())
        click.echo(f"drained: {units} units in the ledger, {result.seconds:.0f} s")


def _say(line: str) -> None:
    click.echo(line, err=True)
