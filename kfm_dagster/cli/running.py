"""`kfm ui`, `kfm drain`, `kfm worker`: run a deployment on this machine.

`ui` serves the Dagster UI and the console until Ctrl-C, `drain` empties a queue and ends, and `worker` ingests
continuously in this process.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import FrameType

import click
from rich.console import Console

from kfm_dagster.cli.completion import POSITIVE
from kfm_dagster.cli.decision_options import actor_of
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.main import signals_handled
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cli.tables import object_as_json
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.deployment.drain import account, flush_lineage, report_held_days
from kfm_dagster.deployment.drain import drain as drain_queue
from kfm_dagster.deployment.local import Deployment, accepts, free_port
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ingest.preflight import hold_roots, preflight
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings, environment
from kfm_dagster.worker.resident import RunLocks, WorkedBatch, Worker


@click.command()
@click.option(
    "--port",
    default=3000,
    show_default=True,
    type=click.IntRange(1, 65534),
    help="Port of the Dagster UI. The console has the next port, or any free port if that is taken.",
)
@click.option(
    "--cloud",
    type=click.Choice(["embedded", "aws"]),
    default="embedded",
    show_default=True,
    help="embedded: S3, SNS and SQS on loopback with the demo's objects; aws: services as the AWS variables say.",
)
def ui(*, port: int, cloud: str) -> None:
    """Serve the Dagster UI and the console of the deployment in KFM_HOME.

    Runs daemon and sensors until Ctrl-C.

    With the demo's objects, it prints how to repair the objects that are spoilt on purpose, and a token for decisions
    in the console. It prints no token if KFM_CONSOLE_TOKENS is set, because the tokens of this variable are valid then.

    Example: kfm ui --port 3010
    """
    settings = Settings.load()
    if accepts(port):
        raise ConfigurationError(
            "the port is taken", observed=port, expected="a free port", next_step="kfm ui --port with another number"
        )
    # Checked here, because a wrong configuration would show only in the daemon's log, at each tick.
    registry = read_configuration(settings).registry
    refuse_unwritable_home(settings.home)
    console = Console(stderr=True)
    hints: list[str] = []
    # Ctrl-C is the way to end the deployment, not a failure.
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        console_port = free_console_port(port)
        own = addresses(settings, port=port, console_port=console_port)
        if cloud == "embedded":
            page = f"http://127.0.0.1:{port}/locations/kfm_dagster/jobs/ingest"
            hints = _serve_samples(stack, settings, registry, page)
            if settings.console_tokens is None:
                # Names in KFM_CONSOLE_TOKENS can have only these characters.
                name = re.sub(r"[^\w.@-]", "_", actor_of(settings, None), flags=re.ASCII)[:80]
                secret = secrets.token_urlsafe(18)
                own["KFM_CONSOLE_TOKENS"] = f"{name}={secret}"
                hints.insert(0, f"  to decide there, sign in as {name} with the token {secret}")
        else:
            preflight(settings, connect(settings).depth)
            with closing(Pipeline.open(settings)) as pipeline:
                hold_roots(pipeline.settings, pipeline.database)
        console.print("starting the Dagster code server, daemon, web server and console ...")
        stack.callback(console.print, "stopped")
        deployment = stack.enter_context(
            Deployment(settings.home, environment=own, web_port=port, console_port=console_port)
        )
        stack.callback(console.print, "stopping, which takes up to half a minute ...")
        console.print(f"open {deployment.url} (Ctrl-C stops everything)", soft_wrap=True)
        console.print(f"the console, with the error of every failed unit: {deployment.console_url}", soft_wrap=True)
        for line in hints:
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        while True:
            time.sleep(1)
            deployment.tend()


def addresses(settings: Settings, *, port: int, console_port: int) -> dict[str, str]:
    """Return the settings for links between Dagster UI and console that have no value yet."""
    own = {} if settings.dagster_url else {"KFM_DAGSTER_URL": f"http://127.0.0.1:{port}"}
    return own if settings.console_url else own | {"KFM_CONSOLE_URL": f"http://127.0.0.1:{console_port}"}


def _serve_samples(stack: ExitStack, settings: Settings, registry: ContractRegistry, page: str) -> list[str]:
    """Serve the demo's objects until the stack closes; no message announces them.

    Return instructions as lines to copy; `page` is Dagster's page that launches a partition.
    """
    # The extra `demo`, which a deployment over AWS does not need.
    from kfm_dagster.demo.cloud import EmbeddedCloud  # noqa: PLC0415
    from kfm_dagster.demo.feed import Feed  # noqa: PLC0415
    from kfm_dagster.demo.run import DEMO_ENVIRONMENT, begin_with  # noqa: PLC0415
    from kfm_dagster.demo.sample_day import DATASETS, MENDED, SAMPLE_DAY, SHELL, serve_samples  # noqa: PLC0415

    servers = stack.enter_context(EmbeddedCloud())
    servers.provision(registry)
    stack.enter_context(environment({**servers.environment(), **DEMO_ENVIRONMENT}))
    with closing(Pipeline.open(settings)) as pipeline:
        hold_roots(pipeline.settings, pipeline.database)
        begin_with(pipeline.window, SAMPLE_DAY)
        with pipeline.database.snapshot() as view:
            ingested = pipeline.ledger.counts(tx=view)
    if not settings.datasets:
        stack.enter_context(environment({"KFM_DATASETS": " ".join(sorted(DATASETS | ingested.keys()))}))
    serve_samples(Feed(servers, registry), environment=servers.environment(), home=settings.home)
    spoilt = [
        "two objects are spoilt on purpose; to store them whole, as the provider would, before a retry of their units:",
        f"  kfm demo --mend --home {shlex.quote(str(settings.home))}",
    ]
    by_hand = [
        f"the sample objects are of {SAMPLE_DAY} and the day after; to ingest them by hand:",
        # Dagster's dialog opens with the partition that the address names.
        f'  {page}?partition={SAMPLE_DAY} > "Materialize all" > "Launch 1 run"',
    ]
    return [
        *(() if ingested else by_hand),
        *(() if (settings.home / MENDED).exists() else spoilt),
        "another terminal reaches the demo's S3 after:",
        f"  . {shlex.quote(str(settings.home / SHELL))}",
    ]


def free_console_port(port: int) -> int:
    """Return the port after the Dagster UI's `port` if it is free, else any free port."""
    return free_port() if accepts(port + 1) else port + 1


