"""A day's published virtual stores: documents under unique names, and their list.

    <collection>/days.json                                   a STAC Catalog of the days that have a list
    <collection>/<YYYY>/<YYYY-MM-DD>/stores.json             an ItemCollection of the day's stores, by name
    <collection>/<YYYY>/<YYYY-MM-DD>/<name>.<hash>.json      a store: references (`references.py`)

A document never changes, because other content gets another name. So a reader sees all stores of a day either before or
after a change. If a writer dies before it replaces the list, no reader opens the writer's files.

Belongs here: reading and publishing. Does not belong here: the choice of a store's steps (`follower.py`).
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter

from kfm_dagster.catalog.assets import STORE_ASSET
from kfm_dagster.catalog.changes import FollowError
from kfm_dagster.catalog.item import STAC_VERSION
from kfm_dagster.catalog.layout import GEOJSON, STORE_LIST, link, store_days_path, store_list_path
from kfm_dagster.followers.virtual.references import VirtualCube, from_document, to_document
from kfm_dagster.storage.publisher import Publisher, publish

ENGINE = "kfm"
"""Engine of xarray that reads, of each object, the referenced version (`reading/xarray_engine.py`)."""
MEDIA_TYPE = "application/vnd.zarr"
"""Zarr's media type in STAC's best practices (best-practices-zarr.md), without a version: xpystac 0.5 does not know it
with a version."""
_HASH = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A store in a day's list: number of its Items, and datetimes of its first and last Item."""

    name: str
    href: str
    steps: int
    start: str
    end: str
    variables: tuple[str, ...]


class DayOfStores:
    """The stores of a collection and day; only `put` and `content` are thread-safe."""

    def __init__(self, publisher: Publisher, *, collection: str, day: str, region: str, root: str) -> None:
        """Read the list; `region` is the buckets' region, `root` the publisher's address."""
        self._publisher = publisher
        self._region = region
        self._day = day
        self._folder = posixpath.dirname(store_list_path(collection, day))
        self._address = f"{root}/{self._folder}"
        self._content = self._at(STORE_LIST)
        self.listed = [] if self._content is None else _STORES.validate_python(orjson.loads(self._content)["stores"])

    def content(self, listed: Listed) -> bytes:
        """Return the document of a store of the list. Raises FollowError and PublishError."""
        document = self._at(listed.href)
        if document is None:
            raise FollowError(
                observed=f"{self._folder}/{listed.href} is gone", next_step="kfm stac rebuild --place virtual-zarr"
            )
        return document

    def put(self, name: str, store: VirtualCube) -> Listed:
        """Write a document; no reader opens it before the list names it. Raises PublishError."""
        content = to_document(store, region=self._region)
        href = f"{name}.{hashlib.sha256(content).hexdigest()[:_HASH]}.json"
        publish(self._publisher, [{f"{self._folder}/{href}": content}])
        return Listed(
            name=name,
            href=href,
            steps=len(store.steps),
            start=store.steps[0].datetime,
            end=store.steps[-1].datetime,
            variables=tuple(store.images),
        )

    def publish(self, listed: Iterable[Listed]) -> None:
        """Replace the list, then remove documents that are in neither the new nor the previous list.

        So a reader of the previous list can open its documents until the list is replaced again. Raises FollowError and
        PublishError.
        """
        new = sorted(listed, key=lambda entry: (entry.name, entry.start, entry.href))
        if new == self.listed:
            return
        if self._at(STORE_LIST) != self._content:
            raise FollowError(
                observed=f"{self._folder}/{STORE_LIST} was replaced meanwhile", next_step="none: it is retried"
            )
        features = [self._item(entry) for entry in new]
        document = {"type": "FeatureCollection", "features": features, "day": self._day, "stores": new}
        publish(self._publisher, [{f"{self._folder}/{STORE_LIST}": orjson.dumps(document, option=orjson.OPT_INDENT_2)}])
        named = {STORE_LIST, *(entry.href for entry in (*new, *self.listed))}
        names = self._publisher.names(self._folder)
        self._publisher.remove([f"{self._folder}/{name}" for name in names if name not in named])
        self.listed = new

    def _item(self, listed: Listed) -> dict[str, Any]:
        """Return a store as a STAC Item (best-practices-zarr.md, "Virtual Zarr Stores")."""
        href = f"{self._address}/{listed.href}"
        return {
            "type": "Feature",
            "stac_version": STAC_VERSION,
            "stac_extensions": ["https://stac-extensions.github.io/xarray-assets/v1.0.0/schema.json"],
            "id": f"{listed.name}-{listed.start}",
            "geometry": None,
            "properties": {
                "title": listed.name,
                "datetime": None,
                "start_datetime": listed.start,
                "end_datetime": listed.end,
            },
            "links": [link("store", href, media_type=MEDIA_TYPE, title=listed.name)],
            "assets": {
                STORE_ASSET: {
                    "href": href,
                    "title": "Kerchunk references",
                    "type": MEDIA_TYPE,
                    "roles": ["data", "virtual"],
                    "bands": [{"name": name} for name in listed.variables],
                    "xarray:open_kwargs": {"engine": ENGINE},
                }
            },
        }

    def _at(self, name: str) -> bytes | None:
        path = f"{self._folder}/{name}"
        return self._publisher.read([path]).get(path)


_STORES = TypeAdapter(list[Listed])


def days_of(publisher: Publisher, collection: str) -> list[str]:
    """Return a collection's recorded days; a new day can lack its list. Raises PublishError."""
    path = store_days_path(collection)
    content = publisher.read([path]).get(path)
    return [] if content is None else list(orjson.loads(content)["days"])


def add_days(publisher: Publisher, collection: str, more: Iterable[str]) -> None:
    """Record days before they have stores, so that a rebuild finds them. Raises PublishError."""
    known = days_of(publisher, collection)
    if new := set(more) - set(known):
        days = sorted({*known, *new})
        document = {
            "type": "Catalog",
            "stac_version": STAC_VERSION,
            "id": f"{collection}-virtual-zarr",
            "description": f"Virtual Zarr stores of {collection}, by day.",
            "links": [link("items", f"./{day[:4]}/{day}/{STORE_LIST}", media_type=GEOJSON, title=day) for day in days],
            "days": days,
        }
        publish(publisher, [{store_days_path(collection): orjson.dumps(document, option=orjson.OPT_INDENT_2)}])


def forget(publisher: Publisher, collection: str) -> None:
    """Remove all lists, then all documents, of a collection. Raises PublishError."""
    lists = [store_list_path(collection, day) for day in days_of(publisher, collection)]
    publisher.remove(lists)
    for folder in map(posixpath.dirname, lists):
        publisher.remove([f"{folder}/{name}" for name in publisher.names(folder)])
    publisher.remove([store_days_path(collection)])


def store_of(content: bytes, href: str) -> VirtualCube:
    """Parse a store's document. Raises FollowError for a document of another format."""
    try:
        return from_document(orjson.loads(content))
    except (ValueError, KeyError, TypeError) as error:
        raise FollowError(
            observed=f"{href} is not a store of this package", next_step="kfm stac rebuild --place virtual-zarr"
        ) from error
