"""Looking at a published catalog the way a reader does: files only, from the root down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import STAGING
from kfm_dagster.storage.roots import MARKER
from kfm_dagster_tests.databases import unguarded


def files(root: Path) -> dict[str, bytes]:
    """Every published file of the tree by its path, without the mark of its deployment.

    Staged ones are not published, and GeoParquet follows later.
    """
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and path.name != MARKER
        and STAGING not in path.parts
        and path.relative_to(root).parts[1:2] != ("items",)
    }


def walk(root: Path) -> dict[str, dict[str, Any]]:
    """Every document that a reader reaches from the root by child and item links, by path; no link may be dead."""
    found: dict[str, dict[str, Any]] = {}
    queue = [root / "catalog.json"]
    while queue:
        path = queue.pop()
        document = json.loads(path.read_bytes())
        name = str(path.relative_to(root))
        assert name not in found, f"{name} is linked twice"
        found[name] = document
        for link in document["links"]:
            target = (path.parent / link["href"]).resolve()
            assert target.is_file(), f"{name} links {link['href']}, which is not there"
            if link["rel"] in {"child", "item"}:
                queue.append(target)
    return found


def items(root: Path) -> list[dict[str, Any]]:
    """Every published Item, linked or not."""
    documents = [json.loads(content) for content in files(root).values()]
    return [document for document in documents if document["type"] == "Feature"]


def forget(database: Database) -> None:
    """Begin with an empty index: an example that failed would be the beginning of the next."""
    with database.transaction() as tx, unguarded(tx.connection, "catalog_items"):
        for table in ("catalog_items", "catalog_collections", "catalog_pages", "catalog_summaries"):
            tx.connection.exec_driver_sql(f"DELETE FROM {table}")


def item_ids(root: Path) -> list[str]:
    """Ids of the Items that a reader reaches, sorted, each as often as it is linked."""
    return sorted(document["id"] for document in walk(root).values() if document["type"] == "Feature")


def assert_counted(database: Database) -> None:
    """An index whose pages and summaries count what its Items say."""
    with database.transaction() as tx:
        run = tx.connection.exec_driver_sql
        counted = run("SELECT collection_id, partition_key, page, items, west, east FROM catalog_pages").all()
        true = run(
            "SELECT collection_id, partition_key, page, count(*), min(west), max(east) FROM catalog_items"
            " GROUP BY collection_id, partition_key, page"
        ).all()
        products = run("SELECT sum(items) FROM catalog_summaries WHERE property = 'goes:product'").scalar_one()
        items = run("SELECT count(*) FROM catalog_items WHERE collection_id = 'goes-abi'").scalar_one()
    assert sorted(counted) == sorted(true)
    assert products == items


def assert_consistent(root: Path) -> None:
    """A catalog in which every link leads somewhere, every document is valid and no Item file is unlinked."""
    documents = walk(root)
    for name, document in documents.items():
        assert validate_document(document) == [], name
    assert set(files(root)) == set(documents)
