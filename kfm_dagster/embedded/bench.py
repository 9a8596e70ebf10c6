"""The benchmark: a backlog through sensor, daemon and runs, beside two yardsticks in the same call.

`run_per_message` starts one Dagster run for each message, the pattern that the documentation shows for S3 events.
`floor` is a plain loop that makes the same reads and writes and guarantees nothing. Figures are ratios of one call:
machines are noisy.
"""

from __future__ import annotations

import hashlib
import json
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Self

import orjson
import psutil

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.embedded.demo import environment
from kfm_dagster.embedded.deployment import Deployment
from kfm_dagster.embedded.drain import drain
from kfm_dagster.embedded.fast_queue import FastQueue, ensure_installed
from kfm_dagster.embedded.feed import ObjectEvent, topic_of
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.progress import Progress
from kfm_dagster.ingest.report import ledger_span, node_seconds
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.readers.base import ReadRequest
from kfm_dagster.readers.registry import READERS
from kfm_dagster.samples.goes_abi import goes_abi_samples
from kfm_dagster.samples.hrrr import hrrr_samples
from kfm_dagster.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.settings import Settings

Samples = Callable[[date, int], Iterator[tuple[str, str, bytes]]]

DAY = date(2025, 4, 2)
SAMPLES: dict[str, Samples] = {
    "goes-abi": goes_abi_samples,
    "nexrad-l2": nexrad_level2_samples,
    "hrrr": hrrr_samples,
}
RUNS_PER_MESSAGE_UNITS = 12
"""Enough for a rate; each costs a run's start."""
SAMPLE_SECONDS = 0.25


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
    ensure_installed(home / "fauxqs")
    say(f"making {units} objects of {dataset} ...")
    folder = home / "work" / f"{dataset}-{time.time_ns()}"
    bodies = _make_objects(folder / "objects", dataset, units)
    with environment({"KFM_OBJECT_ROOT": str((folder / "objects").absolute())}):
        say(f"draining a backlog of {units} messages by sensor and daemon ...")
        drained = _drain(folder / "backlog", home / "fauxqs", bodies, {}, timeout_seconds, report)
        single = plain = None
        if run_per_message:
            few = bodies[:RUNS_PER_MESSAGE_UNITS]
            say(f"draining {len(few)} messages with one run each ...")
            settings = {"KFM_MAX_UNITS_PER_RUN": "1"}
            single = _drain(folder / "single", home / "fauxqs", few, settings, timeout_seconds, report)
        if floor:
            say("working the same messages in a plain loop ...")
            plain = _floor(folder / "floor", home / "fauxqs", bodies)
    return BenchResult(
        dataset=dataset,
        units=len(bodies),
        database=drained.database,
        units_per_second=len(bodies) / drained.seconds,
        cpu_ms_per_unit=drained.cpu_seconds / len(bodies) * 1000,
        wall_ms_per_unit_by_node=drained.by_node,
        peak_run_mib=drained.peak_run_mib,
        runs=drained.runs,
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
            # The pause between ticks is a choice of latency, not a cost.
            "KFM_SENSOR_INTERVAL_SECONDS": "1",
            **settings,
        }
        with environment(variables):
            pipeline = Pipeline.open(Settings.load())
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with Deployment(home, environment={}) as deployment, _MemoryWatch(deployment.pids) as watch:
                drain(deployment, pipeline, timeout_seconds=timeout_seconds, report=report)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            began, ended = ledger_span(pipeline.database)
            states = pipeline.stages.run_states.since(began)
            database = pipeline.database.dialect
            pipeline.close()
    return _Drained(
        seconds=(ended - began).total_seconds(),
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        by_node={node: seconds * 1000 / len(bodies) for (_, node), seconds in node_seconds(states).items()},
        peak_run_mib=watch.peak_mib,
        runs=len({state.run_id for state in states}),
        database=database,
    )


def _floor(home: Path, fauxqs: Path, bodies: Sequence[str]) -> float:
    """Return the units per second of a loop with no guarantees: receive, read headers, write Item and event, delete."""
    home.mkdir(parents=True)
    with FastQueue(fauxqs) as queue, environment(queue.environment()):
        queue.fill(bodies)
        registry, settings = ContractRegistry.load(), Settings.load()
        client = connect(settings)
        began = time.monotonic()
        done = 0
        with (home / "lineage.ndjson").open("ab") as lineage:
            while messages := client.receive(5000, budget_seconds=60):
                for message in messages:
                    for unit in parse_message(message, registry=registry, queue=client.name).envelopes:
                        item = _plain_item(unit, registry, settings.object_root or Path())
                        (home / f"{item['id']}.json").write_bytes(orjson.dumps(item, default=str))
                        lineage.write(orjson.dumps({"run": unit.wal_id, "output": item["id"]}) + b"\n")
                        done += 1
                client.delete([message.receipt_handle or "" for message in messages])
        return done / (time.monotonic() - began)


def _plain_item(unit: Envelope, registry: ContractRegistry, root: Path) -> dict[str, Any]:
    contract = registry[unit.dataset]
    match = registry.grammars[unit.dataset].match(unit.key)
    if match is None:
        raise ValueError(unit.key)
    path = root / unit.bucket / unit.key

    def sidecar(suffix: str) -> _FileSource | None:
        beside = path.with_name(path.name + suffix)
        return _FileSource(beside) if beside.is_file() else None

    request = ReadRequest(key=unit.key, groups=match.groups, source=_FileSource(path), sidecar=sidecar)
    header = READERS[contract.metadata_extract.reader](request)
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": match.item_id,
        "geometry": header.geometry,
        "bbox": header.bbox,
        "properties": dict(header.properties),
        "links": [],
        "assets": {"data": {"href": unit.object_uri}},
    }


class _FileSource:
    """A file read by range, as plainly as can be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def read(self, start: int, length: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)


class _MemoryWatch:
    """Samples the resident memory of the deployment's descendants that execute a run."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mib = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for pid in self._pids():
                for resident in _run_processes(pid):
                    self.peak_mib = max(self.peak_mib, resident / 2**20)


def _run_processes(pid: int) -> Iterator[int]:
    """Give the resident bytes of every descendant: the code server starts the runs."""
    try:
        for run in psutil.Process(pid).children(recursive=True):
            yield int(run.memory_info().rss)
    except psutil.Error:
        return


def _make_objects(root: Path, dataset: str, units: int) -> list[str]:
    """Write the objects below root, and return the SNS envelopes that announce them."""
    registry = ContractRegistry.load()
    bodies = []
    for number, (bucket, key, content) in enumerate(SAMPLES[dataset](DAY, units)):
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
