"""The floor of the benchmark: plain loops with the same reads and writes, no guarantees.

    python -m benchmarks.floor HOME [--all-remote]

A process per core receives messages, reads headers, writes Item and event, and deletes the messages. From a folder it
reads one object after the other. From a store it has as many parallel reads as a run by default, because any simple
loop against S3 would read in parallel. Does not belong here: the deployment to compare with (`backlog.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import obstore
import orjson
from obstore.store import S3Store

from benchmarks.fast_queue import FastQueue
from benchmarks.store import OWN_BUCKET
from benchmarks.surroundings import Surroundings
from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.readers.base import READERS, ByteSource, ReadRequest
from kfm_dagster.settings import Settings, environment

MESSAGES = 200
"""Messages that a process receives at a time; few enough that every process gets some."""

Write = Callable[[str, bytes], None]
Sidecar = Callable[[str], ByteSource | None]


class Done(NamedTuple):
    """Result of a process: units, monotonic time of the last deletion, CPU seconds of its work."""

    units: int
    ended: float
    cpu_seconds: float


class Floor(NamedTuple):
    """The rate of all processes together, and the CPU per unit without queue and store."""

    per_second: float
    cpu_ms_per_unit: float


def floor_rate(
    home: Path,
    fauxqs: Path,
    bodies: Sequence[str],
    surroundings: Surroundings,
    *,
    python: str | Path = sys.executable,
    module: str = __name__,
) -> Floor:
    """Return rate and CPU of all processes, from the begin of their work to the last deletion.

    Another `module` must print and read the same lines on its standard streams.
    """
    home.mkdir(parents=True)
    command = [str(python), "-m", module, str(home)]
    command += ["--all-remote"] if surroundings.place.all_remote else []
    with (
        FastQueue(fauxqs, latency_ms=surroundings.place.queue_latency_ms) as queue,
        environment({**queue.environment(), **surroundings.variables()}),
        ExitStack() as stack,
    ):
        queue.fill(bodies)
        loops = [
            stack.enter_context(
                subprocess.Popen(  # noqa: S603, our own module
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(os.cpu_count() or 1)
        ]
        for loop in loops:
            _line(loop)  # ready: imports are not measured
        began = time.monotonic()
        for loop in loops:
            _stdin(loop)
        done = [_done(_line(loop)) for loop in loops]
    units = sum(result.units for result in done)
    if units != len(bodies):
        raise DependencyUnavailableError("the plain loops lost units", observed=units, expected=len(bodies))
    seconds = max(result.ended for result in done) - began
    return Floor(units / seconds, 1000 * sum(result.cpu_seconds for result in done) / units)


def _done(line: str) -> Done:
    units, ended, cpu_seconds = line.split()
    return Done(int(units), float(ended), float(cpu_seconds))


def print_done(done: Done) -> None:
    """Print a line for `floor_rate`; CPU counts from the line that started the work."""
    click.echo(f"{done.units} {done.ended} {done.cpu_seconds}")


def _line(loop: subprocess.Popen[str]) -> str:
    line = "" if loop.stdout is None else loop.stdout.readline()
    if not line:
        raise DependencyUnavailableError("a plain loop ended", observed=f"exit code {loop.wait()}")
    return line


def _stdin(loop: subprocess.Popen[str]) -> None:
    if loop.stdin is not None:
        loop.stdin.write("go\n")
        loop.stdin.flush()


def work(home: Path, *, all_remote: bool) -> Done:
    """Work until the queue is empty."""
    registry, settings = ContractRegistry.load(), Settings.load()
    client = connect(settings)
    done, ended, began = 0, time.monotonic(), time.process_time()
    write = writer(home, all_remote=all_remote)
    with (
        (home / f"lineage-{os.getpid()}.ndjson").open("ab") as lineage,
        ThreadPoolExecutor(threads_of(settings)) as readers,
    ):

        def ingest(unit: Envelope) -> tuple[str, str]:
            item = blocking_item(unit, registry, settings.object_root)
            write(f"{item['id']}.json", orjson.dumps(item, default=str))
            return unit.wal_id, item["id"]

        while messages := client.receive(MESSAGES, budget_seconds=60):
            units = [
                unit
                for message in messages
                for unit in parse_message(message, registry=registry, queue=client.name).envelopes
            ]
            for wal_id, item_id in readers.map(ingest, units):
                lineage.write(orjson.dumps({"run": wal_id, "output": item_id}) + b"\n")
            client.delete([message.receipt_handle or "" for message in messages])
            done, ended = done + len(units), time.monotonic()
    return Done(done, ended, time.process_time() - began)


def threads_of(settings: Settings) -> int:
    """Return the number of parallel reads of a process."""
    return settings.read_concurrency if settings.object_root is None else 1


def writer(home: Path, *, all_remote: bool) -> Write:
    """Return a function that writes an Item by its name, to the store or to a file."""
    if not all_remote:
        return lambda name, content: _write(home / name, content)
    return _put


def blocking_item(unit: Envelope, registry: ContractRegistry, root: Path | None) -> dict[str, Any]:
    """Read an object's headers and return its Item; each read waits for its answer."""
    source = source_of(root, unit.bucket, unit.key, size=unit.object_size)
    return plain_item(unit, registry, source, lambda suffix: _sidecar(root, unit.bucket, unit.key + suffix))


