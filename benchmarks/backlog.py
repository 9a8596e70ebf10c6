"""The benchmark: a backlog through sensor, daemon and runs, compared with simpler programs.

    python -m benchmarks.backlog --units 2000 --dataset hrrr [--run-per-message] [--floor] [--dbos] [--json]
    python -m benchmarks.backlog --units 2000 --dataset hrrr --store-latency-ms 50 --all-remote --real-size

`run_per_message` starts one Dagster run for each message, the pattern that the documentation shows for S3 events.
`floor` is plain loops of threads (`floor.py`), `async_floor` is event loops (`async_floor.py`), `dbos` is durable steps
of another library (`dbos_chain.py`). With a store's latency, objects are read from a server (`store_server.py`) instead
of a folder. With a folder and SQLite, the share of gates and audit in a run is measured, too (`run_cost.py`). Compare
only figures of the same call, because the speed of machines varies.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.command import in_one_line, place_options
from benchmarks.dbos_chain import ensure_environment
from benchmarks.drained import Drained, drain_backlog
from benchmarks.fast_queue import ensure_installed
from benchmarks.floor import Floor, floor_rate
from benchmarks.objects import DAY, make_objects, samples_of
from benchmarks.run_cost import RunCost, run_cost
from benchmarks.store import requests_of
from benchmarks.surroundings import Place, surrounded
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.exports.validation import figure
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings, environment

DAY_OF_RUN = DAY + timedelta(days=1)
UNITS_OF_RUN = 1_000
"""Maximum units of the run in which gates and audit are measured. Both may take a tenth of the run, including work that
a process does once."""
ASYNC_FLOOR, DBOS_CHAIN = "benchmarks.async_floor", "benchmarks.dbos_chain"
RUNS_PER_MESSAGE_UNITS = 12
"""Enough units for a rate; each unit costs the start of a run."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The measurement and its surroundings."""

    dataset: str
    units: int
    place: Place
    run_per_message: bool = False
    floor: bool = False
    dbos: bool = False
    records: int = 0
    timeout_seconds: float = 3600


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Figures: rates in units per second, times per unit in ms, the largest run's MiB.

    CPU is that of the product's processes and the database's server; `servers_cpu_ms_per_unit` is that of queue and
    store. Requests and bytes (read from the store, sent to it) are those of the whole deployment, and None if objects
    are in a folder.
    """

    dataset: str
    units: int
    database: str
    units_per_second: float
    cpu_ms_per_unit: float
    peak_run_mib: float
    runs: int
    records: int = 0
    """Records in the ledger before the backlog, of succeeded units."""
    succeeded: int | None = None
    store_latency_ms: float | None = None
    queue_latency_ms: float = 0.0
    all_remote: bool = False
    real_size: bool = False
    traces: float = 0.0
    requests_per_unit: float | None = None
    bytes_per_unit: float | None = None
    bytes_sent_per_unit: float | None = None
    requests_at_once: int | None = None
    requests_per_unit_by_kind: dict[str, float] = field(default_factory=dict)
    cpu_ms_per_unit_by_process: dict[str, float] = field(default_factory=dict)
    servers_cpu_ms_per_unit: dict[str, float] = field(default_factory=dict)
    wall_ms_per_unit_by_node: dict[str, float] = field(default_factory=dict)
    run_cost: dict[str, Any] = field(default_factory=dict)
    """The share of gates and audit in a run (`RunCost.as_json`)."""
    run_per_message_per_second: float | None = None
    floor_per_second: float | None = None
    floor_cpu_ms_per_unit: float | None = None
    async_floor_per_second: float | None = None
    async_floor_cpu_ms_per_unit: float | None = None
    dbos_per_second: float | None = None
    dbos_cpu_ms_per_unit: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return every figure with the ratios."""
        ratios = {
            "times_run_per_message": _ratio(self.units_per_second, self.run_per_message_per_second),
            "share_of_floor": _ratio(self.units_per_second, self.floor_per_second),
            "share_of_async_floor": _ratio(self.units_per_second, self.async_floor_per_second),
            "times_dbos": _ratio(self.units_per_second, self.dbos_per_second),
        }
        return {**vars(self), **ratios}


