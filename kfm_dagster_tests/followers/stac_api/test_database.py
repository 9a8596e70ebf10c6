"""The API's database: set up by a role that may, filled by one that may less, and rows come out as they went in."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from hydraters import hydrate
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.followers.stac_api.rows import ABSENT, answered_item, as_floats, kept_content, stage_line
from kfm_dagster_tests import databases
from kfm_dagster_tests.catalog.envelopes import goes
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
    """A role that may do what docs/stac-api.md says is enough."""
    name = f"kfm_ingest_{secrets.token_hex(4)}"
    admin = sa.create_engine(postgis_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN IN ROLE pgstac_ingest")
    yield name
    admin.dispose()
    databases.drop_role(postgis_server, name)


def test_installing_twice_is_installing_once(empty_url: str) -> None:
    first = StacApiDatabase(empty_url).install()
    assert first["pgstac"].startswith("0.10.")
    assert StacApiDatabase(empty_url).install() == first


def test_who_cannot_install_is_told_what_to_do(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypgstac.db", None)
    with pytest.raises(ConfigurationError, match=r"kfm-dagster\[stac-api\]"):
        StacApiDatabase(empty_url).install()
    with pytest.raises(DatabaseUnavailableError, match="KFM_STAC_API_DSN"):
        StacApiDatabase("postgresql+psycopg2://kfm@127.0.0.1:1/stac").install()


@pytest.mark.clause("OPR-23")
def test_a_member_of_pgstac_ingest_fills_updates_empties_and_compares(
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
# A contract's assets have members of these types, in Collection and Items alike; the API's library wants them alike.
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
def test_an_item_comes_out_as_it_went_in_whatever_its_collection_has(
    item: dict[str, Any], base: dict[str, Any] | None, number: int | None
) -> None:
    common = {"type": "Feature", "stac_version": "1.1.0", "collection": "c", "assets": base}
    kept = kept_content(item, common, number)
    assert kept.get("pgstac:base_item") == number
    # As content_nonhydrated puts it together: columns, then content, then the base item itself.
    answer = {
        "id": item["id"],
        "geometry": item["geometry"],
        "collection": item["collection"],
        "type": "Feature",
        **kept,
        "pgstac:base_item": common,
    }
    answer = orjson.loads(orjson.dumps(answer))
    assert answered_item(answer) == item
    # As stac-fastapi-pgstac does.
    shared = {name: value for name, value in answer.pop("pgstac:base_item").items() if value is not None}
    assert hydrate(shared, answer, strip_unmatched_markers=True) == item


def test_an_item_is_found_by_its_range_and_else_by_its_time() -> None:
    for times, columns in (
        ({"datetime": "b"}, ["b", "b"]),
        ({"datetime": "b", "start_datetime": "a", "end_datetime": "c"}, ["a", "c"]),
        ({"datetime": None, "start_datetime": "a", "end_datetime": "c"}, ["a", "c"]),
    ):
        item = {"id": "x", "collection": "c", "geometry": None, "properties": times, "links": [], "assets": {}}
        cells = stage_line(change(7, item, day="2025-12-03"), {}, None).removesuffix("\n").split("\t")
        assert (cells[:3], cells[3:5]) == (["x", "7", "\\N"], columns)


def test_members_that_only_other_items_have_are_marked() -> None:
    item = {
        "id": "x", "collection": "c", "type": "Feature", "geometry": None, "links": [], "properties": {},
        "assets": {"data": {"href": "s3://b/k"}},
    }  # fmt: skip
    base = {"assets": {"data": {"title": "t"}, "index": {"type": "i"}}}
    assert kept_content(item, base, None)["assets"] == {
        "data": {"href": "s3://b/k", "title": ABSENT},
        "index": ABSENT,
    }


def test_numbers_are_compared_as_floats_and_nothing_else_is_taken_for_one() -> None:
    for value, same in (([1, 2.5], [1.0, 2.5]), ({"a": [True, None, 3]}, {"a": [True, None, 3.0]}), ("1", "1")):
        assert orjson.dumps(as_floats(value)) == orjson.dumps(same)
