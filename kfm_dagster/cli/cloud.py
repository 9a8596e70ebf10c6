"""`kfm cloud`: the embedded cloud by itself, for trying commands against a queue that nobody minds losing."""

from __future__ import annotations

import shlex
import threading
from datetime import timedelta
from pathlib import Path

import click

from kfm_dagster.cli.files import NewFile
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed
from kfm_dagster.demo.run import DEMO_ENVIRONMENT
from kfm_dagster.demo.sample_day import SAMPLE_DAY, publish_samples
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.settings import Settings

MAX_RECEIVE_COUNT = 5
"""Receives after which the cloud's queue gives a message up."""
OUTAGE_BEFORE = timedelta(days=7)
"""From the days whose messages died to the demo's days, so that no ledger of a demo knows them."""


@click.command()
@click.option(
    "--outage",
    is_flag=True,
    help="Publish two more days first, whose messages stand on the dead-letter queue as after days without a consumer.",
)
@click.option("--env-file", type=NewFile(), help="Also write the export lines to this file.")
def cloud(*, outage: bool, env_file: Path | None) -> None:
    """Serve S3, SNS and SQS on loopback, with the sample objects announced, until Ctrl-C.

    Prints the variables that point any kfm or AWS command at it; everything is in memory and gone afterwards.

    Example: kfm cloud --outage --env-file cloud.env
    """
    settings = Settings.load()
    registry = ContractRegistry.load(settings.contracts_dir)
    with EmbeddedCloud(primary_queue=settings.sqs_primary_queue, dlq=settings.sqs_dlq_queue) as servers:
        servers.provision(registry, max_receive_count=MAX_RECEIVE_COUNT)
        feed = Feed(servers, registry)
        if outage:
            publish_samples(feed, first_day=SAMPLE_DAY - OUTAGE_BEFORE)
            _let_die(Queue(servers.client("sqs"), name=servers.primary_queue, threads=settings.receive_threads))
        publish_samples(feed)
        variables = {**servers.environment(), **DEMO_ENVIRONMENT}
        lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
        if env_file is not None:
            env_file.write_text(lines, encoding="utf-8")
        click.echo(lines, nl=False)
        click.echo("# serving until Ctrl-C", err=True)
        _until_interrupted()


def _let_die(queue: Queue) -> None:
    """Receive every message so often, and once more, that the queue's redrive policy gives it up."""
    for _ in range(MAX_RECEIVE_COUNT + 1):
        queue.look(queue.depth().visible, budget_seconds=60)


def _until_interrupted() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:  # the way to end it, not a failure
        return
