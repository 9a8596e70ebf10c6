"""The catalog at scale: many Items, the GeoParquet that follows, and a search.

    python -m benchmarks.catalog --items 1000000 [--database postgresql] [--stac-api] [--json]

Items are NEXRAD volumes of every site, 40,000 a day, as many as in the archive. With `--stac-api` pgstac follows, too.
Belongs here: registering Items, and its figures. Does not belong here: how a unit becomes an Item (`backlog.py`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import click
from typing_extensions import override

from benchmarks.command import in_one_line
from benchmarks.databases import KINDS, bench_database
from benchmarks.postgis import lacking, postgis_server, stac_api_database
from benchmarks.report import calibration_ms
from kfm_dagster.catalog.changes import Follower
from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.index import Places
from kfm_dagster.catalog.item import Candidate
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, Metadata
from kfm_dagster.contracts.identity import rfc3339, wal_id
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.validation import figure
from kfm_dagster.followers.geoparquet.follower import GeoParquet
from kfm_dagster.followers.geoparquet.search import SearchCriteria, search
from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.operators.stac_register import stac_register
from kfm_dagster.readers.nexrad_radar import Site, sites
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster.storage.publisher import FolderPublisher

DATASET = "nexrad-l2"
A_DAY = 40_000
"""Volumes of the archive in a day (shared/data/README.md)."""
FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)
BATCH = 1_000
ENDS = 10
"""Batches in the first rate, and in the last rate."""
KANSAS = (-102.1, 36.9, -94.6, 40.1)
SEARCHES = 5


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Figures. CPU is that of this process.

    `few_items_...` are figures of ten more Items at the end, and rates with `followed` include all followers. The
    calibrations show the machine's speed at the beginning and at the end; if they differ, the first and the last rate
    are not comparable.
    """

    items: int
    database: str
    stac_api: bool
    first_per_second: float
    last_per_second: float
    first_followed_per_second: float
    last_followed_per_second: float
    first_calibration_ms: float
    last_calibration_ms: float
    follow_cpu_ms_per_item: float
    few_items_seconds: float
    few_items_bytes: int
    largest_json_bytes: int
    parquet_files: int
    parquet_bytes_per_item: float
    found: int
    search_ms: float
    search_share_of_bytes: float


class CountingFolder(FolderPublisher):
    """A catalog in a folder that counts the bytes read from its Parquet files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_bytes = 0

    @override
    def open(self, path: str, *, size: int) -> BinaryIO:
        file = super().open(path, size=size)
        file.read = partial(self._count, file.read)  # type: ignore[method-assign]
        return file

    def _count(self, read: Any, count: int = -1) -> bytes:
        content: bytes = read(count)
        self.read_bytes += len(content)
        return content


def volumes(registry: ContractRegistry, first: int, count: int) -> list[Candidate]:
    """Return the Items of volumes by number, as stac-register makes them."""
    contract, grammar, known = registry[DATASET], registry.grammars[DATASET], sorted(sites().items())
    return [
        stac_register(_volume(number, *known[number % len(known)]), contract=contract, grammar=grammar)
        for number in range(first, first + count)
    ]


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """Seconds per Item of each batch (registered, followed), and CPU seconds of all following.

    `calibrations`: milliseconds of the calibration after each batch.
    """

    registered: Sequence[float]
    followed: Sequence[float]
    calibrations: Sequence[float]
    follow_cpu: float


def measure(folder: Path, items: int, *, database: str, stac_api: bool) -> Scale:
    """Register and follow Items, then search them. Raises KfmError with one line."""
    registry, publisher = ContractRegistry.load(), CountingFolder(folder / "catalog")
    folder.mkdir(parents=True)
    with ExitStack() as around:
        served = around.enter_context(bench_database(database, folder / "database"))
        opened = Database.open(served.variables.get("KFM_WAL_DSN", f"sqlite:///{folder / 'kfm.db'}"))
        around.callback(opened.dispose)
        catalog = Catalog(opened, publisher, registry, places=Places(geoparquet=True))
        following = FollowerRunner(opened, registry, publisher, clock=lambda: datetime.now(UTC))
        followers: list[Follower] = [GeoParquet(publisher)]
        if stac_api:
            api = around.enter_context(stac_api_database(around.enter_context(postgis_server())))
            followers.append(PgstacFollower(StacApiDatabase(api), publisher))
        taken = _register(catalog, following, followers, registry, items)
        few_more = volumes(registry, items, 10)
        before, began = _parquet(folder), time.monotonic()
        catalog.register(few_more, fence=open_fence)
        following.catch_up(followers)
        few = time.monotonic() - began
    after = _parquet(folder)
    found, seconds, share = _search(publisher, sum(after.values()))
    together = [sum(pair) for pair in zip(taken.registered, taken.followed, strict=True)]
    return Scale(
        items=items,
        database=database,
        stac_api=stac_api,
        first_per_second=_rate(taken.registered[:ENDS]),
        last_per_second=_rate(taken.registered[-ENDS:]),
        first_followed_per_second=_rate(together[:ENDS]),
        last_followed_per_second=_rate(together[-ENDS:]),
        first_calibration_ms=median(taken.calibrations[:ENDS]),
        last_calibration_ms=median(taken.calibrations[-ENDS:]),
        follow_cpu_ms_per_item=taken.follow_cpu / items * 1000,
        few_items_seconds=few,
        few_items_bytes=sum(size for path, size in after.items() if path not in before),
        largest_json_bytes=max(path.stat().st_size for path in (folder / "catalog").rglob("*.json")),
        parquet_files=len(after),
        parquet_bytes_per_item=sum(after.values()) / (items + 10),
        found=found,
        search_ms=seconds * 1000,
        search_share_of_bytes=share,
    )


def _register(
    catalog: Catalog, following: FollowerRunner, followers: Sequence[Follower], registry: ContractRegistry, items: int
) -> _Taken:
    """Register all Items in batches, and update the followers after each batch."""
    registered, followed, calibrations, cpu = list[float](), list[float](), list[float](), 0.0
    for number in range(0, items, BATCH):
        batch = volumes(registry, number, min(BATCH, items - number))
        began = time.monotonic()
        catalog.register(batch, fence=open_fence)
        done, cpu_before = time.monotonic(), time.process_time()
        following.catch_up(followers)
        cpu += time.process_time() - cpu_before
        registered.append((done - began) / len(batch))
        followed.append((time.monotonic() - done) / len(batch))
        calibrations.append(calibration_ms())
    return _Taken(registered=registered, followed=followed, calibrations=calibrations, follow_cpu=cpu)


def _rate(seconds: Sequence[float]) -> float:
    return len(seconds) / sum(seconds)


def _search(publisher: CountingFolder, whole: int) -> tuple[int, float, float]:
    """Search a day's Items over Kansas; return number, median seconds, share of bytes read."""
    criteria = SearchCriteria(start=FIRST_DAY, end=FIRST_DAY + timedelta(hours=24, microseconds=-1), bbox=KANSAS)
    seconds = []
    for _ in range(SEARCHES):
        publisher.read_bytes, began = 0, time.monotonic()
        items = sum(table.num_rows for _, table in search(publisher, [DATASET], criteria))
        seconds.append(time.monotonic() - began)
    return items, median(seconds), publisher.read_bytes / whole


