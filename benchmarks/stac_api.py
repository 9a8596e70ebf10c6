"""Loading a STAC API: by the follower and by pypgstac, and the search times during a load.

    python -m benchmarks.stac_api --items 10000 [--json]

Items of one collection are loaded into empty databases by `pypgstac load` and by the catalog's follower, in the
follower's batches. Then the follower loads a second day while a client searches through stac-fastapi-pgstac.
Belongs here: that comparison. Does not belong here: the ingest of Items (`backlog.py`).
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
import orjson
from sqlalchemy.engine import make_url

from benchmarks.command import in_one_line
from benchmarks.postgis import lacking, postgis_server, stac_api_database
from benchmarks.stac_api_server import stac_api_server
from kfm_dagster.catalog import layout
from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.documents import collection_document
from kfm_dagster.catalog.following import BATCH
from kfm_dagster.catalog.index import Extent
from kfm_dagster.catalog.item import canonical, content_sha256
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.validation import figure
from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.followers.stac_api.rows import api_collection
from kfm_dagster.storage.publisher import FolderPublisher

DATASET = "goes-abi"
DAY = datetime(2025, 12, 3, tzinfo=UTC)
CORNERS = 40
"""Corners of a footprint, as many as a full disk of GOES has."""
IDLE_SECONDS = 10.0
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Found:
    """Items a second, and a client's search times before and during a load, in milliseconds."""

    items: int
    pypgstac_items_per_second: float
    follower_items_per_second: float
    share_of_pypgstac: float
    idle_searches: int
    idle_p95_ms: float
    loading_searches: int
    loading_p95_ms: float
    p95_ratio: float
    search_errors: int
    loading_items_per_second: float


def measure(items: int) -> Found:
    """Run the whole comparison. Raises ConfigurationError without a PostgreSQL with PostGIS."""
    if (reason := lacking()) is not None:
        raise ConfigurationError("the benchmark needs a server", observed=reason)
    contract = ContractRegistry.load()[DATASET]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kfm-stac-api-")))
        _write_collection(folder, contract)
        server = stack.enter_context(postgis_server(settings=("shared_buffers=512MB",)))
        raw = stack.enter_context(stac_api_database(server))
        ours = stack.enter_context(stac_api_database(server))
        by_pypgstac = items / _raw_load(raw, folder, contract, items)
        by_follower = items / _follow(ours, folder, items, 0)
        url = stack.enter_context(stac_api_server(ours))
        _search(url, 50)  # so that modules and plans are loaded before the measurement
        idle, errors = _search_while(url, _for_seconds(IDLE_SECONDS))
        workers = stack.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))
        workers.submit(int).result()
        load = workers.submit(_follow, ours, folder, items, 1)
        busy, more = _search_while(url, lambda: not load.done())
    return Found(
        items=items,
        pypgstac_items_per_second=by_pypgstac,
        follower_items_per_second=by_follower,
        share_of_pypgstac=by_follower / by_pypgstac,
        idle_searches=len(idle),
        idle_p95_ms=_p95(idle),
        loading_searches=len(busy),
        loading_p95_ms=_p95(busy),
        p95_ratio=_p95(busy) / _p95(idle),
        search_errors=errors + more,
        loading_items_per_second=items / load.result(),
    )


