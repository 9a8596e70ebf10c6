"""A STAC API as deploy/stac-api runs it: pystac-client finds exactly the catalog's Items."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pystac
import pytest

from benchmarks.stac_api_server import COMPOSE, service, stac_api_server
from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster_tests.catalog.envelopes import DAY, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.followers.stac_api.api import Api, without_links
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

PASSWORDS = ("STAC_PASSWORD", "DEPLOYMENT_PASSWORD", "STAC_API_PASSWORD")
WEST = (-140.0, 20.0, -120.0, 50.0)
EAST = (-80.0, 20.0, -60.0, 50.0)
SCANS = 130
"""More than one page of the API has."""


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
    write: Callable[..., None],
    stac_api_url: str,
) -> None:
    from pystac_client import Client  # here, because its jsonschema takes seconds of every worker

    boxes = (WEST, EAST, (170.0, -10.0, -170.0, 10.0))
    write("scans", *(goes(number, bbox=boxes[number % 3], platform=f"goes-{number % 2}") for number in range(SCANS)))
    write("others", hrrr(), with_metadata(nexrad(), geometry=None, bbox=None))
    write("later", *(goes(number, day=DAY + timedelta(days=40), **{"proj:code": None}) for number in range(3)))
    following.catch_up([follower], within=60)
    with stac_api_server(stac_api_url) as url:
        client = Client.open(url)

        def found(**search: Any) -> dict[str, dict[str, Any]]:
            answered = list(client.search(limit=50, **search).items_as_dicts())
            assert len({item["id"] for item in answered}) == len(answered)
            return {item["id"]: without_links(item) for item in answered}

        def standing(*wanted: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, Any]]:
            items = api.catalog_items().items()
            return {item_id: item for item_id, item in items if all(one(item) for one in wanted)}

        whole = standing()
        assert len(whole) == SCANS + 5
        assert found() == whole
        assert found(collections=["goes-abi"]) == standing(lambda item: item["collection"] == "goes-abi")

        first, last = DAY + timedelta(seconds=100), DAY + timedelta(seconds=200)
        assert found(datetime=[first, last]) == standing(
            lambda item: times(item)[0] <= last and times(item)[1] >= first
        )
        east = standing(lambda item: tuple(item.get("bbox", ())) in {EAST, (-113.1, 14.6, -52.9, 56.8)})
        assert found(bbox=[-79, 21, -78, 22], collections=["goes-abi"]) == east
        assert len(found(bbox=[175, -5, 176, 5])) == len(found(bbox=[-176, -5, -175, 5])) == SCANS // 3

        equal = (("platform", "goes-1"), ("collection", "goes-abi"))
        cql = {"op": "and", "args": [{"op": "=", "args": [{"property": name}, value]} for name, value in equal]}
        assert found(filter=cql) == standing(lambda item: item["properties"].get("platform") == "goes-1") != {}
        in_words = {"method": "GET", "filter_lang": "cql2-text", "filter": "\"forecast:horizon\" = 'PT6H'"}
        assert found(**in_words) == standing(lambda item: item["collection"] == "hrrr") != {}
        [example] = client.search(ids=[next(iter(whole))]).items()
        assert isinstance(example, pystac.Item)
        assert {one.id for one in client.get_collections()} == {"goes-abi", "hrrr", "nexrad-l2"}

        own_tx(catalog).undo("goes-abi", "scans")
        following.catch_up([follower], within=60)
        assert found() == standing()
        assert len(standing()) == 5


def test_the_compose_file_is_one_and_names_no_registry() -> None:
    assert "." not in service("database")["image"].split("/")[0]
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not on the PATH")
    checked = subprocess.run(
        ["docker-compose", "--file", str(COMPOSE), "config", "--quiet"],
        env={"PATH": "/usr/bin:/bin", **dict.fromkeys(PASSWORDS, "p")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
