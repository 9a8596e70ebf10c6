"""Comparison of a STAC API's Items with the catalog's: counts and content, day by day.

The comparison only reads. It compares the index with the API's answers by hash, Item by Item. If the hashes differ, the
Item's file decides, because PostGIS formats some numbers differently. Does not belong here: repairing differences
(`follower.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from kfm_dagster.catalog import layout
from kfm_dagster.catalog.item import content_sha256
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.followers.stac_api.rows import answered_item, as_floats
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.publisher import Publisher

EXAMPLES = 5
"""Maximum Item ids that a day lists for each kind of difference."""
BATCH = 500
"""Items that are compared at a time; files are read only for differing hashes."""


@dataclass(kw_only=True, slots=True)
class DayComparison:
    """A day of a collection: number of Items and content digest in the catalog and in the API.

    `missing` has Items that only the catalog has, `extra` Items that only the API has, and `differing` Items whose
    contents differ: of each kind, the first Item ids.
    """

    collection_id: str
    day: str
    catalog: int = 0
    api: int = 0
    catalog_sum: int = 0
    api_sum: int = 0
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether the API has exactly the catalog's Items of this day."""
        return (self.catalog, self.catalog_sum) == (self.api, self.api_sum)

    @property
    def digests(self) -> tuple[str, str]:
        """Digests of the day in catalog and API: sums of the Items' hashes, which need no order."""
        return f"{self.catalog_sum % 2**256:064x}", f"{self.api_sum % 2**256:064x}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A collection, day by day; `same_collection`: whether the Collection itself is equal."""

    collection_id: str
    same_collection: bool
    days: Sequence[DayComparison]

    @property
    def equal(self) -> bool:
        """Whether the API has exactly the catalog's content."""
        return self.same_collection and all(day.equal for day in self.days)


_Pair: TypeAlias = tuple[str, str, str | None, dict[str, Any] | None]
"""An Item's id and day, the hash in the index, and the answer of the API (None if index or API lacks the Item)."""


def compare(
    database: Database, publisher: Publisher, follower: PgstacFollower, contract: DatasetContract
) -> Comparison:
    """Compare a collection of the API with the catalog.

    Raises FollowError, PublishError and the database's errors.
    """
    collection_id = contract.stac.collection
    days: dict[str, DayComparison] = {}
    with follower.api.transaction() as tx:
        tx.run("make_expected")
        tx.copy("kfm_expected", _expected(database, collection_id))
        document = tx.run("collection", collection_id=collection_id).scalar()
        rows = tx.stream("compare", collection_id=collection_id)
        for batch in rows.partitions(BATCH):
            pairs: list[_Pair] = [
                (row.id, row.day, row.content_sha256, row.answer and answered_item(orjson.loads(row.answer)))
                for row in batch
            ]
            same = _equal(publisher, collection_id, pairs)
            for item_id, day, indexed, answered in pairs:
                counts = days.setdefault(day, DayComparison(collection_id=collection_id, day=day))
                _count(counts, item_id, indexed, answered, same=item_id in same)
    shown = None if document is None else as_floats(orjson.loads(document))
    return Comparison(
        collection_id=collection_id,
        same_collection=shown == as_floats(follower.collection(contract)),
        days=[days[day] for day in sorted(days)],
    )


def _expected(database: Database, collection_id: str) -> Iterator[str]:
    with database.snapshot() as view:
        for row in view.run("catalog.all_contents", collection_id=collection_id):
            yield f"{row.item_id}\t{row.partition_key}\t{row.content_sha256}\n"


def _equal(publisher: Publisher, collection_id: str, pairs: Iterable[_Pair]) -> set[str]:
    """Return the ids of the Items that are equal in the API and the catalog."""
    unsure: dict[str, _Pair] = {}
    equal: set[str] = set()
    for pair in pairs:
        item_id, day, indexed, answered = pair
        if indexed is None or answered is None:
            continue
        if content_sha256({**answered, "geometry": as_floats(answered["geometry"])}) == indexed:
            equal.add(item_id)
        else:
            unsure[layout.item_path(collection_id, day, item_id)] = pair
    if unsure:
        for path, content in publisher.read(list(unsure)).items():
            (item_id, _, indexed, answered), item = unsure[path], orjson.loads(content)
            if content_sha256(item) == indexed and (
                content_sha256(as_floats(item)) == content_sha256(as_floats(answered))
            ):
                equal.add(item_id)
    return equal


def _count(
    day: DayComparison, item_id: str, indexed: str | None, answered: dict[str, Any] | None, *, same: bool
) -> None:
    if indexed is not None:
        day.catalog += 1
        day.catalog_sum += _number(item_id, indexed)
    if answered is not None:
        day.api += 1
        day.api_sum += _number(item_id, indexed if same and indexed else content_sha256(answered))
    if same:
        return
    kind = day.missing if answered is None else day.extra if indexed is None else day.differing
    if len(kind) < EXAMPLES:
        kind.append(item_id)


def _number(item_id: str, content: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{item_id} {content}".encode()).digest(), "big")
