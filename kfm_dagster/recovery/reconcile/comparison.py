"""What bucket, ledger, catalog and lineage say of one day of a dataset, and where they differ. Changes nothing.

An object that the bucket has had for a moment only may still be on its way to us, and a unit that waits or will be
tried again has no end yet: neither is a difference. Belongs here: comparing. Does not belong here: repairing
(`repair.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.catalog.item import content_of
from kfm_dagster.catalog.layout import day_path
from kfm_dagster.catalog.publisher import Publisher, open_publisher
from kfm_dagster.contracts.envelope import COMPLETED_BY, WalId
from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.objects import ListedObject, ObjectStores

ON_ITS_WAY = timedelta(minutes=15)
"""So young an object may not have been announced yet, or its message waits on the queue."""
ITEMS_AT_ONCE = 5_000
_OPEN = frozenset({Status.PENDING.value, Status.IN_PROGRESS.value})
_NO_ITEM = re.compile(r"catalog\.json|page-\d{4,}\.json")
"""Files of a day's folder that are no Items."""


@unique
class Difference(StrEnum):
    """A place where two of the four do not agree."""

    OBJECT_WITHOUT_UNIT = "object_without_unit"
    """The bucket has an object, or a version of one, that the ledger does not know."""
    UNIT_WITHOUT_OBJECT = "unit_without_object"
    """The ledger has a unit whose object is gone from the bucket."""
    SUCCESS_WITHOUT_ITEM = "success_without_item"
    """A unit has succeeded and its Item is not in the catalog's index, or its file is gone or says something else."""
    ITEM_WITHOUT_SUCCESS = "item_without_success"
    """The catalog has an Item, or a file of one, and no unit that has made it succeeded or may still succeed."""
    SUCCESS_WITHOUT_LINEAGE = "success_without_lineage"
    """A unit has succeeded and a path has not recorded its lineage, or the file that has it is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedDay:
    """One day of one dataset: how many of each there are, and what differs, by name in order."""

    dataset: str
    day: date
    objects: int
    units: int
    items: int
    missing_units: Sequence[ListedObject] = ()
    missing_objects: Sequence[str] = ()
    missing_items: Mapping[WalId, str] = field(default_factory=dict)
    remakeable: Sequence[WalId] = ()
    """Units with a missing Item whose object is as it was, so that it can be made again."""
    stray_items: Sequence[str] = ()
    missing_lineage: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
        """Return how many differences there are of each kind."""
        return {kind.value: len(names) for kind, names in self.named().items()}

    def named(self) -> dict[Difference, Sequence[str]]:
        """Return the objects, units and Items that differ, by kind."""
        return {
            Difference.OBJECT_WITHOUT_UNIT: [listed.uri for listed in self.missing_units],
            Difference.UNIT_WITHOUT_OBJECT: self.missing_objects,
            Difference.SUCCESS_WITHOUT_ITEM: list(self.missing_items.values()),
            Difference.ITEM_WITHOUT_SUCCESS: self.stray_items,
            Difference.SUCCESS_WITHOUT_LINEAGE: self.missing_lineage,
        }

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not any(self.counts().values())


def compare_day(pipeline: Pipeline, dataset: str, day: date, *, read: bool = False) -> ComparedDay:
    """Hold a day of a dataset's bucket, ledger, catalog and lineage against each other.

    Of the catalog's and the lineage's files it looks at the names; with `read` it reads each Item, too, a request each.
    Raises ObjectReadError and StoreAccessError where a bucket cannot be listed, and PublishError where the catalog's
    or the lineage's place does not answer.
    """
    contract, grammar = pipeline.registry[dataset], pipeline.registry.grammars[dataset]
    with pipeline.database.snapshot() as view:
        units = view.run("reconcile.units", dataset=dataset, day=day.isoformat()).all()
        emissions = view.run("reconcile.lineage", dataset=dataset, day=day.isoformat()).all()
    bucket = _listed(pipeline.objects, contract, day, units, newest=pipeline.clock() - ON_ITS_WAY)
    succeeded = [row for row in units if row.status == Status.SUCCEEDED]
    with pipeline.database.snapshot() as view:
        indexed = _indexed(succeeded, contract, view)
        standing = view.run("reconcile.items_of_day", collection_id=contract.stac.collection, day=day.isoformat()).all()
    # Files are looked at when no transaction is open: there may be many.
    files = _Files(open_publisher(pipeline.settings.catalog))
    missing = _without_item(succeeded, indexed, files, read=read)
    coming = [*bucket.unknown, *(row.object_uri for row in units if row.status in _OPEN)]
    items, stray = _stray(contract, day, files, standing, coming=_item_ids(grammar, coming))
    within = _within(grammar.contract.storage.day_prefixes(day)).match
    gone = {
        row.object_uri
        for row in units
        if row.status in {*_OPEN, Status.SUCCEEDED} and row.object_uri not in bucket.etags and within(row.object_uri)
    }
    return ComparedDay(
        dataset=dataset,
        day=day,
        objects=len(bucket.etags),
        units=len(units),
        items=items,
        missing_units=bucket.missing,
        missing_objects=sorted(gone),
        missing_items=missing,
        remakeable=[
            WalId(row.wal_id)
            for row in succeeded
            if row.wal_id in missing and row.object_uri not in gone and _is_same(row, bucket.etags.get(row.object_uri))
        ],
        stray_items=stray,
        missing_lineage=_without_lineage(succeeded, emissions, _Files(open_publisher(pipeline.settings.lineage))),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """What a bucket has of a day: ETags by URI, what the ledger does not know, and of that what it should by now."""

    etags: Mapping[str, str | None]
    unknown: Sequence[str]
    missing: Sequence[ListedObject]


def _listed(
    objects: ObjectStores, contract: DatasetContract, day: date, units: Iterable[Any], *, newest: datetime
) -> _Listed:
    """List the day. An object that was written again is known by its unit only where that is of the same version."""
    units_of: dict[str, list[Any]] = defaultdict(list)
    for row in units:
        units_of[row.object_uri].append(row)
    # Other providers' ETags are not those of the messages, and a chunk is written once.
    versions = contract.notifications.names_versions and contract.storage.provider == "aws"
    etags: dict[str, str | None] = {}
    unknown: list[ListedObject] = []
    for listed in objects.list_day(contract, day):
        etags[listed.uri] = listed.etag if versions else None
        if not any(_is_same(row, etags[listed.uri]) for row in units_of[listed.uri]):
            unknown.append(listed)
    unknown.sort(key=lambda listed: listed.uri)
    return _Listed(
        etags=etags,
        unknown=[listed.uri for listed in unknown],
        missing=[listed for listed in unknown if listed.last_modified <= newest],
    )


def _is_same(unit: Any, etag: str | None) -> bool:
    """Tell whether a unit is of an object with such an ETag; where one of them has none, it is."""
    version = (unit.object_version or "").partition(COMPLETED_BY)[0]
    return not version or etag is None or version == etag


def _within(prefixes: Iterable[str]) -> re.Pattern[str]:
    """Match the URIs below the listed prefixes; announced objects may be elsewhere."""
    folders = ("[^/]+".join(map(re.escape, prefix.split("*"))) for prefix in prefixes)
    return re.compile("[^/]*//[^/]*/" + "(?:" + "|".join(folders) + ")")


class _Files:
    """The files of the catalog's or the lineage's folders, each folder looked at once."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._names: dict[str, frozenset[str]] = {}

    def of(self, folder: str) -> frozenset[str]:
        """Return the names of a folder's files."""
        if folder not in self._names:
            self._names[folder] = frozenset(self._publisher.names(folder))
        return self._names[folder]

    def has(self, path: str) -> bool:
        """Tell whether there is a file."""
        folder, _, name = path.rpartition("/")
        return name in self.of(folder)

    def differing(self, contents: Mapping[str, str]) -> Iterator[str]:
        """Read Items whose content hashes are given by path; yield the paths whose files say something else."""
        for part in _parts(sorted(contents)):
            files = self._publisher.read(part)
            yield from (path for path in part if content_of(files.get(path)) != contents[path])


