"""Setting the API's database up: once, by a role that may; what follows needs less, and says so when it lacks that."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster_tests import databases
from kfm_dagster_tests.catalog.envelopes import goes
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
