"""Access to a STAC API's database without the product: rows, locks and pgstac's search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.stac_api.comparison import Comparison, compare
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.catalog import trees

COLLECTIONS = ("goes-abi", "nexrad-l2")


class Api:
    """The database of `follower`, and the catalog that it follows."""

    def __init__(self, url: str, database: Database, root: Path, follower: PgstacFollower) -> None:
        self._engine = sa.create_engine(url, poolclass=NullPool)
        self._database = database
        self._root = root
        self._follower = follower

    def ask(self, query: str, **values: Any) -> list[Any]:
        """Run a query, commit, and return its rows."""
        with self._engine.begin() as connection:
            connection.exec_driver_sql("SET search_path TO pgstac, public")
            result = connection.execute(sa.text(query), values)
            return list(result.all()) if result.returns_rows else []

    def rows(self) -> set[tuple[str, str]]:
        """Return each Item with the transaction that wrote its row: equal sets mean no write."""
        return {(row.id, row.xmin) for row in self.ask("SELECT id, CAST(xmin AS text) AS xmin FROM items")}

    def item_ids(self) -> list[str]:
        """Return the sorted ids of all rows, with duplicates."""
        return [row.id for row in self.ask('SELECT id FROM items ORDER BY id COLLATE "C"')]

    def catalog_ids(self) -> list[str]:
        """Return the sorted ids of the Items that a reader of the catalog reaches."""
        return trees.item_ids(self._root) if (self._root / "catalog.json").exists() else []

    def compared(self) -> list[Comparison]:
        """Return the product's own comparison of each collection."""
        contracts = ContractRegistry.load()
        publisher = FolderPublisher(self._root)
        return [compare(self._database, publisher, self._follower, contracts[collection]) for collection in COLLECTIONS]

    def searched(self, **search: Any) -> list[dict[str, Any]]:
        """Return the result of pgstac's own search."""
        [row] = self.ask("SELECT CAST(search(CAST(:search AS jsonb)) AS text) AS result", search=json.dumps(search))
        features: list[dict[str, Any]] = json.loads(row.result)["features"]
        return features
