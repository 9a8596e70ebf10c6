"""Layout: the paths of all files of the catalog, relative to its root.

    catalog.json                                                root
    <collection>/collection.json                                Collection of a dataset
    <collection>/<YYYY>/catalog.json                            links days
    <collection>/<YYYY>/<YYYY-MM-DD>/catalog.json               links pages
    <collection>/<YYYY>/<YYYY-MM-DD>/page-NNNN.json             links at most 1,000 Items
    <collection>/<YYYY>/<YYYY-MM-DD>/<item-id>.json             Item

No file links more than 1,000 Items. Every href is relative, so that a catalog can be copied and moved. The parent of
an Item is its day, which never changes. A page is a slice of the day; the page that links an Item can change.
Does not belong here: content of files (`item.py`, `documents.py`).
"""

from __future__ import annotations

from typing import Any

ROOT = "catalog.json"
JSON = "application/json"
GEOJSON = "application/geo+json"
STORE_LIST = "stores.json"


def collection_path(collection_id: str) -> str:
    """Return the path of the Collection."""
    return f"{collection_id}/collection.json"


def year_path(collection_id: str, year: str) -> str:
    """Return the path of a year's Catalog; year is YYYY."""
    return f"{collection_id}/{year}/catalog.json"


def day_path(collection_id: str, partition: str) -> str:
    """Return the path of a day's Catalog; partition is YYYY-MM-DD."""
    return f"{collection_id}/{partition[:4]}/{partition}/catalog.json"


def page_path(collection_id: str, partition: str, page: int) -> str:
    """Return the path of a page, counted from 1."""
    return f"{collection_id}/{partition[:4]}/{partition}/{page_name(page)}"


def page_name(page: int) -> str:
    """Return the file name of a page, counted from 1."""
    return f"page-{page:04d}.json"


def item_path(collection_id: str, partition: str, item_id: str) -> str:
    """Return the path of an Item."""
    return f"{collection_id}/{partition[:4]}/{partition}/{item_id}.json"


def item_links() -> list[dict[str, Any]]:
    """Return the links of an Item; all Items have the same, because all have the same depth."""
    return [
        link("root", "../../../catalog.json"),
        link("collection", "../../collection.json"),
        link("parent", "./catalog.json"),
    ]


def store_days_path(collection_id: str) -> str:
    """Return the path of the Catalog of days with virtual stores, relative to the stores' root."""
    return f"{collection_id}/days.json"


def store_list_path(collection_id: str, partition: str) -> str:
    """Return the path of a day's list of virtual stores, relative to the stores' root."""
    return f"{collection_id}/{partition[:4]}/{partition}/{STORE_LIST}"


def link(rel: str, href: str, *, media_type: str = JSON, title: str | None = None) -> dict[str, Any]:
    """Return a STAC link."""
    stac_link = {"rel": rel, "href": href, "type": media_type}
    return stac_link if title is None else {**stac_link, "title": title}