def run_bench(
    home: Path, options: BenchOptions, *, report: Callable[[Progress], None], say: Callable[[str], None]
) -> BenchResult:
    """Measure a dataset below `home`. Raises KfmError with one line."""
    samples_of(options.dataset)
    read_configuration(Settings.load())
    fauxqs = ensure_installed(home / "fauxqs")
    python = ensure_environment(home / "dbos") if options.dbos else None
    say(f"making {options.units} objects of {options.dataset} ...")
    folder = home / "work" / f"{options.dataset}-{time.time_ns()}"
    objects = folder / "objects"
    bodies = make_objects(objects, options.dataset, options.units, real_size=options.place.real_size)

    def drained(part: str, messages: list[str], settings: dict[str, str] | None = None) -> Drained:
        # Each part has its own database, as it has its own home.
        with surrounded(options.place, objects, folder / f"{part}-database") as around:
            return drain_backlog(
                folder / part,
                fauxqs,
                messages,
                around,
                timeout_seconds=options.timeout_seconds,
                report=report,
                settings=settings,
                records=options.records,
            )

    say(f"draining a backlog of {len(bodies)} messages by sensor and daemon ...")
    whole = drained("backlog", bodies)
    cost = single = None
    floors: dict[str, Floor] = {}
    if options.place.store_latency_ms is None and options.place.database == "sqlite":
        say("running one chain in this process ...")
        cost = _run_cost(folder, options)
    if options.run_per_message:
        few = bodies[:RUNS_PER_MESSAGE_UNITS]
        say(f"draining {len(few)} messages with one run each ...")
        single = drained("single", few, {"KFM_MAX_UNITS_PER_RUN": "1"})
    if options.floor:
        say("processing the same messages in plain loops ...")
        with surrounded(replace(options.place, database="sqlite"), objects, folder / "none") as around:
            floors["floor"] = floor_rate(folder / "floor", fauxqs, bodies, around)
            if around.store is not None:
                say("processing the same messages by event loops ...")
                floors["async_floor"] = floor_rate(folder / "async", fauxqs, bodies, around, module=ASYNC_FLOOR)
    if python is not None:
        say("processing the same messages in DBOS workflows ...")
        with surrounded(replace(options.place, database="postgresql"), objects, folder / "dbos-database") as around:
            floors["dbos"] = floor_rate(folder / "dbos", fauxqs, bodies, around, python=python, module=DBOS_CHAIN)
    return BenchResult(
        **_figures(whole, options),
        run_cost={} if cost is None else cost.as_json(),
        run_per_message_per_second=None if single is None else single.units / single.seconds,
        **_floor_figures(floors),
    )


def _figures(whole: Drained, options: BenchOptions) -> dict[str, Any]:
    def per_unit(seconds: dict[str, float]) -> dict[str, float]:
        return {name: spent / whole.units * 1000 for name, spent in seconds.items()}

    counts = None if options.place.store_latency_ms is None else whole.store
    kinds = {kind: count / whole.units for kind, count in whole.store.items() if kind.isupper()}
    return {
        "dataset": options.dataset,
        "units": whole.units,
        "records": options.records,
        "succeeded": whole.succeeded,
        **asdict(options.place),
        "units_per_second": whole.units / whole.seconds,
        "cpu_ms_per_unit": sum(whole.cpu_seconds.values()) / whole.units * 1000,
        "cpu_ms_per_unit_by_process": per_unit(whole.cpu_seconds),
        "servers_cpu_ms_per_unit": per_unit(whole.servers_cpu_seconds),
        "wall_ms_per_unit_by_node": whole.by_node,
        "peak_run_mib": whole.peak_run_mib,
        "runs": whole.runs,
        "requests_per_unit": None if counts is None else requests_of(counts) / whole.units,
        "requests_per_unit_by_kind": kinds,
        "requests_at_once": None if counts is None else counts.get("at_once", 0),
        "bytes_per_unit": None if counts is None else counts.get("bytes", 0) / whole.units,
        "bytes_sent_per_unit": None if counts is None else counts.get("bytes_received", 0) / whole.units,
    }


def _floor_figures(floors: dict[str, Floor]) -> dict[str, Any]:
    return {f"{name}_{figure}": value for name, floor in floors.items() for figure, value in floor._asdict().items()}


def _run_cost(folder: Path, options: BenchOptions) -> RunCost:
    """Measure a run over another day, in the home of the drained deployment."""
    units = min(options.units, UNITS_OF_RUN)
    make_objects(folder / "objects", options.dataset, units, day=DAY_OF_RUN, real_size=options.place.real_size)
    variables = {
        "KFM_HOME": str((folder / "backlog").absolute()),
        "KFM_OBJECT_ROOT": str((folder / "objects").absolute()),
    }
    with environment(variables):
        pipeline = Pipeline.open(Settings.load())
        try:
            return run_cost(pipeline, dataset=options.dataset, day=DAY_OF_RUN, units=units)
        finally:
            pipeline.close()


def _ratio(rate: float, yardstick: float | None) -> float | None:
    return None if yardstick is None else rate / yardstick


@click.command(context_settings={"max_content_width": 100})
@click.option("--units", default=2000, show_default=True, type=click.IntRange(1, 100_000), help="Messages to drain.")
@click.option("--dataset", default="nexrad-l2", show_default=True, help="Dataset whose samples are ingested.")
@click.option("--run-per-message", is_flag=True, help="Also measure one Dagster run per message.")
@click.option(
    "--floor",
    is_flag=True,
    help="Also measure plain loops, one per core: of threads, and with a store also event loops.",
)
@click.option(
    "--dbos", is_flag=True, help="Also measure the same steps as DBOS workflows on PostgreSQL; installs DBOS by pip."
)
@click.option(
    "--records",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Records in the ledger before the backlog, rounded down to 5,000s; at least 5,000, unless 0.",
)
@place_options
def main(*, home: Path, as_json: bool, **values: Any) -> None:
    """Drain a backlog of sample units through sensor, daemon and runs, and print the cost.

    Needs Node.js for the queue, a local SQS that npm installs once, and that is too fast to affect the figures.

    Example: python -m benchmarks.backlog --units 2000 --dataset hrrr --store-latency-ms 50 --all-remote
    """
    options = BenchOptions(place=Place.taken_from(values), **values)
    refuse_unwritable_home(home)
    console = Console(stderr=True)
    with drain_bar(console) as report:
        result = run_bench(home, options, report=report, say=console.print)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        figures = [{"figure": name, "value": figure(value)} for name, value in result.as_json().items()]
        show_rows(figures, ("figure", "value"))


if __name__ == "__main__":
    sys.exit(in_one_line("backlog", main))
