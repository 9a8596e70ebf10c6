"""The latency of units from publication to Item, at a given rate, in a running deployment.

    python -m benchmarks.latency --rate 50 --seconds 60 [--store-latency-ms 50] [--worker] [--virtual] [--json]

Messages are sent to the queue at an even rate while the deployment works under its default settings. A latency is the
time from just before the message is sent to the last change of the unit's record, when its Item is in the catalog. With
`--virtual`, the time from the Item to its step in the virtual store is measured, too. Belongs here: publishing, and
reading the times. Does not belong here: a backlog (`backlog.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import dagster as dg
import numpy as np
from rich.console import Console

from benchmarks.command import in_one_line, place_options
from benchmarks.drained import deployed_cpu_seconds
from benchmarks.fast_queue import BATCH, FastQueue, ensure_installed
from benchmarks.objects import DAY, make_objects, samples_of
from benchmarks.processes import cpu_seconds_by_process
from benchmarks.surroundings import Place, Surroundings, surrounded
from kfm_dagster.catalog.layout import STORE_LIST
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.progress_bar import drain_bar
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.jobs import INGEST_JOB
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError
from kfm_dagster.exports.validation import figure
from kfm_dagster.followers.virtual.follower import VirtualZarr
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.settings import Settings, environment

WARMING_UNITS = 5
"""Units ingested before the measurement, because the first run of a process loads modules for all later runs."""
LEAST_UNITS = 200
"""Minimum number of published units; with fewer, the 95th percentile is random."""
TICK_SECONDS = 0.1
FOLLOW_SECONDS = 60.0
"""Longest wait for the step of the last Item."""
VIRTUAL = "virtual"
_PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class LatencyOptions:
    """The measurement: `rate` messages a second for `seconds`, but at least LEAST_UNITS."""

    dataset: str
    rate: float
    seconds: float
    place: Place
    worker: bool = False
    virtual: bool = False
    timeout_seconds: float = 3600

    @property
    def units(self) -> int:
        """Messages in all."""
        return max(LEAST_UNITS, round(self.rate * self.seconds))


def measure(
    home: Path, options: LatencyOptions, *, report: Callable[[Progress], None], say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the figures of a call: percentiles in seconds. Raises KfmError with one line."""
    samples_of(options.dataset)
    having = [contract.id for contract in ContractRegistry.load() if contract.virtual]
    if options.virtual and options.dataset not in having:
        raise ConfigurationError("no virtual stores", observed=options.dataset, expected=" or ".join(sorted(having)))
    read_configuration(Settings.load())
    fauxqs = ensure_installed(home / "fauxqs")
    folder = home / "work" / f"latency-{time.time_ns()}"
    units = options.units + WARMING_UNITS
    say(f"making {units} objects of {options.dataset} ...")
    bodies = make_objects(folder / "objects", options.dataset, units, real_size=options.place.real_size)
    with surrounded(options.place, folder / "objects", folder / "database") as around:
        return _measured(folder / "deployment", fauxqs, bodies, around, options, report, say)


