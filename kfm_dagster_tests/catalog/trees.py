"""Reading a published catalog like a client: only files, from the root down."""

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
    """Return every published file by path, without the deployment's mark.

    Staged files and GeoParquet are left out.
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
    """Return the documents linked from the root, by path; check that no link is broken."""
    documents: dict[str, dict[str, Any]] = {}
    queue = [root / "catalog.json"]
    while queue:
        path = queue.pop()
        document = json.loads(path.read_bytes())
        name = str(path.relative_to(root))
        assert name not in documents, f"{name} is linked twice"
        documents[name] = document
        for link in document["links"]:
            target = (path.parent / link["href"]).resolve()
            assert target.is_file(), f"{name} links {link['href']}, which does not exist"
            if link["rel"] in {"child", "item"}:
                queue.append(target)
    return documents


def items(root: Path) -> list[dict[str, Any]]:
    """Return every published Item, linked or not."""
    documents = [json.loads(content) for content in files(root).values()]
    return [document for document in documents if document["type"] == "Feature"]


def forget(database: Database) -> None:
    """Empty the index, so that a failed example does not affect the next."""
    with database.transaction() as tx, unguarded(tx.connection, "catalog_items"):
        for table in ("catalog_items", "catalog_collections", "catalog_pages", "catalog_summaries"):
            tx.connection.exec_driver_sql(f"DELETE FROM {table}")


def item_ids(root: Path) -> list[str]:
    """Return the sorted ids of linked Items, with duplicates."""
    return sorted(document["id"] for document in walk(root).values() if document["type"] == "Feature")


def assert_counted(database: Database) -> None:
    """Check that the index's pages and summaries agree with its Items."""
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
    """Check that all links work, all documents are valid and all Item files are linked."""
    documents = walk(root)
    for name, document in documents.items():
        assert validate_document(document) == [], name
    assert set(files(root)) == set(documents)