def plain_item(unit: Envelope, registry: ContractRegistry, source: ByteSource, sidecar: Sidecar) -> dict[str, Any]:
    """Read an object's headers and return an Item, in the simplest way."""
    contract = registry[unit.dataset]
    match = registry.grammars[unit.dataset].match(unit.key)
    if match is None:
        raise ValueError(unit.key)
    request = ReadRequest(key=unit.key, groups=match.groups, source=source, sidecar=sidecar)
    header = READERS[contract.metadata_extract.reader](request)
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": match.item_id,
        "geometry": header.geometry,
        "bbox": bounding_box(header.geometry),
        "properties": dict(header.properties),
        "links": [],
        "assets": {"data": {"href": unit.object_uri}},
    }


def source_of(root: Path | None, bucket: str, key: str, *, size: int | None) -> ByteSource:
    """Open an object; an unknown size is requested from the store. Raises FileNotFoundError."""
    return _StoreSource(bucket, key, size=size) if root is None else _FileSource(root / bucket / key)


def _sidecar(root: Path | None, bucket: str, key: str) -> ByteSource | None:
    try:
        return source_of(root, bucket, key, size=None)
    except FileNotFoundError:
        return None


class _FileSource:
    """A file read by range, in the simplest way. Raises FileNotFoundError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def read(self, start: int, length: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)


class _StoreSource:
    """An object of the store; an unknown size is requested. Raises FileNotFoundError."""

    def __init__(self, bucket: str, key: str, *, size: int | None) -> None:
        self._store, self._key = store_of(bucket), key
        self.size = obstore.head(self._store, key)["size"] if size is None else size

    def read(self, start: int, length: int) -> bytes:
        stop = min(start + length, self.size)
        return b"" if stop <= start else bytes(obstore.get_range(self._store, self._key, start=start, end=stop))


@cache
def store_of(name: str) -> S3Store:
    """Return the client of a bucket of the store."""
    return S3Store(name, endpoint=os.environ["AWS_ENDPOINT_URL_S3"], client_options={"allow_http": True})


def _put(name: str, content: bytes) -> None:
    obstore.put(store_of(OWN_BUCKET), f"floor/{name}", content)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@click.command()
@click.argument("home", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--all-remote", is_flag=True, help="Write Items to the store.")
def main(*, home: Path, all_remote: bool) -> None:
    """Print `ready`, wait for a line, process the queue, and print the result."""
    click.echo("ready")
    sys.stdin.readline()
    print_done(work(home, all_remote=all_remote))


if __name__ == "__main__":
    main()
