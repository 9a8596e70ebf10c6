"""A search for a day returns exactly the Items that are valid on this day, by every interface."""

from __future__ import annotations

import gzip
import shutil
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import kfm_dagster as kfm
from benchmarks.stac_api_server import stac_api_server
from kfm_dagster.demo.samples import gfs, hrrr, mrms, nbm
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer
from kfm_dagster_tests.integration.chain import good, partitions_of, put, run_chain
from kfm_dagster_tests.transactions import own_tx

RUN = datetime(2025, 12, 30, 18, tzinfo=UTC)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
VALID_ON = {
    "2025-12-29": "",
    "2025-12-30": "analysis quarters window",
    "2025-12-31": "lead-06 quarters window accumulation mosaic",
    "2026-01-01": "lead-48 accumulation",
    "2026-01-02": "",
    "2026-01-07": "lead-186",
}
"""The Items valid on each day. Runs are of December 30; the 15-minute and 6-hour windows end at midnight."""


def objects_by_name() -> dict[str, tuple[str, str, bytes, str | None]]:
    """Return dataset, key, content and index of objects by name; four have no index."""
    accumulation, (_, packed) = "RadarOnly_QPE_24H_00.00", mrms.make_mrms(valid=NEW_YEAR)
    # The first bytes of section 4 with the parameter of a rate (1) and of an accumulation (6).
    rate, summed = (struct.pack(">IBHHBB", 34, 4, 0, 0, 6, number) for number in (1, 6))
    packed = gzip.compress(gzip.decompress(packed).replace(rate, summed), mtime=0)
    return {
        "analysis": ("hrrr", *hrrr.make_hrrr(run=RUN, lead=0)),
        "lead-06": ("hrrr", *hrrr.make_hrrr(run=RUN, lead=6)),
        "lead-48": ("hrrr", *hrrr.make_hrrr(run=RUN, lead=48, product="prs", region="alaska")[:2], None),
        "quarters": ("hrrr", *hrrr.make_hrrr(run=RUN, lead=6, product="subh")),
        "lead-186": ("gfs", *gfs.make_gfs(run=RUN, lead=186)[:2], None),
        "window": ("nbm", *nbm.make_nbm(run=RUN, lead=6, product="qmd")),
        "accumulation": (
            "mrms",
            f"CONUS/{accumulation}/{NEW_YEAR:%Y%m%d}/MRMS_{accumulation}_{NEW_YEAR:%Y%m%d-%H%M%S}.grib2.gz",
            packed,
            None,
        ),
        "mosaic": ("mrms", *mrms.make_mrms(valid=NEW_YEAR - timedelta(seconds=81)), None),
    }


def served(folder: Path, request: WebRequest) -> WebAnswer:
    """Answer with a file of a folder."""
    file = folder / request.path.lstrip("/")
    return WebAnswer(body=file.read_bytes()) if file.is_file() else WebAnswer(status=404)


@pytest.mark.clause("OPR-24", "BEY-19")
def test_a_search_for_a_day_returns_exactly_the_items_valid_on_this_day(
    make_pipeline: Callable[..., Pipeline],
    database_url: str,
    objects: Path,
    stac_api_url: str,
    web_server: WebServer,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pystac_client import Client  # imported here because its jsonschema costs seconds in every worker

    pipeline = make_pipeline(url=database_url, geoparquet=True, stac_api_dsn=stac_api_url)
    pipeline.clock.forward(86_400)
    ids: dict[str, str] = {}
    for name, (dataset, key, content, index) in objects_by_name().items():
        bucket = pipeline.registry[dataset].storage.buckets[0]
        put(objects, [good(bucket, key, content), *([good(bucket, f"{key}.idx", index.encode())] if index else [])])
        ids[pipeline.registry.grammars[dataset].match(key).item_id] = name
    for dataset, partition in partitions_of(objects, pipeline.registry):
        run_chain(pipeline, dataset, partition, f"{dataset}-{partition}")
    # The Item's id and folder follow the run's time.
    assert {unit.time_range_start for unit in own_tx(pipeline.ledger).find(dataset="hrrr")} == {RUN}
    items = Path(pipeline.settings.catalog).glob("hrrr/**/hrrr.*.json")
    assert {f"{RUN:%Y-%m-%d}" in path.as_posix() for path in items} == {True}
    pipeline.following.catch_up(pipeline.followers, within=60)
    monkeypatch.setenv("KFM_HOME", str(pipeline.settings.home))
    files = tmp_path / "files"
    shutil.copytree(pipeline.settings.catalog, files, ignore=shutil.ignore_patterns("items"))
    web_server.answers = partial(served, files)
    interfaces = ("items search", "STAC API", "GeoParquet", "files", "web")
    results: dict[str, dict[str, set[str]]] = {interface: {} for interface in interfaces}
    with stac_api_server(stac_api_url) as url:
        client = Client.open(url)
        for day in VALID_ON:
            rows = call("items", "search", "--time", day, "--json").rows
            results["items search"][day] = {ids[str(row["id"])] for row in rows}
            for interface, catalog in {"GeoParquet": None, "files": str(files), "web": web_server.url("")}.items():
                results[interface][day] = {ids[item.id] for item in kfm.search(time=day, catalog=catalog)}
            results["STAC API"][day] = {ids[item["id"]] for item in client.search(datetime=day).items_as_dicts()}
    expected = {day: set(names.split()) for day, names in VALID_ON.items()}
    assert results == dict.fromkeys(results, expected)
