"""The outside view: objects that the feed wrote, published catalog, and lineage files.

This view reads neither ledger nor database, so it is independent of the product's tables. Does not
belong here: the invariants of the database (`invariants.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from posixpath import dirname, join, normpath
from typing import Any

import orjson

from kfm_dagster_tests.simulation.feed import Version
from kfm_dagster_tests.simulation.invariants import ViolationError
from kfm_dagster_tests.simulation.world import World

ROOT = "catalog.json"
MULTIHASH_DIGITS = 6
"""The number of hex digits in front of a `file:checksum`, which name the hash and its length."""


class Outside:
    """The outside view of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.publisher.seen = self.nothing_unexpected_is_published

    def finished(self) -> None:
        """Run the final checks, once the faults are over and every unit had time to end."""
        self.everything_is_linked_once()
        for invariant, differing in (
            ("nothing_is_missing", self.missing()),
            ("every_item_has_its_lineage", self.without_lineage()),
            ("followers_show_the_current_items", self.not_followed()),
        ):
            if differing:
                raise ViolationError(invariant, "; ".join(sorted(differing)))

    def nothing_unexpected_is_published(self, path: str, content: bytes) -> None:
        """Every Item has the content of a sound object, and the id that this object's key determines."""
        document = orjson.loads(content)
        if document.get("type") == "Feature":
            version = self._version_of(document)
            if version is None or not version.sound or version.item_id != document["id"]:
                raise ViolationError("nothing_unexpected_is_published", f"{path} of {version}")

    def missing(self) -> list[str]:
        """Return the Items that are missing or older than an announced, sound and readable version."""
        due: dict[str, tuple[str, int]] = {}
        for version in self._world.feed.announced.values():
            if version.sound and self._world.feed.is_readable(version):
                due[version.item_id] = max(due.get(version.item_id, version.order), version.order)
        versions = {item["id"]: version for _, item in self._items() if (version := self._version_of(item))}
        return [
            f"{item_id} of {order}, found {versions.get(item_id)}"
            for item_id, order in due.items()
            if item_id not in versions or versions[item_id].order < order
        ]

    def everything_is_linked_once(self) -> None:
        """Each Item is linked once from the root, and no link is broken."""
        reached = Counter(self._reached(ROOT))
        if max(reached.values(), default=1) > 1 or not reached.keys() <= self._world.publisher.files.keys():
            raise ViolationError("everything_is_linked_once", str(reached))

    def not_followed(self) -> list[str]:
        """Return the ids of Items that only a follower or only the catalog has, or that differ in content."""
        current = {(item["collection"], item["id"]): item for _, item in self._items()}
        shown = self._world.mirror.items
        return [f"{key}" for key in current.keys() | shown.keys() if current.get(key) != shown.get(key)]

    def without_lineage(self) -> list[str]:
        """Return the paths of Items without lineage of their own object that is published and not withdrawn."""
        events = self._world.lineage_files.events()
        withdrawn = {event["run"]["runId"] for event in events if event["eventType"] == "OTHER"}
        published: dict[str, set[str]] = defaultdict(set)
        for event in events:
            if event["eventType"] == "COMPLETE" and event["run"]["runId"] not in withdrawn:
                source = event["inputs"][0]
                published[event["run"]["facets"]["kfmWal"]["wal_id"]].add(f"{source['namespace']}/{source['name']}")
        return [
            path
            for path, item in self._items()
            if item["assets"]["data"]["href"] not in published[item["properties"]["kfm:wal_id"]]
        ]

    def _items(self) -> Iterator[tuple[str, Any]]:
        """Yield the Items that links reach; unlinked files of dead processes do not count."""
        for path in self._reached(ROOT):
            document = orjson.loads(self._world.publisher.files.get(path, b"{}"))
            if document.get("type") == "Feature":
                yield path, document

    def _reached(self, path: str) -> Iterator[str]:
        if path != ROOT or path in self._world.publisher.files:
            yield path
        for link in orjson.loads(self._world.publisher.files.get(path, b"{}")).get("links", ()):
            if link["rel"] in {"child", "item"}:
                yield from self._reached(normpath(join(dirname(path), link["href"])))

    def _version_of(self, item: Any) -> Version | None:
        data = item["assets"]["data"]
        return self._world.feed.find(data["href"], data["file:checksum"][MULTIHASH_DIGITS:])
