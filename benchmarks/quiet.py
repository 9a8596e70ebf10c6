"""The cost of an idle deployment: CPU of code server, daemon and the database's server.

    python -m benchmarks.quiet --seconds 120 [--database sqlite|postgresql] [--json]

A unit has been ingested; the queue is empty and nothing waits in the ledger. Sensors tick at
KFM_SENSOR_INTERVAL_SECONDS, 5 unless it is set. Other work on the machine raises the cost.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.command import in_one_line
from benchmarks.databases import KINDS, bench_database
from benchmarks.objects import DAY
from benchmarks.processes import cpu_seconds_of
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed, FeedObject
from kfm_dagster.demo.samples.hrrr import hrrr_samples
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.exports.validation import figure
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings, environment

WARM_SECONDS = 150
"""Time until all sensors have long ticks (six ticks at 15 seconds), and for the work done once per process."""


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Percent of one core over `seconds`; the total excludes the database's server."""

    database: str
    seconds: float
    percent_of_a_core: float
    by_process: dict[str, float]


def measure(home: Path, *, database: str, seconds: float) -> Quiet:
    """Return the cost of an idle deployment below `home`. Raises KfmError with one line."""
    with ExitStack() as stack:
        surrounding = stack.enter_context(bench_database(database, home / "database"))
        cloud = stack.enter_context(EmbeddedCloud())
        registry = ContractRegistry.load()
        cloud.provision(registry)
        own = {"KFM_HOME": str(home), "KFM_FIRST_DAY": DAY.isoformat(), "KFM_SCHEDULED_LISTINGS": "false"}
        stack.enter_context(environment({**cloud.environment(), **surrounding.variables, **own}))
        deployment = stack.enter_context(Deployment(home, environment={}))
        feed = Feed(cloud, registry)
        for bucket, key, content in hrrr_samples(DAY, 1):
            feed.announce([feed.deliver(FeedObject(bucket=bucket, key=key, content=content))])
        with closing(Pipeline.open(Settings.load())) as pipeline:
            drain(deployment, pipeline, timeout_seconds=120, report=lambda _: None)
        server, daemon = deployment.pids()
        pids = {"code server": server, "daemon": daemon, **surrounding.pids}
        time.sleep(WARM_SECONDS)
        began, before = time.monotonic(), _cpu_seconds(pids)
        time.sleep(seconds)
        passed, after = time.monotonic() - began, _cpu_seconds(pids)
    shares = {name: 100 * (after[name] - before[name]) / passed for name in pids}
    return Quiet(
        database=database,
        seconds=passed,
        percent_of_a_core=shares["code server"] + shares["daemon"],
        by_process=shares,
    )


def _cpu_seconds(pids: dict[str, int]) -> dict[str, float]:
    return {name: cpu_seconds_of([pid]) for name, pid in pids.items()}


@click.command(context_settings={"max_content_width": 100})
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(1), help="Seconds to measure.")
@click.option(
    "--database", default="sqlite", show_default=True, type=click.Choice(KINDS), help="Database of ledger and runs."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(*, seconds: float, database: str, as_json: bool) -> None:
    """Start a deployment over an empty queue and print its share of a core.

    Example: python -m benchmarks.quiet --seconds 120
    """
    with tempfile.TemporaryDirectory(prefix="kfm-quiet-") as folder:
        Path(folder).chmod(0o755)  # a database's server may run as a user of its own
        cost = measure(Path(folder), database=database, seconds=seconds)
    if as_json:
        click.echo(json.dumps(asdict(cost)))
        return
    figures = {"percent_of_a_core": cost.percent_of_a_core, **cost.by_process}
    show_rows([{"figure": name, "value": figure(value)} for name, value in figures.items()], ("figure", "value"))


if __name__ == "__main__":
    sys.exit(in_one_line("quiet", main))
