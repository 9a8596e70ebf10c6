"""Fixtures of the STAC API's tests: a catalog, an API's database, and its follower."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.followers.stac_api.api import Api


@pytest.fixture
def follower(stac_api_url: str, root: Path) -> PgstacFollower:
    return PgstacFollower(StacApiDatabase(stac_api_url), FolderPublisher(root))


@pytest.fixture
def api(stac_api_url: str, database: Database, root: Path, follower: PgstacFollower) -> Api:
    return Api(stac_api_url, database, root, follower)