@click.command()
@click.option("--timeout", default=86_400, show_default=True, type=POSITIVE, help="Seconds after which to give up.")
@object_as_json
def drain(*, timeout: int, as_json: bool) -> None:
    """Ingest the queue until it is empty, then stop.

    Starts a daemon and a code server of its own. Also waits until running replays and backfills have ended, except
    parts that wait for a person. Prints the days of backfills that wait, and why (a kill switch, no contract).

    Example: KFM_SQS_PRIMARY_QUEUE=kfm-nodd-primary kfm drain
    """
    with _opened() as pipeline:
        started = utc_now()
        with (
            drain_bar(Console(stderr=True)) as report,
            Deployment(pipeline.settings.home, environment={}) as deployment,
        ):
            drain_queue(deployment, pipeline, timeout_seconds=timeout, report=report)
        flush_lineage(pipeline.lineage, _echo_aside)
        report_held_days(pipeline.ledger, _echo_aside)
        result = account(pipeline, since=started)
    units = sum(counts["received"] for counts in result.datasets.values())
    text = f"drained: {counted(units, 'unit')} in the ledger, {result.seconds:.0f} s"
    click.echo(json.dumps(result.as_json()) if as_json else text)


@contextmanager
def _opened() -> Iterator[Pipeline]:
    """Open the deployment to ingest, once its queue and stores have answered."""
    settings = Settings.load()
    read_configuration(settings)
    refuse_unwritable_home(settings.home)
    preflight(settings, connect(settings).depth)
    with closing(Pipeline.open(settings)) as pipeline:
        hold_roots(settings, pipeline.database)
        yield pipeline


def _echo_aside(line: str) -> None:
    click.echo(line, err=True)


@click.command()
@click.option("--max-batches", type=POSITIVE, help="End after this number of batches.")
@click.option("--until-empty", is_flag=True, help="End once the queue is empty and no live unit is in flight.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per batch.")
def worker(*, max_batches: int | None, until_empty: bool, as_json: bool) -> None:
    """Ingest within seconds of a message, until stopped.

    Works until SIGTERM or Ctrl-C, then ends after the current batch. Sensors and Dagster's runs may work at the same
    time: the ledger's claims divide the work. Dagster shows batches as materialisations without a run. If the worker is
    killed, nothing is lost or duplicated (docs/worker.md).

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

            # The first signal ends the worker after the current batch, the second immediately.
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
