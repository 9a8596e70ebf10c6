"""The API's database: installed by one role, filled by another, and read back equal."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pystac
import pytest
from hydraters import hydrate
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.stac_api_server import stac_api_server
from kfm_dagster.catalog.changes import FollowError
from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.followers.stac_api.rows import answered_item, as_floats, kept_content, stage_line
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests import databases
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.envelopes import DAY, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.followers.changes import change
from kfm_dagster_tests.followers.stac_api.api import Api
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database


@pytest.fixture
def empty_url(postgis_server: str) -> Iterator[str]:
    with databases.created(postgis_server) as url:
        yield url


@pytest.fixture
def ingesting_role(postgis_server: str) -> Iterator[str]:
    """A role with only the rights that docs/stac-api.md lists."""
    name = f"kfm_ingest_{secrets.token_hex(4)}"
    databases.execute(postgis_server, f"CREATE ROLE {name} LOGIN IN ROLE pgstac_ingest")
    yield name
    databases.drop_role(postgis_server, name)


def test_installing_twice_changes_nothing(empty_url: str) -> None:
    first = StacApiDatabase(empty_url).install()
    assert first["pgstac"].startswith("0.10.")
    assert StacApiDatabase(empty_url).install() == first


def test_if_pgstac_is_missing_and_cannot_be_installed_the_error_has_the_next_step(
    empty_url: str, root: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypgstac.db", None)
    with pytest.raises(ConfigurationError, match=r"kfm-dagster\[stac-api\]"):
        StacApiDatabase(empty_url).install()
    with pytest.raises(DatabaseUnavailableError, match="KFM_STAC_API_DSN"):
        StacApiDatabase("postgresql+psycopg2://kfm@127.0.0.1:1/stac").install()
    with pytest.raises(FollowError, match="kfm init"):
        PgstacFollower(StacApiDatabase(empty_url), FolderPublisher(root)).forget(contracts["goes-abi"])


@pytest.mark.clause("OPR-23")
def test_a_member_of_pgstac_ingest_can_fill_update_rebuild_and_empty_the_api(
    stac_api_url: str,
    ingesting_role: str,
    catalog: Catalog,
    following: FollowerRunner,
    contracts: ContractRegistry,
    api: Api,
    root: Path,
    write: Callable[..., None],
) -> None:
    follower = PgstacFollower(StacApiDatabase(databases.as_role(stac_api_url, ingesting_role)), FolderPublisher(root))
    for run_id, envelope in (("first", goes(0)), ("second", goes(0, created=1, platform="goes-1"))):
        write(run_id, envelope)
        assert following.catch_up([follower]) == 1
    assert following.rebuild(follower, contracts["goes-abi"]) == 2
    assert api.item_ids() == api.catalog_ids()
    api.ask("SELECT update_partition_stats(partition) FROM partition_stats")
    write("third", goes(1))
    assert following.catch_up([follower]) == 1
    for run_id in ("third", "second", "first"):
        own_tx(catalog).undo("goes-abi", run_id)
    following.catch_up([follower])
    assert api.ask("SELECT id FROM collections") == []


TEXTS = st.sampled_from(["", "a", "b"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | TEXTS
KWARGS = st.fixed_dictionaries(
    {}, optional={"engine": SCALARS, "group": SCALARS, "backend_kwargs": st.dictionaries(TEXTS, SCALARS, max_size=2)}
)
# Members of assets have these types in contracts; the API's library requires the same type in Collection and Item.
ASSET = st.fixed_dictionaries(
    {}, optional={"title": SCALARS, "type": SCALARS, "roles": st.lists(TEXTS, max_size=2), "xarray:open_kwargs": KWARGS}
)
ASSETS = st.dictionaries(st.sampled_from(["data", "index", "thumbnail"]), ASSET, max_size=3)
PROPERTIES = st.dictionaries(st.sampled_from(["proj:code", "x"]), SCALARS | st.lists(SCALARS, max_size=2) | KWARGS)
GEOMETRIES = st.sampled_from([None, {"type": "Point", "coordinates": [-105.0, 39.5]}])


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": "x",
        "collection": "c",
        "geometry": draw(GEOMETRIES),
        "properties": {"datetime": "2025-12-03T00:00:00Z", **draw(PROPERTIES)},
        "links": [],
        "assets": draw(ASSETS),
    }


@given(item=items(), base=st.none() | ASSETS, number=st.none() | st.integers(1, 9))
def test_an_item_is_read_back_equal_for_any_collection(
    item: dict[str, Any], base: dict[str, Any] | None, number: int | None
) -> None:
    common = {"type": "Feature", "stac_version": "1.1.0", "collection": "c", "assets": base}
    content = kept_content(item, common, number)
    assert content.get("pgstac:base_item") == number
    # pgstac's content_nonhydrated composes an answer in this order: columns, then content, then the base item.
    answer = {
        "id": item["id"],
        "geometry": item["geometry"],
        "collection": item["collection"],
        "type": "Feature",
        **content,
        "pgstac:base_item": common,
    }
    answer = orjson.loads(orjson.dumps(answer))
    assert answered_item(answer) == item
    # stac-fastapi-pgstac merges the base item into the answer in this way.
    shared = {name: value for name, value in answer.pop("pgstac:base_item").items() if value is not None}
    assert hydrate(shared, answer, strip_unmatched_markers=True) == item


def test_an_item_is_found_by_its_time_range_or_by_its_datetime() -> None:
    for times, columns in (
        ({"datetime": "b"}, ["b", "b"]),
        ({"datetime": "b", "start_datetime": "a", "end_datetime": "c"}, ["a", "c"]),
        ({"datetime": None, "start_datetime": "a", "end_datetime": "c"}, ["a", "c"]),
    ):
        item = {"id": "x", "collection": "c", "geometry": None, "properties": times, "links": [], "assets": {}}
        cells = stage_line(change(7, item, day="2025-12-03"), {}, None).removesuffix("\n").split("\t")
        assert (cells[:3], cells[3:5]) == (["x", "7", "\\N"], columns)


def test_numbers_are_compared_as_floats_and_values_of_other_types_as_they_are() -> None:
    for value, same in (([1, 2.5], [1.0, 2.5]), ({"a": [True, None, 3]}, {"a": [True, None, 3.0]}), ("1", "1")):
        assert orjson.dumps(as_floats(value)) == orjson.dumps(same)


WEST = (-140.0, 20.0, -120.0, 50.0)
EAST = (-80.0, 20.0, -60.0, 50.0)
SCANS = 130
"""More Items than one page of the API has."""


def without_links(item: dict[str, Any]) -> dict[str, Any]:
    """Return an Item without the fields that differ between file and API."""
    return {name: value for name, value in item.items() if name != "links"}


def times(item: dict[str, Any]) -> tuple[datetime, datetime]:
    properties = item["properties"]
    texts = (properties.get(name) or properties["datetime"] for name in ("start_datetime", "end_datetime"))
    first, last = (datetime.fromisoformat(text) for text in texts)
    return first, last


@pytest.mark.clause("OPR-23")
def test_pystac_client_finds_exactly_the_catalogs_items(
    catalog: Catalog,
    following: FollowerRunner,
    follower: PgstacFollower,
    api: Api,
    root: Path,
    write: Callable[..., None],
    stac_api_url: str,
) -> None:
    from pystac_client import Client  # imported here because its jsonschema costs seconds in every worker

    boxes = (WEST, EAST, (170.0, -10.0, -170.0, 10.0))
    write("scans", *(goes(number, bbox=boxes[number % 3], platform=f"goes-{number % 2}") for number in range(SCANS)))
    write("others", hrrr(), with_metadata(nexrad(), geometry=None, bbox=None))
    write("later", *(goes(number, day=DAY + timedelta(days=40), **{"proj:code": None}) for number in range(3)))
    following.catch_up([follower], within=60)
    with stac_api_server(stac_api_url) as url:
        client = Client.open(url)

        def ids_found(**search: Any) -> dict[str, dict[str, Any]]:
            answered = list(client.search(limit=50, **search).items_as_dicts())
            assert len({item["id"] for item in answered}) == len(answered)
            return {item["id"]: without_links(item) for item in answered}

        def items_where(*conditions: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, Any]]:
            items = [without_links(item) for item in trees.items(root)]
            return {item["id"]: item for item in items if all(condition(item) for condition in conditions)}

        whole = items_where()
        assert len(whole) == SCANS + 5
        assert ids_found() == whole
        assert ids_found(collections=["goes-abi"]) == items_where(lambda item: item["collection"] == "goes-abi")

        first, last = DAY + timedelta(seconds=100), DAY + timedelta(seconds=200)
        assert ids_found(datetime=[first, last]) == items_where(
            lambda item: times(item)[0] <= last and times(item)[1] >= first
        )
        east = items_where(lambda item: tuple(item.get("bbox", ())) in {EAST, (-113.1, 14.6, -52.9, 56.8)})
        assert ids_found(bbox=[-79, 21, -78, 22], collections=["goes-abi"]) == east
        assert ids_found(bbox=[-180, -90, 180, 90], collections=["nexrad-l2"]) == {}, "its Item has no geometry"
        assert len(ids_found(bbox=[175, -5, 176, 5])) == len(ids_found(bbox=[-176, -5, -175, 5])) == SCANS // 3

        equal = (("platform", "goes-1"), ("collection", "goes-abi"))
        cql = {"op": "and", "args": [{"op": "=", "args": [{"property": name}, value]} for name, value in equal]}
        assert ids_found(filter=cql) == items_where(lambda item: item["properties"].get("platform") == "goes-1") != {}
        in_words = {"method": "GET", "filter_lang": "cql2-text", "filter": "\"forecast:horizon\" = 'PT6H'"}
        assert ids_found(**in_words) == items_where(lambda item: item["collection"] == "hrrr") != {}
        [example] = client.search(ids=[next(iter(whole))]).items()
        assert isinstance(example, pystac.Item)
        assert {collection.id for collection in client.get_collections()} == {"goes-abi", "hrrr", "nexrad-l2"}

        own_tx(catalog).undo("goes-abi", "scans")
        following.catch_up([follower], within=60)
        assert ids_found() == items_where()
        assert len(items_where()) == 5
    # The API's Collection is that of the catalog, without the links between files.
    [row] = api.ask("SELECT content FROM collections WHERE id = 'goes-abi'")
    assert row.content == {**orjson.loads((root / "goes-abi/collection.json").read_bytes()), "links": []}