def _indexed(succeeded: Sequence[Any], contract: DatasetContract, view: Transaction) -> dict[str, Any]:
    """Return what the index says of the Items of units, by id."""
    indexed: dict[str, Any] = {}
    for part in _parts([row.stac_item_id for row in succeeded if row.stac_item_id is not None]):
        rows = view.run("catalog.contents", collection_id=contract.stac.collection, item_ids=part)
        indexed |= {row.item_id: row for row in rows}
    return indexed


def _without_item(
    succeeded: Sequence[Any], indexed: Mapping[str, Any], files: _Files, *, read: bool
) -> dict[WalId, str]:
    """Return the units whose Item is not in the index, or has no file or one that differs, with the Item's id."""
    lost = {row.wal_id for row in succeeded if row.stac_item_id not in indexed}
    # Of the versions of an object one has made the Item that stands, and only that one can make it again.
    makers = {
        row.stac_item_href: indexed[row.stac_item_id]
        for row in succeeded
        if row.stac_item_href and row.wal_id not in lost and indexed[row.stac_item_id].wal_id == row.wal_id
    }
    without = [href for href in makers if not files.has(href)]
    if read:
        without += files.differing({href: makers[href].content_sha256 for href in makers.keys() - set(without)})
    lost |= {makers[href].wal_id for href in without}
    return {
        WalId(row.wal_id): row.stac_item_id or row.object_uri
        for row in sorted(succeeded, key=lambda row: row.object_uri)
        if row.wal_id in lost
    }


