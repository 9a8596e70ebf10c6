"""Fixtures of the STAC API's tests: a catalog, an API's database, and the follower between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kfm_dagster.catalog.following import Following
from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.catalog.stac_api.database import StacApiDatabase
from kfm_dagster.catalog.stac_api.follower import PgstacFollower
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.stac_api.api import Api
from kfm_dagster_tests.catalog.test_undo import of_run
from kfm_dagster_tests.ledger.bench import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def following(database: Database, contracts: ContractRegistry, root: Path, clock: Clock) -> Following:
    return Following(database, contracts, FolderPublisher(root), clock=clock)


@pytest.fixture
def follower(stac_api_url: str, root: Path) -> PgstacFollower:
    return PgstacFollower(StacApiDatabase(stac_api_url), FolderPublisher(root))


@pytest.fixture
def api(stac_api_url: str, database: Database, root: Path, follower: PgstacFollower) -> Api:
    return Api(stac_api_url, database, root, follower)


@pytest.fixture
def write(catalog: Catalog, contracts: ContractRegistry) -> Callable[..., None]:
    """Register Items under a run, those of each dataset together."""

    def write(run_id: str, *envelopes: Envelope) -> None:
        for dataset in sorted({envelope.dataset for envelope in envelopes}):
            own = [envelope for envelope in envelopes if envelope.dataset == dataset]
            catalog.register(of_run(contracts, run_id, own), fence=open_fence)

    return write
