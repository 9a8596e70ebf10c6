"""The benchmark: a backlog through sensor, daemon and runs, beside two yardsticks in the same call.

    python -m benchmarks.backlog --units 2000 --dataset hrrr [--run-per-message] [--floor] [--json]

`run_per_message` starts one Dagster run for each message, the pattern that the documentation shows for S3 events.
`floor` is a plain loop (`floor.py`). Beside them stands what gates and audit take of one run (`run_cost.py`). Figures
are ratios of one call: machines are noisy.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.fast_queue import FastQueue, ensure_installed
from benchmarks.floor import floor_rate
from benchmarks.processes import MemoryWatch, cpu_seconds_of
from benchmarks.run_cost import RunCost, run_cost
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.main import stopped_by_signals
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.feed import ObjectEvent, topic_of
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.hrrr import hrrr_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ConfigurationError, KfmError
from kfm_dagster.exports.explanations.report import ledger_span, node_seconds
from kfm_dagster.exports.validation_page import figure
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.progress import Progress
from kfm_dagster.settings import Settings, environment

Samples = Callable[[date, int], Iterator[tuple[str, str, bytes]]]

DAY = date(2025, 4, 2)
DAY_OF_RUN = DAY + timedelta(days=1)
UNITS_OF_RUN = 1_000
"""Units at most of the run of which gates and audit may take a tenth: what is done once per process counts, too."""
SAMPLES: dict[str, Samples] = {
    "goes-abi": goes_abi_samples,
    "nexrad-l2": nexrad_level2_samples,
    "hrrr": hrrr_samples,
}
RUNS_PER_MESSAGE_UNITS = 12
"""Enough for a rate; each costs a run's start."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Figures of one call; rates in units per second, times per unit in ms, memory in MiB of the largest run."""

    dataset: str
    units: int
    database: str
    units_per_second: float
    cpu_ms_per_unit: float
    wall_ms_per_unit_by_node: dict[str, float] = field(default_factory=dict)
    peak_run_mib: float
    runs: int
    run_cost: dict[str, Any] = field(default_factory=dict)
    """What gates and audit take of a run (`RunCost.as_json`)."""
    run_per_message_per_second: float | None = None
    floor_per_second: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return every figure with the two ratios."""
        ratios = {
            "times_run_per_message": _ratio(self.units_per_second, self.run_per_message_per_second),
            "share_of_floor": _ratio(self.units_per_second, self.floor_per_second),
        }
        return {**vars(self), **ratios}


def run_bench(
    home: Path,
    *,
    dataset: str,
    units: int,
    run_per_message: bool,
    floor: bool,
    timeout_seconds: float,
    report: Callable[[Progress], None],
    say: Callable[[str], None],
) -> BenchResult:
    """Measure one dataset below `home`. Raises KfmError with one line."""
    if dataset not in SAMPLES:
        raise ConfigurationError(
            "no samples of this dataset", observed=dataset, expected="one of " + ", ".join(SAMPLES)
        )
    read_configuration(Settings.load())
    ensure_installed(home / "fauxqs")
    say(f"making {units} objects of {dataset} ...")
    folder = home / "work" / f"{dataset}-{time.time_ns()}"
    bodies = _make_objects(folder / "objects", dataset, units)
    with environment({"KFM_OBJECT_ROOT": str((folder / "objects").absolute())}):
        say(f"draining a backlog of {units} messages by sensor and daemon ...")
        drained = _drain(folder / "backlog", home / "fauxqs", bodies, {}, timeout_seconds, report)
        say("running one chain in this process ...")
        cost = _run_cost(folder, dataset, min(units, UNITS_OF_RUN))
        single = plain = None
        if run_per_message:
            few = bodies[:RUNS_PER_MESSAGE_UNITS]
            say(f"draining {len(few)} messages with one run each ...")
            settings = {"KFM_MAX_UNITS_PER_RUN": "1"}
            single = _drain(folder / "single", home / "fauxqs", few, settings, timeout_seconds, report)
        if floor:
            say("working the same messages in a plain loop ...")
            plain = floor_rate(folder / "floor", home / "fauxqs", bodies)
    return BenchResult(
        dataset=dataset,
        units=len(bodies),
        database=drained.database,
        units_per_second=len(bodies) / drained.seconds,
        cpu_ms_per_unit=drained.cpu_seconds / len(bodies) * 1000,
        wall_ms_per_unit_by_node=drained.by_node,
        peak_run_mib=drained.peak_run_mib,
        runs=drained.runs,
        run_cost=cost.as_json(),
        run_per_message_per_second=None if single is None else RUNS_PER_MESSAGE_UNITS / single.seconds,
        floor_per_second=plain,
    )


@dataclass(frozen=True, kw_only=True)
class _Drained:
    seconds: float
    cpu_seconds: float
    by_node: dict[str, float]
    peak_run_mib: float
    runs: int
    database: str


def _drain(
    home: Path,
    fauxqs: Path,
    bodies: Sequence[str],
    settings: dict[str, str],
    timeout_seconds: float,
    report: Callable[[Progress], None],
) -> _Drained:
    """Drain the messages with a fresh deployment; seconds run from the first record to the last settlement."""
    home.mkdir(parents=True)
    with FastQueue(fauxqs) as queue:
        queue.fill(bodies)
        variables = {
            **queue.environment(),
            "KFM_HOME": str(home.absolute()),
            "KFM_MAX_IN_FLIGHT_UNITS": "100000",
            "KFM_FIRST_DAY": DAY.isoformat(),
            # The pause between ticks is a choice of latency, not a cost.
            "KFM_SENSOR_INTERVAL_SECONDS": "1",
            **settings,
        }
        with environment(variables):
            pipeline = Pipeline.open(Settings.load())
            with Deployment(home, environment={}) as deployment, MemoryWatch(deployment.pids) as watch:
                drain(deployment, pipeline, timeout_seconds=timeout_seconds, report=report)
                cpu_seconds = cpu_seconds_of(deployment.pids())
            began, ended = ledger_span(pipeline.database)
            states = pipeline.stages.run_states.since(began)
            database = pipeline.database.dialect
            pipeline.close()
    return _Drained(
        seconds=(ended - began).total_seconds(),
        cpu_seconds=cpu_seconds,
        by_node={node: seconds * 1000 / len(bodies) for (_, node), seconds in node_seconds(states).items()},
        peak_run_mib=watch.peak_mib,
        runs=len({state.run_id for state in states}),
        database=database,
    )


def _run_cost(folder: Path, dataset: str, units: int) -> RunCost:
    """Measure a run over another day of the deployment that was drained."""
    _make_objects(folder / "objects", dataset, units, day=DAY_OF_RUN)
    with environment({"KFM_HOME": str((folder / "backlog").absolute())}):
        pipeline = Pipeline.open(Settings.load())
        try:
            return run_cost(pipeline, dataset=dataset, day=DAY_OF_RUN, units=units)
        finally:
            pipeline.close()


def _make_objects(root: Path, dataset: str, units: int, *, day: date = DAY) -> list[str]:
    """Write the objects below root, and return the SNS envelopes that announce them."""
    registry = ContractRegistry.load()
    bodies = []
    for number, (bucket, key, content) in enumerate(SAMPLES[dataset](day, units)):
        path = root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        event = ObjectEvent(bucket=bucket, key=key, size=len(content), etag=etag, event_time=datetime.now(UTC))
        message = json.dumps({"Records": [event.record()]})
        bodies.append(
            json.dumps(
                {
                    "Type": "Notification",
                    "MessageId": f"bench-{number}",
                    "TopicArn": topic_of(registry, bucket),
                    "Subject": "Amazon S3 Notification",
                    "Message": message,
                    "Timestamp": "2025-04-02T00:00:00.000Z",
                }
            )
        )
    return bodies


def _ratio(one: float, other: float | None) -> float | None:
    return None if other is None else one / other


@click.command(context_settings={"max_content_width": 100})
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
def main(
    *, units: int, dataset: str, run_per_message: bool, floor: bool, home: Path, timeout: int, as_json: bool
) -> None:
    """Drain a backlog of sample units through sensor, daemon and runs, and print what it cost.

    Needs Node.js for the queue: a local SQS that is fast enough not to be what is measured, installed once by npm.

    Example: python -m benchmarks.backlog --units 20000 --dataset hrrr --run-per-message --floor
    """
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


def _in_one_line() -> int:
    try:
        with stopped_by_signals():
            main(standalone_mode=False)
    except KfmError as error:
        click.echo(f"backlog: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_in_one_line())