def _without_lineage(succeeded: Sequence[Any], emissions: Sequence[Any], files: _Files) -> list[str]:
    """Return the objects whose unit lacks lineage on a path, or a published file of it."""
    paths: dict[str, set[str]] = defaultdict(set)
    for row in emissions:
        paths[row.wal_id].add(row.path)
    # What is not published waits in the outbox with its bytes.
    lost = {row.wal_id for row in emissions if row.state == "published" and not files.has(row.href)}
    return sorted(
        {row.object_uri for row in succeeded if row.wal_id in lost or len(paths[row.wal_id]) < len(LineagePath)}
    )


def _stray(
    contract: DatasetContract, day: date, files: _Files, rows: Sequence[Any], *, coming: Collection[str]
) -> tuple[int, list[str]]:
    """Return how many Items of the dataset the day has, and those that no unit answers for, nor will."""
    mine = [row for row in rows if row.dataset == contract.id]
    stray = [row.item_id for row in mine if not _answered_for(row)]
    # A collection that two datasets share has one folder; its files are looked through with the one that owns it.
    if contract.stac.collection_of is None:
        stray += [row.item_id for row in rows if row.dataset is None]
        # Beside a ledger that was put back there are files of Items that it will make again.
        known = {f"{item_id}.json" for item_id in (*(row.item_id for row in rows), *coming)}
        folder = day_path(contract.stac.collection, day.isoformat()).rpartition("/")[0]
        stray += [name for name in files.of(folder) - known if not _NO_ITEM.fullmatch(name)]
    return len(mine), sorted(stray)


def _item_ids(grammar: KeyGrammarReader, uris: Iterable[str]) -> set[str]:
    """Return the ids of the Items that are made of objects."""
    matches = (grammar.match(uri.split("/", 3)[3]) for uri in uris)
    return {match.item_id for match in matches if match is not None}


def _answered_for(row: Any) -> bool:
    return row.status in {*_OPEN, Status.SUCCEEDED} or (row.status == Status.FAILED and row.next_attempt_at is not None)


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), ITEMS_AT_ONCE):
        yield values[start : start + ITEMS_AT_ONCE]
