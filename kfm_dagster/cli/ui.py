"""`kfm ui`: Dagster's web page over a deployment on this machine."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from datetime import date

import click
from rich.console import Console

from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import preflight
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.settings import Settings, environment


@click.command()
@click.option("--port", default=3000, show_default=True, type=click.IntRange(1, 65535), help="Port of the web page.")
@click.option(
    "--cloud",
    type=click.Choice(["embedded", "aws"]),
    default="embedded",
    show_default=True,
    help="embedded: S3, SNS and SQS on loopback with the demo's objects; aws: what the AWS variables name.",
)
def ui(*, port: int, cloud: str) -> None:
    """Open the Dagster UI over KFM_HOME, with daemon and sensors, until Ctrl-C.

    Example: kfm ui --port 3001
    """
    settings = Settings.load()
    _refuse_taken(port)
    # The daemon's ticks would refuse it one by one, where nobody looks.
    registry = read_configuration(settings).registry
    refuse_unwritable_home(settings.home)
    console = Console(stderr=True)
    with ExitStack() as stack:
        if cloud == "embedded":
            sample_day = _serve_samples(stack, settings, registry)
        else:
            preflight(settings, connect(settings).depth)
            Pipeline.open(settings).close()
        console.print("starting the Dagster code server, daemon and web server ...")
        deployment = stack.enter_context(Deployment(settings.home, environment={}, web_port=port))
        console.print(f"open {deployment.url} (Ctrl-C stops everything)", soft_wrap=True)
        if cloud == "embedded":
            # A partition in the address is chosen already when the dialog opens.
            day = f"{deployment.url}/locations/kfm_dagster/jobs/ingest?partition={sample_day}"
            console.print(f"the sample objects are of {sample_day} and the day after; to ingest them by hand:")
            console.print(f'  {day} > "Materialize all" > "Launch 1 run"', soft_wrap=True)
        while True:
            time.sleep(1)
            deployment.tend()


def _serve_samples(stack: ExitStack, settings: Settings, registry: ContractRegistry) -> date:
    """Serve the demo's objects, announced, until the stack is left; return their first day."""
    # Of the extra `demo`, which a deployment over AWS does not need.
    from kfm_dagster.demo.cloud import EmbeddedCloud  # noqa: PLC0415
    from kfm_dagster.demo.feed import Feed  # noqa: PLC0415
    from kfm_dagster.demo.run import DEMO_ENVIRONMENT, begin_with  # noqa: PLC0415
    from kfm_dagster.demo.sample_day import SAMPLE_DAY, sample_objects  # noqa: PLC0415

    servers = stack.enter_context(EmbeddedCloud())
    servers.provision(registry)
    feed = Feed(servers, registry)
    for item in sample_objects():
        feed.deliver(item)
    stack.enter_context(environment({**servers.environment(), **DEMO_ENVIRONMENT}))
    with closing(Pipeline.open(settings)) as pipeline:
        begin_with(pipeline, SAMPLE_DAY)
    return SAMPLE_DAY


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConfigurationError(
                "the port is taken", observed=port, expected="a free one", next_step="kfm ui --port with another number"
            )
