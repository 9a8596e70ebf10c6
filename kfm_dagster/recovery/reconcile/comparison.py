"""What bucket, ledger and catalog say of one day of a dataset, and where they differ. Changes nothing.

An object that the bucket has had for a moment only may still be on its way to us, and a unit that waits or will be
tried again has no end yet: neither is a difference. Belongs here: comparing. Does not belong here: repairing
(`repair.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.catalog.layout import day_path
from kfm_dagster.catalog.publisher import Publisher, open_publisher
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.rows import as_json
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.objects import ListedObject

ON_ITS_WAY = timedelta(minutes=15)
"""So young an object may not have been announced yet, or its message waits on the queue."""
ITEMS_AT_ONCE = 5_000
_OPEN = frozenset({Status.PENDING.value, Status.IN_PROGRESS.value})
_NO_ITEM = re.compile(r"catalog\.json|page-\d{4,}\.json")
"""Files of a day's folder that are no Items."""


@unique
class Difference(StrEnum):
    """A place where two of the three do not agree."""

    OBJECT_WITHOUT_UNIT = "object_without_unit"
    """The bucket has an object that the ledger does not know."""
    UNIT_WITHOUT_OBJECT = "unit_without_object"
    """The ledger has a unit whose object is gone from the bucket."""
    SUCCESS_WITHOUT_ITEM = "success_without_item"
    """A unit has succeeded and its Item is not in the catalog's index, or its file is gone."""
    ITEM_WITHOUT_SUCCESS = "item_without_success"
    """The catalog has an Item, or a file of one, and no unit that has made it succeeded or may still succeed."""


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
    stray_items: Sequence[str] = ()

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
        }

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not any(self.counts().values())


def compare_day(pipeline: Pipeline, dataset: str, day: date) -> ComparedDay:
    """Hold a day of a dataset's bucket, ledger and catalog against each other.

    Raises ObjectReadError and StoreAccessError where a bucket cannot be listed, and PublishError where the catalog's
    place does not answer.
    """
    contract = pipeline.registry[dataset]
    with pipeline.database.snapshot() as view:
        units = view.run("reconcile.units", dataset=dataset, day=day.isoformat()).all()
    listed, unknown = _listed(pipeline, contract, day, {row.object_uri for row in units})
    succeeded = [row for row in units if row.status == Status.SUCCEEDED]
    files = _Files(open_publisher(pipeline.settings.catalog))
    with pipeline.database.snapshot() as view:
        missing = _without_item(succeeded, contract, files, view)
        items, stray = _stray(contract, day, files, view)
    within = _within(pipeline, contract, day)
    gone = {
        row.object_uri
        for row in units
        if row.status in {*_OPEN, Status.SUCCEEDED} and row.object_uri not in listed and within(row.object_uri)
    }
    return ComparedDay(
        dataset=dataset,
        day=day,
        objects=len(listed),
        units=len(units),
        items=items,
        missing_units=unknown,
        missing_objects=sorted(gone),
        missing_items=missing,
        stray_items=stray,
    )


def _listed(
    pipeline: Pipeline, contract: DatasetContract, day: date, known: set[str]
) -> tuple[set[str], list[ListedObject]]:
    """Return what the bucket has, and those of it that the ledger does not know and should by now."""
    newest: datetime = pipeline.clock() - ON_ITS_WAY
    listed: set[str] = set()
    unknown = []
    for found in pipeline.objects.list_day(contract, day):
        listed.add(found.uri)
        if found.uri not in known and found.last_modified <= newest:
            unknown.append(found)
    return listed, sorted(unknown, key=lambda one: one.uri)


class _Within:
    """Whether a listing of the day looks where an object is: what is announced may be in no prefix that is listed."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        folders = ("[^/]+".join(map(re.escape, prefix.split("*"))) for prefix in prefixes)
        self._pattern = re.compile("|".join(f"(?:{folder})" for folder in folders))

    def __call__(self, uri: str) -> bool:
        return self._pattern.match(uri.split("/", 3)[3]) is not None


def _within(pipeline: Pipeline, contract: DatasetContract, day: date) -> _Within:
    return _Within(pipeline.registry.grammars[contract.id].prefixes(day))


class _Files:
    """The files of the catalog's folders, each folder looked at once."""

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


def _without_item(
    succeeded: Sequence[Any], contract: DatasetContract, files: _Files, view: Transaction
) -> dict[WalId, str]:
    """Return the units whose Item is not in the index, or has no file, with the Item's id."""
    indexed: set[str] = set()
    for part in _parts([row.stac_item_id for row in succeeded if row.stac_item_id is not None]):
        rows = view.run("reconcile.indexed", collection_id=contract.stac.collection, item_ids=as_json(part))
        indexed |= set(rows.scalars())
    return {
        WalId(row.wal_id): row.stac_item_id or row.object_uri
        for row in sorted(succeeded, key=lambda row: row.object_uri)
        if row.stac_item_id not in indexed or (row.stac_item_href is not None and not files.has(row.stac_item_href))
    }


def _stray(contract: DatasetContract, day: date, files: _Files, view: Transaction) -> tuple[int, list[str]]:
    """Return how many Items of the dataset the day has, and those that no unit answers for."""
    rows = view.run("reconcile.items_of_day", collection_id=contract.stac.collection, day=day.isoformat()).all()
    mine = [row for row in rows if row.dataset == contract.id]
    stray = [row.item_id for row in mine if not _answered_for(row)]
    # A collection that two datasets share has one folder; its files are looked through with the one that owns it.
    if contract.stac.collection_of is None:
        stray += [row.item_id for row in rows if row.dataset is None]
        known = {f"{row.item_id}.json" for row in rows}
        folder = day_path(contract.stac.collection, day.isoformat()).rpartition("/")[0]
        stray += [name for name in files.of(folder) - known if not _NO_ITEM.fullmatch(name)]
    return len(mine), sorted(stray)


def _answered_for(row: Any) -> bool:
    return row.status in {*_OPEN, Status.SUCCEEDED} or (row.status == Status.FAILED and row.next_attempt_at is not None)


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), ITEMS_AT_ONCE):
        yield values[start : start + ITEMS_AT_ONCE]