def _measured(
    home: Path,
    fauxqs: Path,
    bodies: Sequence[str],
    around: Surroundings,
    options: LatencyOptions,
    report: Callable[[Progress], None],
    say: Callable[[str], None],
) -> dict[str, Any]:
    home.mkdir(parents=True)
    own = {"KFM_HOME": str(home.absolute()), "KFM_FIRST_DAY": DAY.isoformat(), "KFM_SCHEDULED_LISTINGS": "false"}
    if options.virtual:
        own["KFM_VIRTUAL_URL"] = str((home / VIRTUAL).absolute())
    with (
        FastQueue(fauxqs, latency_ms=options.place.queue_latency_ms) as queue,
        environment({**queue.environment(), **around.variables(), **own}),
    ):
        pipeline = Pipeline.open(Settings.load())
        with Deployment(home, environment={}) as deployment, _resident(deployment, options) as resident:

            def cpu_seconds() -> float:
                spent = deployed_cpu_seconds(deployment, around) | cpu_seconds_by_process(resident)
                return sum(spent.values())

            say("warming up ...")
            queue.fill(bodies[:WARMING_UNITS])
            drain(deployment, pipeline, timeout_seconds=options.timeout_seconds, report=report)
            before = cpu_seconds()
            stores = _Stores(pipeline, options, home / VIRTUAL) if options.virtual else None
            say(f"publishing {options.units} messages, {options.rate:g} a second ...")
            published_from = datetime.now(UTC)
            publisher = _Publisher(queue, bodies[WARMING_UNITS:], rate=options.rate)
            began = time.monotonic()
            publisher.start()
            if stores:
                stores.start()
            while publisher.is_alive():
                deployment.tend()
                publisher.join(1.0)
            publishing = time.monotonic() - began
            drain(deployment, pipeline, timeout_seconds=options.timeout_seconds, report=report)
            after = cpu_seconds()
            runs = run_figures(deployment.dagster_home, published_from)
        virtual = stores.figures() if stores else {}
        with pipeline.database.snapshot() as tx:
            filters = {"dataset": options.dataset, "status": Status.SUCCEEDED}
            records = pipeline.ledger.find(**filters, limit=len(bodies), tx=tx)
        pipeline.close()
    settled = {record.object_uri: record.updated_at for record in records}
    waits = [(settled[uri] - at).total_seconds() for uri, at in publisher.published(options.dataset) if uri in settled]
    return {
        "dataset": options.dataset,
        "rate": options.rate,
        "worker": options.worker,
        "published": options.units,
        "published_per_second": options.units / publishing,
        "succeeded": len(waits),
        **asdict(options.place),
        **percentiles(waits),
        **virtual,
        **runs,
        "cpu_ms_per_unit": (after - before) * 1000 / options.units,
    }


