"""The speed-up by more workers on one queue; a worker's few reads wait for the store.

    python -m benchmarks.workers --workers 1 --workers 2 --store-latency-ms 100 --database postgresql [--json]

Each row is a new deployment with a number of `kfm worker` processes, and a backlog in proportion to this number.
Belongs here: the workers and their rates. Does not belong here: the rate of a deployment by runs (`backlog.py`), the
maximum rate of the database (`pressure.py`).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.command import in_one_line, place_options
from benchmarks.drained import ledger_span
from benchmarks.fast_queue import FastQueue, ensure_installed
from benchmarks.objects import DAY, make_objects, samples_of
from benchmarks.processes import cpu_seconds_of
from benchmarks.surroundings import Place, Surroundings, surrounded
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.exports.validation import figure
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment

_KFM = str(Path(sys.executable).parent / "kfm")
COLUMNS = ("workers", "units", "units_per_second", "times_one", "cpu_ms_per_unit", "cores_busy", "database_cores")


@dataclass(frozen=True, kw_only=True)
class WorkersOptions:
    """The measurement: `units` and parallel `reads` are per worker."""

    dataset: str
    workers: Sequence[int]
    units: int
    reads: int
    place: Place
    timeout_seconds: float


def measure(home: Path, options: WorkersOptions, *, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of workers; Raises KfmError with one line.

    `times_one` compares a row with the first row's rate per worker.
    """
    samples_of(options.dataset)
    fauxqs = ensure_installed(home / "fauxqs")
    alone: float | None = None
    for count in options.workers:
        folder = home / "work" / f"workers-{time.time_ns()}"
        units = options.units * count
        say(f"{count} x kfm worker, {units} units of {options.dataset} ...")
        bodies = make_objects(folder / "objects", options.dataset, units, real_size=options.place.real_size)
        with surrounded(options.place, folder / "objects", folder / "database") as around:
            row = _worked(folder / "deployment", fauxqs, bodies, around, count, options)
        alone = alone or row["units_per_second"] / count
        yield row | {"times_one": row["units_per_second"] / alone}


def _worked(
    home: Path, fauxqs: Path, bodies: Sequence[str], around: Surroundings, count: int, options: WorkersOptions
) -> dict[str, Any]:
    own = {
        "KFM_HOME": str(home.absolute()),
        "KFM_FIRST_DAY": DAY.isoformat(),
        "KFM_SCHEDULED_LISTINGS": "false",
        "KFM_READ_CONCURRENCY": str(options.reads),
    }
    home.mkdir(parents=True)
    with FastQueue(fauxqs, latency_ms=options.place.queue_latency_ms) as queue:
        queue.fill(bodies)
        with environment({**queue.environment(), **around.variables(), **own}):
            # If several workers opened Dagster's new home at the same time, they would corrupt it.
            subprocess.run([_KFM, "init"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
            pipeline = Pipeline.open(Settings.load())
            database = list(around.database.pids.values())
            database_began = cpu_seconds_of(database)
            cpu_seconds = _until_empty(count, home, timeout_seconds=options.timeout_seconds)
            database_seconds = cpu_seconds_of(database) - database_began
            began, ended = ledger_span(pipeline)
            with pipeline.database.snapshot() as tx:
                succeeded = pipeline.ledger.counts(tx=tx)[options.dataset][Status.SUCCEEDED]
            pipeline.close()
    if succeeded != len(bodies):
        raise DependencyUnavailableError(
            "not every unit succeeded", observed=succeeded, expected=len(bodies), next_step="kfm status in its home"
        )
    seconds = (ended - began).total_seconds()
    return {
        "workers": count,
        "units": len(bodies),
        "units_per_second": len(bodies) / seconds,
        "cpu_ms_per_unit": (cpu_seconds + database_seconds) * 1000 / len(bodies),
        "cores_busy": (cpu_seconds + database_seconds) / seconds,
        "database_cores": database_seconds / seconds,
        "seconds": seconds,
    }


def _until_empty(count: int, home: Path, *, timeout_seconds: float) -> float:
    """Drain the queue; return the workers' CPU seconds. Raises DependencyUnavailableError."""
    command = [_KFM, "worker", "--until-empty"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with ExitStack() as stack:
        lines = stack.enter_context((home / "workers.log").open("w"))
        running = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=lines, stderr=lines))  # noqa: S603
            for _ in range(count)
        ]
        deadline = time.monotonic() + timeout_seconds
        try:
            codes = [worker.wait(timeout=max(0.0, deadline - time.monotonic())) for worker in running]
        finally:
            for worker in running:
                worker.terminate()
    if any(codes):
        raise DependencyUnavailableError("a worker failed", observed=codes, next_step=f"look into {lines.name}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--workers",
    multiple=True,
    default=[1, 2],
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of workers; repeat the option for further rows.",
)
@click.option("--units", default=1500, show_default=True, type=click.IntRange(1, 100_000), help="Units of each worker.")
@click.option(
    "--reads", default=8, show_default=True, type=click.IntRange(1, 1000), help="Parallel reads of each worker."
)
@click.option("--dataset", default="hrrr", show_default=True, help="Dataset whose samples are published.")
@place_options
def main(*, home: Path, as_json: bool, **values: Any) -> None:
    """Empty a queue by each number of workers, and print the speed-up over one worker.

    Example: python -m benchmarks.workers --workers 1 --workers 2 --store-latency-ms 100 --database postgresql
    """
    options = WorkersOptions(place=Place.taken_from(values), **values)
    refuse_unwritable_home(home)
    rows = list(measure(home, options, say=Console(stderr=True).print))
    if as_json:
        click.echo(json.dumps(rows))
    else:
        show_rows([{name: figure(row[name]) for name in COLUMNS} for row in rows], COLUMNS)


if __name__ == "__main__":
    sys.exit(in_one_line("workers", main))
