"""A day's virtual stores as published: documents under unique names, and a list of them that is replaced last.

    <collection>/days.json                                   days that have a list
    <collection>/<YYYY>/<YYYY-MM-DD>/stores.json             the day's stores, by name
    <collection>/<YYYY>/<YYYY-MM-DD>/<name>.<hash>.json      a store: references (`references.py`)

A document never changes, because other content has another name. So a reader sees all stores of a day either before or
after a change. If a writer dies before it replaces the list, no reader opens the files that it has written.

Belongs here: reading and publishing. Does not belong here: the choice of a store's steps (`follower.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import orjson
from pydantic import TypeAdapter

from kfm_dagster.catalog.changes import FollowError
from kfm_dagster.catalog.publisher import Publisher, publish
from kfm_dagster.followers.virtual.references import VirtualCube, from_document, to_document

LIST, DAYS = "stores.json", "days.json"
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
    """The stores of a collection and day. Several threads may call `put` and `content`, one thread the rest."""

    def __init__(self, publisher: Publisher, *, collection: str, day: str) -> None:
        self._publisher = publisher
        self._collection, self._day = collection, day
        self._folder = f"{collection}/{day[:4]}/{day}"
        self._content = self._at(LIST)
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
        """Write a store's document, which no reader opens before the list is published. Raises PublishError."""
        content = to_document(store)
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
        """Replace the list, then remove documents that neither the new nor the previous list names.

        So readers of the previous list can open its documents until the next one. Raises FollowError and PublishError.
        """
        new = sorted(listed, key=lambda entry: (entry.name, entry.start, entry.href))
        if new == self.listed:
            return
        if self._at(LIST) != self._content:
            raise FollowError(observed=f"{self._folder}/{LIST} was replaced meanwhile", next_step="it is retried")
        document = {"collection": self._collection, "day": self._day, "stores": new}
        publish(self._publisher, [{f"{self._folder}/{LIST}": orjson.dumps(document, option=orjson.OPT_INDENT_2)}])
        named = {LIST, *(entry.href for entry in (*new, *self.listed))}
        names = self._publisher.names(self._folder)
        self._publisher.remove([f"{self._folder}/{name}" for name in names if name not in named])
        self.listed = new

    def _at(self, name: str) -> bytes | None:
        path = f"{self._folder}/{name}"
        return self._publisher.read([path]).get(path)


_STORES = TypeAdapter(list[Listed])


def days_of(publisher: Publisher, collection: str) -> list[str]:
    """Return the recorded days of a collection; some may lack a list. Raises PublishError."""
    path = f"{collection}/{DAYS}"
    content = publisher.read([path]).get(path)
    return [] if content is None else list(orjson.loads(content)["days"])


def add_days(publisher: Publisher, collection: str, days: Iterable[str]) -> None:
    """Record days before they have stores, so that a rebuild finds them. Raises PublishError."""
    known = days_of(publisher, collection)
    if new := set(days) - set(known):
        document = {"collection": collection, "days": sorted({*known, *new})}
        publish(publisher, [{f"{collection}/{DAYS}": orjson.dumps(document, option=orjson.OPT_INDENT_2)}])


def forget(publisher: Publisher, collection: str) -> None:
    """Remove all lists, then all documents, of a collection. Raises PublishError."""
    folders = [f"{collection}/{day[:4]}/{day}" for day in days_of(publisher, collection)]
    publisher.remove([f"{folder}/{LIST}" for folder in folders])
    for folder in folders:
        publisher.remove([f"{folder}/{name}" for name in publisher.names(folder)])
    publisher.remove([f"{collection}/{DAYS}"])


def store_of(content: bytes, href: str) -> VirtualCube:
    """Parse a store's document. Raises FollowError for a document of another format."""
    try:
        return from_document(content)
    except (ValueError, KeyError, TypeError) as error:
        raise FollowError(
            observed=f"{href} is not a store of this package", next_step="kfm stac rebuild --place virtual-zarr"
        ) from error