@contextmanager
def _resident(deployment: Deployment, options: LatencyOptions) -> Iterator[dict[str, int]]:
    """Run `kfm worker`, if requested, instead of the sensor `nodd_messages`; yield its process.

    Raises DependencyUnavailableError if the worker has ended.
    """
    if not options.worker:
        yield {}
        return
    home = deployment.dagster_home
    stop = ["dagster", "sensor", "stop", "nodd_messages", "-w", str(home / "workspace.yaml")]
    subprocess.run(  # noqa: S603
        [str(_PROGRAMS / stop[0]), *stop[1:]],
        env={**os.environ, "DAGSTER_HOME": str(home)},
        check=True,
        capture_output=True,
    )
    command = [str(_PROGRAMS / "kfm"), "worker"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as worker:  # noqa: S603
        try:
            yield {"worker": worker.pid}
            if worker.poll() is not None:
                raise DependencyUnavailableError("the worker ended", observed=f"exit code {worker.returncode}")
        finally:
            worker.terminate()


def percentiles(waits: Sequence[float]) -> dict[str, float | None]:
    """Return median, 95th and 99th percentile and maximum of seconds; None if there are none."""
    names = {"p50_seconds": 50, "p95_seconds": 95, "p99_seconds": 99, "most_seconds": 100}
    if not waits:
        return dict.fromkeys(names)
    return {name: float(np.percentile(waits, share)) for name, share in names.items()}


def run_figures(dagster_home: Path, since: datetime) -> dict[str, Any]:
    """Return number and median seconds of runs, and the share that ended within a tick.

    Seconds count from the request to the end. A run longer than a tick is still in progress at the next tick.
    """
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        records = instance.get_run_records(dg.RunsFilter(created_after=since, job_name=INGEST_JOB))
    took = [record.end_time - record.create_timestamp.timestamp() for record in records if record.end_time]
    tick = Settings.load().sensor_interval_seconds
    return {
        "runs": len(took),
        "run_p50_seconds": percentiles(took)["p50_seconds"],
        "runs_within_tick": sum(seconds <= tick for seconds in took) / len(took) if took else None,
    }


class _Stores(threading.Thread):
    """Polls the newest change of the catalog that the virtual stores contain, until `figures`."""

    def __init__(self, pipeline: Pipeline, options: LatencyOptions, folder: Path) -> None:
        super().__init__(name="stores", daemon=True)
        self._folder = folder
        self._collection = pipeline.registry[options.dataset].stac.collection
        self._pipeline, self._units = pipeline, options.units
        self._seen, self._done = list[tuple[datetime, int]](), threading.Event()
        self._first = self._place()

    def run(self) -> None:
        """Poll until `figures` is called."""
        while not self._done.wait(TICK_SECONDS):
            self._seen.append((datetime.now(UTC), self._place()))

    def figures(self) -> dict[str, Any]:
        """Return percentiles of seconds from an Item's commit to its store, and the stores' steps.

        If no store can refer to an Item's object, the Item has no step. Raises DependencyUnavailableError if the stores
        stay behind the catalog, or have no step at all, so that nothing was measured.
        """
        with self._pipeline.database.snapshot() as view:
            changes = view.run(
                "catalog.changes_after", collection_id=self._collection, after=self._first, most=self._units
            ).all()
        until = time.monotonic() + FOLLOW_SECONDS
        while changes and self._place() < changes[-1].change_id:
            if time.monotonic() > until:
                raise DependencyUnavailableError(
                    "the virtual stores stay behind the catalog",
                    observed=f"change {self._place()} of {changes[-1].change_id}",
                )
            time.sleep(TICK_SECONDS)
        self._done.set()
        self.join()
        self._seen.append((datetime.now(UTC), self._place()))
        found, seen = list[float](), iter(self._seen)
        at, place = next(seen)
        for change in changes:
            while place < change.change_id:
                at, place = next(seen)
            found.append((at - change.changed_at).total_seconds())
        waits = {f"virtual_{name}": seconds for name, seconds in percentiles(found).items()}
        # The steps include those of the units that were ingested before the measurement.
        lists = [json.loads(file.read_bytes()) for file in self._folder.rglob(STORE_LIST)]
        steps = sum(store["steps"] for one in lists for store in one["stores"])
        if not steps:
            raise DependencyUnavailableError("no sample of the dataset has come into a virtual store")
        return {**waits, "virtual_steps": steps}

    def _place(self) -> int:
        places = self._pipeline.following.states()
        own = (
            place for place in places if (place.follower, place.collection_id) == (VirtualZarr.name, self._collection)
        )
        return max((place.change_id for place in own), default=0)


class _Publisher(threading.Thread):
    """Sends bodies at an even rate (the bodies of a tick together), and stores the times."""

    def __init__(self, queue: FastQueue, bodies: Sequence[str], *, rate: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self._queue, self._bodies, self._rate = queue, bodies, rate
        self._sent: list[datetime] = []

    def run(self) -> None:
        """Send due bodies, tick by tick."""
        sqs, url = self._queue.client(), self._queue.queues.queue_url
        began = time.monotonic()
        while (done := len(self._sent)) < len(self._bodies):
            due = min(int((time.monotonic() - began) * self._rate) + 1, len(self._bodies))
            for first in range(done, due, BATCH):
                batch = self._bodies[first : min(first + BATCH, due)]
                self._sent += [datetime.now(UTC)] * len(batch)
                sqs.send_message_batch(
                    QueueUrl=url,
                    Entries=[{"Id": str(number), "MessageBody": body} for number, body in enumerate(batch)],
                )
            time.sleep(TICK_SECONDS)

    def published(self, dataset: str) -> list[tuple[str, datetime]]:
        """Return the object and the moment of each message of the dataset."""
        registry = ContractRegistry.load()
        return [
            (unit.object_uri, at)
            for body, at in zip(self._bodies, self._sent, strict=True)
            for unit in parse_message(
                SqsMessage(message_id="latency", body=body), registry=registry, queue="latency"
            ).envelopes
            if unit.dataset == dataset
        ]


@click.command(context_settings={"max_content_width": 100})
@click.option("--rate", default=50.0, show_default=True, type=click.FloatRange(0.1, 1000), help="Messages a second.")
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    help="Minimum seconds of publishing.",
)
@click.option("--dataset", default="nexrad-l2", show_default=True, help="Dataset whose samples are published.")
@click.option("--worker", is_flag=True, help="Run `kfm worker` instead of the sensor of messages.")
@click.option("--virtual", is_flag=True, help="Also write virtual stores; the dataset must have some.")
@place_options
def main(*, home: Path, as_json: bool, **values: Any) -> None:
    """Publish samples at a rate to a running deployment, and print the latencies of their Items.

    Example: python -m benchmarks.latency --rate 50 --seconds 60 --store-latency-ms 50
    """
    options = LatencyOptions(place=Place.taken_from(values), **values)
    refuse_unwritable_home(home)
    console = Console(stderr=True)
    with drain_bar(console) as report:
        result = measure(home, options, report=report, say=console.print)
    if as_json:
        click.echo(json.dumps(result))
    else:
        show_rows([{"figure": name, "value": figure(value)} for name, value in result.items()], ("figure", "value"))


if __name__ == "__main__":
    sys.exit(in_one_line("latency", main))
