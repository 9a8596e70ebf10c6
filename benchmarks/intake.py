"""Intake without runs: the rate from messages to ledger records, with a delay in queue calls.

    python -m benchmarks.intake --messages 10000 --queue-latency-ms 20 [--database postgresql] [--json]

One process repeats the receiving sensor's tick until every message is recorded; no run starts. Belongs here: this loop
and its figures. Does not belong here: the runs after it (`backlog.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.command import in_one_line
from benchmarks.databases import KINDS
from benchmarks.fast_queue import FastQueue, ensure_installed
from benchmarks.objects import DAY, make_objects
from benchmarks.processes import cpu_seconds_of
from benchmarks.surroundings import Place, surrounded
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.exports.validation import figure
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.settings import Settings, environment


@dataclass(frozen=True, kw_only=True)
class Intake:
    """The figures; CPU is that of the receiving process and the database's server."""

    dataset: str
    database: str
    queue_latency_ms: float
    messages: int
    ticks: int
    messages_per_second: float
    cpu_ms_per_message: float


def measure(home: Path, bodies: Sequence[str], place: Place, *, dataset: str) -> Intake:
    """Receive and record the messages in this process. Raises KfmError with one line."""
    folder = home / f"intake-{time.time_ns()}"
    fauxqs = ensure_installed(home / "fauxqs")
    with (
        FastQueue(fauxqs, latency_ms=place.queue_latency_ms) as queue,
        surrounded(place, folder / "objects", folder / "database") as around,
    ):
        queue.fill(bodies)
        own = {
            "KFM_HOME": str((folder / "home").absolute()),
            "KFM_MAX_IN_FLIGHT_UNITS": "1000000",
            "KFM_FIRST_DAY": DAY.isoformat(),
        }
        pids = [os.getpid(), *around.database.pids.values()]
        with (
            environment({**queue.environment(), **around.variables(), **own}),
            closing(Pipeline.open(Settings.load())) as pipeline,
        ):
            received, ticks, cpu, began = 0, 0, cpu_seconds_of(pids), time.monotonic()
            while received < len(bodies):
                received += take_in(pipeline, ProcessState()).received
                ticks += 1
            seconds, cpu = time.monotonic() - began, cpu_seconds_of(pids) - cpu
    return Intake(
        dataset=dataset,
        database=place.database,
        queue_latency_ms=place.queue_latency_ms,
        messages=received,
        ticks=ticks,
        messages_per_second=received / seconds,
        cpu_ms_per_message=cpu / received * 1000,
    )


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--messages", default=10_000, show_default=True, type=click.IntRange(1, 100_000), help="Messages to receive."
)
@click.option("--dataset", default="hrrr", show_default=True, help="Dataset whose objects are announced.")
@click.option("--database", type=click.Choice(KINDS), default="sqlite", show_default=True, help="Ledger database.")
@click.option(
    "--queue-latency-ms",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 10_000),
    help="Delay of each answer of SQS.",
)
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), default=Path(".kfm/bench"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(*, messages: int, dataset: str, database: str, queue_latency_ms: float, home: Path, as_json: bool) -> None:
    """Receive, land, parse and record messages of a queue, and print the rate.

    Example: python -m benchmarks.intake --messages 10000 --queue-latency-ms 20
    """
    refuse_unwritable_home(home)
    place = Place(database=database, queue_latency_ms=queue_latency_ms)
    bodies = make_objects(home / "work" / f"intake-{time.time_ns()}", dataset, messages)
    figures = asdict(measure(home, bodies, place, dataset=dataset))
    if as_json:
        click.echo(json.dumps(figures))
        return
    show_rows([{"figure": name, "value": figure(value)} for name, value in figures.items()], ("figure", "value"))


if __name__ == "__main__":
    sys.exit(in_one_line("intake", main))