def _parquet(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (folder / "catalog").rglob("*.parquet")}


def _volume(number: int, identifier: str, site: Site) -> Envelope:
    start = FIRST_DAY + timedelta(days=1) * (number / A_DAY)
    start = start.replace(microsecond=0)
    key = f"{start:%Y/%m/%d}/{identifier}/{identifier}{start:%Y%m%d_%H%M%S}_V06"
    uri = f"s3://unidata-nexrad-level2/{key}"
    west, south, east, north = _reach(site)
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    etag = f"{number:032x}"
    end = start + timedelta(minutes=5)
    return Envelope(
        wal_id=wal_id(dataset=DATASET, object_uri=uri, time_range_start=start, object_version=etag),
        dataset=DATASET,
        object_uri=uri,
        provider="aws",
        queue="bench",
        event_time=end,
        time_range_start=start,
        time_range_end=end,
        schema_version="2.1",
        object_version=etag,
        object_size=4_000_000 + number,
        integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=4_000_000 + number, actual_etag=etag),
        metadata=Metadata(
            status=CheckStatus.OK,
            geometry={"type": "Polygon", "coordinates": [ring]},
            bbox=(west, south, east, north),
            stac_properties={
                "datetime": rfc3339(start),
                "start_datetime": rfc3339(start),
                "end_datetime": rfc3339(end),
                "platform": "wsr-88d",
                "instruments": ["nexrad"],
                "nexrad:site": identifier,
                "nexrad:vcp": 212 if number % 3 else 35,
                "processing:level": "L2",
            },
        ),
    )


def _reach(site: Site) -> tuple[float, float, float, float]:
    """Return the box of a radar's range of 460 km, in degrees, cut at the antimeridian."""
    west, east = max(-180.0, site.longitude - 5.0), min(180.0, site.longitude + 5.0)
    return west, site.latitude - 4.1, east, site.latitude + 4.1


def figures(scale: Scale) -> Iterator[dict[str, str]]:
    """Return the figures as rows of a table."""
    for name, value in asdict(scale).items():
        yield {"figure": name, "value": figure(value)}


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--items",
    default=100_000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Number of Items to register.",
)
@click.option(
    "--database", type=click.Choice(KINDS), default="sqlite", show_default=True, help="Database of the index."
)
@click.option("--stac-api", is_flag=True, help="Have pgstac follow, too; needs Debian's PostgreSQL with PostGIS.")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), default=Path(".kfm/bench"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(*, items: int, database: str, stac_api: bool, home: Path, as_json: bool) -> None:
    """Register many Items, follow them with GeoParquet, search them, and print the figures.

    Example: python -m benchmarks.catalog --items 100000
    """
    refuse_unwritable_home(home)
    if stac_api and (reason := lacking()) is not None:
        raise ConfigurationError("the benchmark needs a server", observed=reason)
    scale = measure(home / f"catalog-{time.time_ns()}", items, database=database, stac_api=stac_api)
    if as_json:
        click.echo(json.dumps(asdict(scale)))
        return
    show_rows(list(figures(scale)), ("figure", "value"))


if __name__ == "__main__":
    sys.exit(in_one_line("catalog", main))
