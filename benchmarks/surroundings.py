"""The surroundings of a measurement: place of objects, latencies, and database.

Belongs here: these choices and their servers. Does not belong here: their options (`command.py`), and the
measurements (`backlog.py`, `latency.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.collector import collecting
from benchmarks.databases import BenchDatabase, bench_database
from benchmarks.store import StoreServer


@dataclass(frozen=True, kw_only=True)
class Place:
    """The requested surroundings; without `store_latency_ms`, objects are in a folder.

    `all_remote`: artifacts, catalog and lineage are in the store, too. `real_size`: objects are as large as real ones.
    `traces`: the share of attempts that are traced; with 0 there is no collector.
    """

    database: str = "sqlite"
    store_latency_ms: float | None = None
    all_remote: bool = False
    queue_latency_ms: float = 0.0
    real_size: bool = False
    traces: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible combinations. Raises click.UsageError."""
        if self.all_remote and self.store_latency_ms is None:
            raise click.UsageError("--all-remote needs a store: set --store-latency-ms, too")

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> Place:
        """Take the values of `place_options` from a command's values, and build the place."""
        return cls(**{name: values.pop(name) for name in asdict(cls())})


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A place whose servers run; the store serves the folder `objects` (ROOT/bucket/key).

    `traces`: the variables by which a deployment sends its traces to the collector; empty without a collector.
    """

    place: Place
    objects: Path
    database: BenchDatabase
    store: StoreServer | None
    traces: Mapping[str, str]

    def variables(self) -> dict[str, str]:
        """Variables for the deployment, which name a folder of objects or a store, never both."""
        common = {**self.database.variables, **self.traces}
        if self.store is None:
            return {**common, "KFM_OBJECT_ROOT": str(self.objects.absolute())}
        os.environ.pop("KFM_OBJECT_ROOT", None)
        return {**common, **self.store.environment(all_remote=self.place.all_remote)}


@contextmanager
def surrounded(place: Place, objects: Path, folder: Path) -> Iterator[Surroundings]:
    """Run the servers of a place; a new database stores its data below `folder`."""
    latency = place.store_latency_ms
    with ExitStack() as stack:
        yield Surroundings(
            place=place,
            objects=objects,
            database=stack.enter_context(bench_database(place.database, folder)),
            store=None if latency is None else stack.enter_context(StoreServer(objects, latency_ms=latency)),
            traces=stack.enter_context(collecting(place.traces)) if place.traces else {},
        )
