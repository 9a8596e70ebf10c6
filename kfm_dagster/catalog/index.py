"""The catalog's index: rows in the database, used for one collection in one transaction.

Belongs here: current Items, comparing and swapping revisions, pages, and the queries for the catalog documents. Does
not belong here: decisions (`store.py`) and files (`publisher.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import orjson

from kfm_dagster.catalog.changes import ChangeKind
from kfm_dagster.catalog.item import Candidate, canonical
from kfm_dagster.catalog.layout import item_path
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.storage.database import Transaction

SUMMARY_TEXT_LIMIT = 500
"""Maximum characters of a summarised text, because a PostgreSQL index key takes at most 2,704 bytes."""

Page = tuple[str, int]
"""A page of the collection: partition and number, counted from 1."""
Bbox = tuple[float, float, float, float]
VersionsOf = Callable[[DatasetContract], Sequence[tuple[str, DatasetContract]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """True extent of a Collection's Items.

    `bbox` is (west, south, east, north) in WGS 84 degrees, with west > east across the antimeridian. `bbox` is None if
    no Item has a geometry. `start` and `end` are RFC 3339.
    """

    bbox: Bbox | None
    start: str
    end: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """Index row of an Item; `replaces` is the unit of the Item's previous version."""

    item_id: str
    partition: str
    page: int
    content_sha256: str
    object_uri: str
    wal_id: WalId
    replaces: WalId | None
    precedence: str
    sequencer: str
    event_time: datetime | None
    """Event time of the unit; None if the unit is not in the ledger."""
    revision: int
    promotion_id: int | None
    """Entry of the undo log that made this version current; None for Items older than the log."""
    summaries: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """Intended write of a candidate: it replaces `base`, or creates an Item if `base` is None.

    `promotion_id` is the write's entry in the undo log. A write that only restores a lost file gets no entry.
    """

    candidate: Candidate
    base: CatalogEntry | None
    promotion_id: int | None = None

    @property
    def partition(self) -> str:
        """Day of the Item's path, which never changes."""
        return self.base.partition if self.base else self.candidate.partition

    @property
    def path(self) -> str:
        """Path of the Item's file."""
        return item_path(self.candidate.collection_id, self.partition, self.candidate.item_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Outputs that a Collection links in addition to its Items."""

    geoparquet: bool = False
    """Whether the catalog has GeoParquet files."""
    virtual: str = ""
    """The address of the virtual stores; empty without such stores."""


NO_PLACES = Places()


class CollectionIndex:
    """The index of a collection within a transaction.

    `contract` is the contract of its dataset. `versions_of` returns the datasets that precede or succeed this dataset,
    each with its link relation.
    """

    def __init__(
        self,
        tx: Transaction,
        contract: DatasetContract,
        *,
        page_size: int,
        places: Places = NO_PLACES,
        versions_of: VersionsOf = lambda _: [],
    ) -> None:
        self._tx = tx
        self.contract = contract
        self.places = places
        self._versions_of = versions_of
        self._collection = contract.stac.collection
        self._page_size = page_size

    @contextmanager
    def only_writer(self) -> Iterator[bool]:
        """Wait to be the collection's only writer.

        Yields True if the root document does not list the collection yet. If the collection has no Items when the block
        ends, its row is dropped, and the next writer must add the collection to the root document again.
        """
        opened = self._tx.run(
            "catalog.open_collection",
            collection_id=self._collection,
            dataset=self.contract.id,
            title=self.contract.metadata.title,
        )
        yield opened.first() is not None
        self._tx.run("catalog.drop_empty_collection", collection_id=self._collection)

    def collections(self) -> list[tuple[str, str]]:
        """Wait for other writers of the root document; return ids and titles of the collections."""
        self._tx.lock("kfm_dagster.catalog")
        return [(row.collection_id, row.title) for row in self._tx.run("catalog.collections")]

    def versions(self) -> list[tuple[str, CollectionIndex]]:
        """Return the preceding and succeeding collections that have Items, with link relations."""
        listed = {row.collection_id for row in self._tx.run("catalog.collections")}
        parts: dict[str, Any] = {"page_size": self._page_size, "places": self.places}
        return [
            (relation, CollectionIndex(self._tx, other, versions_of=self._versions_of, **parts))
            for relation, other in self._versions_of(self.contract)
            if other.stac.collection in listed
        ]

    def current(self, item_ids: Iterable[str]) -> dict[str, CatalogEntry]:
        """Return the current entries by Item id."""
        rows = self._tx.rows(CatalogEntry, "catalog.current", collection_id=self._collection, item_ids=list(item_ids))
        return {entry.item_id: entry for entry in rows}

    def apply(self, writes: Sequence[Write]) -> dict[Page, list[Write]]:
        """Apply the writes whose base is current (compare and swap); return these writes by page."""
        new_pages = self._assign_pages(writes)
        page_of = {
            write.candidate.item_id: write.base.page if write.base else new_pages[write.candidate.item_id]
            for write in writes
        }
        rows = [self._row(write, page_of[write.candidate.item_id]) for write in writes]
        swapped = set(
            self._tx.run(
                "catalog.apply", collection_id=self._collection, rows=rows, updated_at=datetime.now(UTC)
            ).scalars()
        )
        applied: dict[Page, list[Write]] = defaultdict(list)
        for write in writes:
            if write.candidate.item_id in swapped:
                applied[write.partition, page_of[write.candidate.item_id]].append(write)
        self._log_changes(
            [
                write.candidate.item_id,
                write.partition,
                ChangeKind.UPDATED if write.base else ChangeKind.CREATED,
                write.candidate.content_sha256,
            ]
            for write in chain.from_iterable(applied.values())
        )
        return applied

    def recount(self, applied: Mapping[Page, Sequence[Write]]) -> None:
        """Update pages and summaries for the applied writes."""
        self._recount_pages("catalog.recount_page", applied)
        change: Counter[tuple[str, str]] = Counter()
        for write in chain.from_iterable(applied.values()):
            change.update(_summary_keys(self._summaries_of(write.candidate)))
            if write.base:
                change.subtract(_summary_keys(write.base.summaries))
        self._count_summaries(change)

    def replace_rows(self, taken_back: Iterable[str], put_back: Iterable[int]) -> None:
        """Remove Items, restore rows that promotions replaced, update or drop pages and summaries.

        A restored Item keeps its page. A restored row equals the earlier row in every column, even in its revision.
        """
        change: Counter[tuple[str, str]] = Counter()
        pages: set[Page] = set()
        changed_items: dict[str, list[Any]] = {}
        for statement, count, parameters in (
            ("catalog.take_back", -1, {"collection_id": self._collection, "item_ids": taken_back}),
            ("catalog.put_back", 1, {"promotion_ids": put_back}),
        ):
            for row in self._tx.run(statement, parameters).all():
                pages.add((row.partition_key, row.page))
                kind, content = (ChangeKind.UPDATED, row.content_sha256) if count > 0 else (ChangeKind.WITHDRAWN, None)
                changed_items[row.item_id] = [row.item_id, row.partition_key, kind, content]
                for key in _summary_keys(row.summaries):
                    change[key] += count
        self._recount_pages("catalog.recount_page", pages)
        self._recount_pages("catalog.drop_empty_page", pages)
        self._count_summaries(change)
        self._log_changes(changed_items.values())

    def _recount_pages(self, statement: str, pages: Iterable[Page]) -> None:
        rows = [{"collection_id": self._collection, "partition_key": day, "page": page} for day, page in sorted(pages)]
        self._tx.run_many(statement, rows)

    def _log_changes(self, changes: Iterable[Sequence[Any]]) -> None:
        """Log one change for each Item; followers see it once this transaction is committed."""
        now = datetime.now(UTC)
        rows = list(changes)
        self._tx.run("catalog.log_changes", collection_id=self._collection, rows=rows, changed_at=now)

    def _count_summaries(self, change: Counter[tuple[str, str]]) -> None:
        for statement, signed in (("catalog.count_summary_value", change), ("catalog.uncount_summary_value", -change)):
            self._tx.run_many(
                statement,
                [
                    {"collection_id": self._collection, "property": name, "value": value, "items": count}
                    for (name, value), count in signed.items()
                    if count > 0
                ],
            )

    def page_items(self, partition: str, page: int) -> list[str]:
        """Return the Item ids of a page, in order."""
        rows = self._tx.run("catalog.page_items", collection_id=self._collection, partition_key=partition, page=page)
        return list(rows.scalars())

    def pages(self, partition: str) -> dict[int, int]:
        """Return the number of Items by page of a day."""
        rows = self._tx.run("catalog.day_pages", collection_id=self._collection, partition_key=partition)
        return {row.page: row.items for row in rows}

    def days(self, year: str) -> list[str]:
        """Return the days of a year that have Items."""
        rows = self._tx.run(
            "catalog.year_days", collection_id=self._collection, first_day=f"{year}-01-01", last_day=f"{year}-12-31"
        )
        return [row.partition_key for row in rows]

    def years(self) -> list[str]:
        """Return the years that have Items."""
        return [row.year for row in self._tx.run("catalog.years", collection_id=self._collection)]

    def extent(self) -> Extent:
        """Return the extent of all Items."""
        row = self._tx.run("catalog.extent", collection_id=self._collection).one()
        return Extent(bbox=_enclosing(row), start=rfc3339(row.start_at), end=rfc3339(row.end_at))

    def newest_run(self) -> str | None:
        """Return the run that wrote the newest Item; None for a write outside of any run."""
        return self._tx.run("catalog.newest_run", collection_id=self._collection).scalar()

    def summaries(self) -> dict[str, list[Any]]:
        """Return the distinct values of the properties that the contract summarises."""
        values: dict[str, list[Any]] = {}
        for row in self._tx.run("catalog.summaries", collection_id=self._collection):
            if row.property in self.contract.stac.summaries:
                values.setdefault(row.property, []).append(orjson.loads(row.value))
        return values

    def _assign_pages(self, writes: Sequence[Write]) -> dict[str, int]:
        """Assign pages in the order of Item ids: fill each day's last page, then use new pages."""
        by_day: dict[str, list[str]] = defaultdict(list)
        for write in writes:
            if write.base is None:
                by_day[write.partition].append(write.candidate.item_id)
        assigned: dict[str, int] = {}
        for partition, item_ids in by_day.items():
            pages = self.pages(partition)
            used = (max(pages) - 1) * self._page_size + pages[max(pages)] if pages else 0
            for offset, item_id in enumerate(sorted(item_ids)):
                assigned[item_id] = (used + offset) // self._page_size + 1
        return assigned

    def _row(self, write: Write, page: int) -> list[Any]:
        candidate = write.candidate
        properties = candidate.properties
        return [
            candidate.item_id,
            write.partition,
            page,
            candidate.content_sha256,
            candidate.object_uri,
            candidate.wal_id,
            candidate.precedence,
            candidate.sequencer,
            write.base.revision + 1 if write.base else 1,
            *(candidate.bbox or (None, None, None, None)),
            _time_text(properties.get("start_datetime") or properties["datetime"]),
            _time_text(properties.get("end_datetime") or properties["datetime"]),
            canonical(self._summaries_of(candidate)).decode(),
            write.base.promotion_id if write.promotion_id is None and write.base else write.promotion_id,
        ]

    def _summaries_of(self, candidate: Candidate) -> dict[str, list[Any]]:
        """Return the values to summarise; of a list, each element, as STAC summarises arrays."""
        summaries: dict[str, list[Any]] = {}
        for name in self.contract.stac.summaries:
            value = candidate.properties.get(name)
            values = value if isinstance(value, list) else [value]
            short = [element for element in values if isinstance(element, str) and len(element) <= SUMMARY_TEXT_LIMIT]
            numbers = [element for element in values if isinstance(element, int | float)]
            if short or numbers:
                summaries[name] = [*short, *numbers]
        return summaries


def _summary_keys(summaries: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    for name, values in summaries.items():
        for value in {orjson.dumps(value).decode() for value in values}:
            yield name, value


def _enclosing(row: Any) -> Bbox | None:
    """Return a box that encloses all Items.

    Bounds from -180 to 180 degrees are right unless an Item crosses the antimeridian. Bounds from 0 to 360 degrees are
    right unless an Item crosses the prime meridian. If Items cross both, the box has every longitude.
    """
    if row.west is None:
        return None
    if not row.over_antimeridian:
        return (row.west, row.south, row.east, row.north)
    if not row.over_greenwich:
        west, east = (bound - 360 if bound > 180 else bound for bound in (row.west_360, row.east_360))
        return (west, row.south, east, row.north)
    return (-180.0, row.south, 180.0, row.north)


def _time_text(value: str) -> str:
    return rfc3339(datetime.fromisoformat(value))