def _raw_load(database: str, folder: Path, contract: DatasetContract, items: int) -> float:
    """Load by pypgstac's own command and fastest repeatable method; return the Items' seconds."""
    path = layout.collection_path(contract.stac.collection)
    document = api_collection((folder / path).read_bytes(), contract)
    (folder / "collection.json").write_bytes(orjson.dumps(document))
    with (folder / "items.ndjson").open("wb") as file:
        for change in _changes(items, 0):
            file.write(canonical({**(change.item or {}), "links": []}) + b"\n")
    dsn = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
    began = 0.0
    for table, file_name in (("collections", "collection.json"), ("items", "items.ndjson")):
        began = time.monotonic()
        subprocess.run(  # noqa: S603, our own arguments
            [Path(sys.executable).parent / "pypgstac", "load", table, str(folder / file_name), "--dsn", dsn,
             "--method", "upsert"],
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return time.monotonic() - began


def _follow(database: str, folder: Path, items: int, day: int) -> float:
    """Load by the follower; return the seconds, without the time to make the Items."""
    follower = PgstacFollower(StacApiDatabase(database), FolderPublisher(folder))
    contract = ContractRegistry.load()[DATASET]
    changes = _changes(items, day)
    began = time.monotonic()
    for first in range(0, items, BATCH):
        follower.follow(contract, changes[first : first + BATCH])
    return time.monotonic() - began


def _changes(items: int, day: int) -> Sequence[ItemChange]:
    return [_change(number, DAY + timedelta(days=day), day * items + number + 1) for number in range(items)]


def _change(number: int, day: datetime, change_id: int) -> ItemChange:
    chance = random.Random(change_id)  # noqa: S311, the same Items each time
    start = day + timedelta(seconds=8.6 * (number % 10_000), milliseconds=number // 10_000)
    item_id = f"OR_ABI-L1b-RadM1-M6C13_G19_s{start:%Y%j%H%M%S}{change_id:08d}"
    item = _item(item_id, start, chance)
    partition = f"{day:%Y-%m-%d}"
    return ItemChange(
        change_id=change_id,
        item_id=item_id,
        partition=partition,
        kind=ChangeKind.CREATED,
        path=layout.item_path(DATASET, partition, item_id),
        content=canonical(item),
        content_sha256=content_sha256(item),
        changed_at=start,
    )


def _item(item_id: str, start: datetime, chance: random.Random) -> dict[str, Any]:
    west, south = chance.uniform(-130, -70), chance.uniform(-40, 40)
    turns = [2 * math.pi * corner / CORNERS for corner in range(CORNERS)]
    ring = [[round(west + 4 * math.cos(turn), 6), round(south + 4 * math.sin(turn), 6)] for turn in turns]
    key = f"ABI-L1b-RadM/{start:%Y/%j/%H}/{item_id}.nc"
    moment = f"{start:%Y-%m-%dT%H:%M:%S}Z"
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": ["https://stac-extensions.github.io/file/v2.1.0/schema.json"],
        "id": item_id,
        "collection": DATASET,
        "geometry": {"type": "Polygon", "coordinates": [[*ring, ring[0]]]},
        "bbox": [west - 4, south - 4, west + 4, south + 4],
        "properties": {
            "datetime": moment,
            "start_datetime": moment,
            "end_datetime": f"{start + timedelta(seconds=3):%Y-%m-%dT%H:%M:%S}Z",
            "platform": "goes-19",
            "instruments": ["abi"],
            "goes:product": "ABI-L1b-RadM",
            "goes:image-type": "Mesoscale",
            "processing:level": "L1b",
            "proj:code": None,
            "proj:shape": [500, 500],
            "proj:transform": [2004.0, 0.0, -3627271.3, 0.0, -2004.0, 4589199.8],
            "kfm:wal_id": "00000000-0000-8000-8000-000000000000",
            "kfm:dataset": DATASET,
            "kfm:integrity": "ok",
        },
        "links": layout.item_links(),
        "assets": {
            "data": {
                "href": f"s3://noaa-goes19/{key}",
                "title": "NetCDF-4 object",
                "type": "application/x-netcdf",
                "roles": ["data"],
                "file:size": chance.randrange(10**5, 10**7),
                "alternate": {"https": {"href": f"https://noaa-goes19.s3.us-east-1.amazonaws.com/{key}"}},
            }
        },
    }


def _write_collection(folder: Path, contract: DatasetContract) -> None:
    extent = Extent(bbox=(-134.0, -44.0, -66.0, 44.0), start="2025-12-03T00:00:00Z", end="2025-12-05T00:00:00Z")
    summaries = {"goes:product": ["ABI-L1b-RadM"], "platform": ["goes-19"]}
    path = folder / layout.collection_path(contract.stac.collection)
    path.parent.mkdir(parents=True)
    path.write_bytes(canonical(collection_document(contract, extent=extent, summaries=summaries, years=["2025"])))


def _for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _search_while(url: str, going_on: Callable[[], bool]) -> tuple[list[float], int]:
    """Search in sequence; return the milliseconds of each search, and the number of failures."""
    taken: list[float] = []
    errors = 0
    for question in _questions():
        if not going_on():
            return taken, errors
        began = time.monotonic()
        try:
            with urllib.request.urlopen(f"{url}/search?{question}", timeout=30) as answer:  # noqa: S310, our own
                errors += json.load(answer)["type"] != "FeatureCollection"
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            errors += 1
        taken.append((time.monotonic() - began) * 1000)
    raise AssertionError("the queries never end")


def _search(url: str, times: int) -> None:
    left = iter(range(times))
    _search_while(url, lambda: next(left, None) is not None)


def _questions() -> Iterator[str]:
    """Yield queries of five degrees and two hours of the first day; each matches some Items."""
    chance = random.Random(SEED)  # noqa: S311, the same questions each time
    while True:
        west, south = chance.uniform(-130, -75), chance.uniform(-40, 35)
        start = DAY + timedelta(hours=chance.uniform(0, 22))
        yield urllib.parse.urlencode(
            {
                "collections": DATASET,
                "bbox": f"{west},{south},{west + 5},{south + 5}",
                "datetime": f"{start:%Y-%m-%dT%H:%M:%SZ}/{start + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}",
                "limit": 20,
            }
        )


def _p95(taken: Sequence[float]) -> float:
    return quantiles(taken, n=20)[-1]


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--items", default=10_000, show_default=True, type=click.IntRange(1000, 1_000_000), help="Items of each load."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(*, items: int, as_json: bool) -> None:
    """Fill a STAC API, and print the rate and the search times meanwhile.

    Example: python -m benchmarks.stac_api --items 10000
    """
    figures = asdict(measure(items))
    if as_json:
        click.echo(json.dumps(figures))
        return
    show_rows([{"figure": name, "value": figure(value)} for name, value in figures.items()], ("figure", "value"))


if __name__ == "__main__":
    sys.exit(in_one_line("stac_api", main))
