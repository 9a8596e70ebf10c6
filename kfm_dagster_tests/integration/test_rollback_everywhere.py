"""What follows the catalog follows its runs: Items are announced, and a run that is taken back leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pystac
import pytest

from benchmarks.stac_api_server import stac_api_server
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.errors import KfmError
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.ingest.chain import roll_back
from kfm_dagster.ingest.nodes import Settle
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.outbox import LONGEST_PAUSE
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.followers.announcements.changes import subscribed
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server
from kfm_dagster_tests.followers.geoparquet.test_geoparquet import published
from kfm_dagster_tests.followers.stac_api.api import Api
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import StoredObject, deliver, good, put, run_chain, run_pending, volumes

GOES, GOES_DAY = "goes-abi", "2025-06-01"


def scan(minute: int) -> StoredObject:
    start = datetime(2025, 6, 1, 12, minute, tzinfo=UTC)
    return good("noaa-goes19", *make_goes_abi(product="ABI-L1b-RadM1", start=start, satellite=19, band=13))


@pytest.fixture
def server() -> Iterator[WebServer]:
    with open_web_server() as opened:
        yield opened


@pytest.fixture
def api_server(stac_api_url: str) -> Iterator[str]:
    """A STAC API over the database."""
    with stac_api_server(stac_api_url) as url:
        yield url


def shown(pipeline: Pipeline, place: Path, stac_api_url: str) -> dict[str, Any]:
    """What readers find in each place; the name of a virtual store's document is the hash of what it says."""
    root = Path(pipeline.settings.catalog)
    [follower] = [one for one in pipeline.followers if isinstance(one, PgstacFollower)]
    api = Api(stac_api_url, pipeline.database, root, follower)
    stores = json.loads((place / GOES / "2025" / GOES_DAY / "stores.json").read_bytes())["stores"]
    return {
        "tree": trees.files(root),
        "geoparquet": published(FolderPublisher(root)),
        "stac_api": sorted(map(str, api.searched(collections=[GOES]))),
        "virtual": stores,
    }


def found_by_clients(root: Path, place: Path, api: str) -> dict[str, list[str]]:
    """What people's clients find: ids of Items, and of the virtual store the times of its scans."""
    import xarray
    from pystac_client import Client

    folder = place / GOES / "2025" / GOES_DAY
    [store] = json.loads((folder / "stores.json").read_bytes())["stores"]
    options = {"fo": str(folder / store["href"]), "remote_protocol": "file"}
    with xarray.open_dataset("reference://", engine="zarr", storage_options=options) as scans:
        times = [str(time) for time in scans["t"].values]
    files = root / GOES / "items" / "*" / "*.parquet"
    rows = duckdb.read_parquet(str(files), union_by_name=True).project("id").fetchall()
    return {
        "pystac": sorted(
            item.id for item in pystac.Catalog.from_file(str(root / "catalog.json")).get_items(recursive=True)
        ),
        "duckdb": sorted(name for (name,) in rows),
        "pystac_client": sorted(item.id for item in Client.open(api).search(collections=[GOES]).items()),
        "xarray": times,
    }


@pytest.mark.one_database
@pytest.mark.clause("OPR-10", "OPR-22", "OPR-23", "PCS-03")
def test_a_run_that_is_taken_back_leaves_no_place_otherwise_than_it_found_it(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    stac_api_url: str,
    api_server: str,
    server: WebServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "virtual"
    configs = subscribed(tmp_path / "configs", f'webhook: "{server.url()}"')
    pipeline = make_pipeline(geoparquet=True, virtual_url=str(place), stac_api_dsn=stac_api_url, configs_dir=configs)
    put(objects, [scan(0)])
    run_chain(pipeline, GOES, GOES_DAY, "first")
    root = Path(pipeline.settings.catalog)
    before, alone = shown(pipeline, place, stac_api_url), found_by_clients(root, place, api_server)
    assert {name: len(found) for name, found in alone.items()} == dict.fromkeys(alone, 1)

    def fails(*_: object) -> None:
        raise KfmError("injected")

    put(objects, [scan(1), scan(2)])
    with monkeypatch.context() as patched:
        patched.setattr(Settle, "transform", fails)
        with pytest.raises(StageFailedError) as failed:
            run_chain(pipeline, GOES, GOES_DAY, "second")
    # A tick between the failure and the rollback shows them everywhere, as the tree does.
    pipeline.following.catch_up(pipeline.followers)
    between = shown(pipeline, place, stac_api_url)
    assert all(between[name] != before[name] for name in before)
    together = found_by_clients(root, place, api_server)
    assert {name: len(found) for name, found in together.items()} == dict.fromkeys(alone, 3)
    settle = Settle(pipeline=pipeline, dataset=GOES, partition=GOES_DAY, run_id="second")
    assert roll_back(settle, failed.value) is not None
    pipeline.following.catch_up(pipeline.followers)

    assert shown(pipeline, place, stac_api_url) == before
    assert found_by_clients(root, place, api_server) == alone
    events = [json.loads(body) for *_, body in server.asked]
    kinds = [event["type"].rpartition(".")[2] for event in events]
    assert kinds == ["created", "created", "created", "withdrawn", "withdrawn"]
    assert {event["subject"] for event in events[1:3]} == {event["subject"] for event in events[3:]}
    assert {one.last_error for one in pipeline.following.states()} == {None}


@pytest.mark.clause("OPR-22")
def test_a_dead_receiver_costs_no_unit(pipeline: Pipeline, server: WebServer, tmp_path: Path) -> None:
    configs = subscribed(tmp_path / "configs", f'webhook: "{server.url()}"')
    pipeline.settings = pipeline.settings.model_copy(update={"configs_dir": configs})
    server.answers = lambda _: WebAnswer(status=503)
    deliver(pipeline, *volumes(2))
    run_pending(pipeline, "run")
    assert set(traces.statuses(pipeline)) == {Status.SUCCEEDED}
    [place] = pipeline.following.states()
    assert (place.follower, place.behind, place.failures) == ("announcements.one", 2, 1)
    server.answers, asked = (lambda _: WebAnswer()), len(server.asked)
    pipeline.clock.forward(LONGEST_PAUSE.total_seconds())
    pipeline.following.catch_up(pipeline.followers)
    assert len({json.loads(body)["id"] for *_, body in server.asked[asked:]}) == 2
    assert {(one.behind, one.last_error) for one in pipeline.following.states()} == {(0, None)}
