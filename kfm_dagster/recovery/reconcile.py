"""Reconciliation: compare bucket, ledger, catalog and lineage on a dataset's day; repair.

A comparison only reads. It requires no Item and no lineage of a unit that has not ended yet. It ignores objects younger
than 15 minutes, because their messages can still be on their way.

A repair creates units in the bulk lane, as a backfill does, for objects that the ledger does not know. With a change
reference, it also replays the units of lost Items; a replayed unit must give the same result. Objects that are gone
from the bucket, Items without a unit, and lost lineage need a person. A repair deletes nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum, unique
from functools import cache
from itertools import islice
from typing import Any

from kfm_dagster.catalog.item import content_of
from kfm_dagster.catalog.layout import day_path
from kfm_dagster.contracts.envelope import COMPLETED_BY, Envelope, WalId
from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.discovery import LISTING_CHUNK
from kfm_dagster.ingest.kill_switch_policy import refuse_switched_off
from kfm_dagster.ingest.node import in_chunks
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.recording import enter_listed
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.operators.message_parse import parse_listed
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import Mode, selection_from
from kfm_dagster.recovery.work_orders import Started, start
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.objects import ListedObject, ObjectStores
from kfm_dagster.storage.publisher import Publisher, open_publisher

ON_ITS_WAY = timedelta(minutes=15)
"""An object younger than this may not be announced yet, or its message may still wait on the queue."""
ITEMS_AT_ONCE = 5_000
_OPEN = frozenset({Status.PENDING.value, Status.IN_PROGRESS.value})
_NO_ITEM = re.compile(r"catalog\.json|page-\d{4,}\.json")
"""Files of a day's folder that are not Items."""


@unique
class Difference(StrEnum):
    """A kind of difference between bucket, ledger, catalog and lineage."""

    OBJECT_WITHOUT_UNIT = "object_without_unit"
    """The bucket has an object or version that the ledger does not know."""
    UNIT_WITHOUT_OBJECT = "unit_without_object"
    """The ledger has a unit whose object is gone from the bucket."""
    SUCCESS_WITHOUT_ITEM = "success_without_item"
    """A unit has succeeded, but its Item is not in the catalog's index, or the Item's file is missing or differs."""
    ITEM_WITHOUT_SUCCESS = "item_without_success"
    """The catalog has an Item or an Item's file, but no unit of this Item has succeeded or can still succeed."""
    SUCCESS_WITHOUT_LINEAGE = "success_without_lineage"
    """A unit has succeeded, but its lineage (OpenLineage, PROV-O) is not recorded, or a file of it is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedDay:
    """A day of a dataset: its counts, and for each kind of difference the sorted names."""

    dataset: str
    day: date
    objects: int
    units: int
    items: int
    missing_units: Sequence[ListedObject] = ()
    missing_objects: Sequence[str] = ()
    missing_items: Mapping[WalId, str] = field(default_factory=dict)
    remakeable: Sequence[WalId] = ()
    """Units whose missing Item can be created again, because their object is unchanged."""
    stray_items: Sequence[str] = ()
    missing_lineage: Sequence[str] = ()

    def counts(self) -> dict[str, int]:
        """Return the number of differences by kind."""
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


def compare_day(pipeline: Pipeline, dataset: str, day: date, *, read: bool = False) -> ComparedDay:
    """Compare bucket, ledger, catalog and lineage for a day of a dataset.

    Files of catalog and lineage are only checked for existence. With `read`, the content of each Item's file is
    compared, too, which costs a request per file. Raises ObjectReadError and StoreAccessError if a bucket cannot be
    listed, PublishError if the store of catalog or lineage does not answer.
    """
    contract, grammar = pipeline.registry[dataset], pipeline.registry.grammars[dataset]
    with pipeline.database.snapshot() as view:
        units = view.run("reconcile.units", dataset=dataset, day=day.isoformat()).all()
        emissions = view.run("reconcile.lineage", dataset=dataset, day=day.isoformat()).all()
    bucket = _listed(pipeline.objects, contract, day, units, newest=pipeline.clock() - ON_ITS_WAY)
    succeeded = [row for row in units if row.status == Status.SUCCEEDED]
    with pipeline.database.snapshot() as view:
        indexed = _indexed(succeeded, contract, view)
        current = view.run("reconcile.items_of_day", collection_id=contract.stac.collection, day=day.isoformat()).all()
    # List the files outside of a transaction, because there can be many.
    catalog, lineage = (open_publisher(url) for url in (pipeline.settings.catalog, pipeline.settings.lineage))
    names = _names(catalog)
    missing = _without_item(succeeded, indexed, names, catalog if read else None)
    pending_uris = [*bucket.unknown, *(row.object_uri for row in units if row.status in _OPEN)]
    items, stray = _stray(contract, day, names, current, coming=_item_ids(grammar, pending_uris))
    is_listed = _within(grammar.contract.storage.day_prefixes(day)).match
    gone = {
        row.object_uri
        for row in units
        if row.status in {*_OPEN, Status.SUCCEEDED} and row.object_uri not in bucket.etags and is_listed(row.object_uri)
    }
    return ComparedDay(
        dataset=dataset,
        day=day,
        objects=len(bucket.etags),
        units=len(units),
        items=items,
        missing_units=bucket.missing,
        # An object whose key has no time is listed only under the day of its newest version. On each other day the
        # object would seem to be missing.
        missing_objects=sorted(gone) if contract.storage.key_grammar.has_times else (),
        missing_items=missing,
        remakeable=[
            WalId(row.wal_id)
            for row in succeeded
            if row.wal_id in missing and row.object_uri not in gone and _is_same(row, bucket.etags.get(row.object_uri))
        ],
        stray_items=stray,
        missing_lineage=_without_lineage(succeeded, emissions, _names(lineage)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """A listed day: ETags by URI, URIs without a unit, and which of these should have a unit."""

    etags: Mapping[str, str | None]
    unknown: Sequence[str]
    missing: Sequence[ListedObject]


def _listed(
    objects: ObjectStores, contract: DatasetContract, day: date, units: Iterable[Any], *, newest: datetime
) -> _Listed:
    """List the day. The ledger knows a rewritten object only if a unit has the same version."""
    units_of: dict[str, list[Any]] = defaultdict(list)
    for row in units:
        units_of[row.object_uri].append(row)
    # ETags are compared only if messages name versions (messages about chunks do not) and the provider is AWS, because
    # AWS's versions are ETags.
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
    """Return whether an ETag is a unit's version; a missing ETag or version matches any."""
    version = (unit.object_version or "").partition(COMPLETED_BY)[0]
    return not version or etag is None or version == etag


def _within(prefixes: Iterable[str]) -> re.Pattern[str]:
    """Match the URIs below the listed prefixes; an announced object can be outside of these."""
    folders = ("[^/]+".join(map(re.escape, prefix.split("*"))) for prefix in prefixes)
    return re.compile("[^/]*//[^/]*/" + "(?:" + "|".join(folders) + ")")


_Names = Callable[[str], Collection[str]]
"""Returns the names of a folder's files; each folder is listed once."""


def _names(publisher: Publisher) -> _Names:
    return cache(lambda folder: frozenset(publisher.names(folder)))


def _has(names: _Names, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in names(folder)


def _indexed(succeeded: Sequence[Any], contract: DatasetContract, view: Transaction) -> dict[str, Any]:
    """Return the index's rows of the units' Items, by Item id."""
    indexed: dict[str, Any] = {}
    for part in in_chunks((row.stac_item_id for row in succeeded if row.stac_item_id is not None), ITEMS_AT_ONCE):
        rows = view.run("catalog.contents", collection_id=contract.stac.collection, item_ids=part)
        indexed |= {row.item_id: row for row in rows}
    return indexed


def _without_item(
    succeeded: Sequence[Any], indexed: Mapping[str, Any], names: _Names, catalog: Publisher | None
) -> dict[WalId, str]:
    """Return lost Items by unit: the Item is not indexed, or its file is missing.

    With `catalog`, also return Items whose file has other content than the index says.
    """
    lost = {row.wal_id for row in succeeded if row.stac_item_id not in indexed}
    # Only the unit that wrote the current Item can create that Item again.
    makers = {
        row.stac_item_href: indexed[row.stac_item_id]
        for row in succeeded
        if row.stac_item_href and row.wal_id not in lost and indexed[row.stac_item_id].wal_id == row.wal_id
    }
    without = [href for href in makers if not _has(names, href)]
    for part in in_chunks(sorted(makers.keys() - set(without)) if catalog else (), ITEMS_AT_ONCE):
        files = catalog.read(part) if catalog else {}
        without += [href for href in part if content_of(files.get(href)) != makers[href].content_sha256]
    lost |= {makers[href].wal_id for href in without}
    return {
        WalId(row.wal_id): row.stac_item_id or row.object_uri
        for row in sorted(succeeded, key=lambda row: row.object_uri)
        if row.wal_id in lost
    }


def _without_lineage(succeeded: Sequence[Any], emissions: Sequence[Any], names: _Names) -> list[str]:
    """Return the objects of units that lack an emission of lineage or a published file."""
    paths: dict[str, set[str]] = defaultdict(set)
    for row in emissions:
        paths[row.wal_id].add(row.path)
    # Unpublished lineage is not lost, because its bytes wait in the outbox.
    lost = {row.wal_id for row in emissions if row.state == "published" and not _has(names, row.href)}
    return sorted(
        {row.object_uri for row in succeeded if row.wal_id in lost or len(paths[row.wal_id]) < len(LineagePath)}
    )


def _stray(
    contract: DatasetContract, day: date, names: _Names, rows: Sequence[Any], *, coming: Collection[str]
) -> tuple[int, list[str]]:
    """Return the number of the dataset's Items, and the Items of ITEM_WITHOUT_SUCCESS."""
    own_rows = [row for row in rows if row.dataset == contract.id]
    stray = [row.item_id for row in own_rows if not _may_succeed(row)]
    # Datasets that share a collection share its folder, so the files are compared only for the collection's owner.
    if contract.stac.collection_of is None:
        stray += [row.item_id for row in rows if row.dataset is None]
        # After a restore of the ledger, a file can exist whose unit has yet to run. The unit writes the file again.
        known = {f"{item_id}.json" for item_id in (*(row.item_id for row in rows), *coming)}
        folder = day_path(contract.stac.collection, day.isoformat()).rpartition("/")[0]
        stray += [name for name in set(names(folder)) - known if not _NO_ITEM.fullmatch(name)]
    return len(own_rows), sorted(stray)


def _item_ids(grammar: KeyGrammarReader, uris: Iterable[str]) -> set[str]:
    matches = (grammar.match(uri.split("/", 3)[3]) for uri in uris)
    return {match.item_id for match in matches if match is not None}


def _may_succeed(row: Any) -> bool:
    return row.status in {*_OPEN, Status.SUCCEEDED} or (row.status == Status.FAILED and row.next_attempt_at is not None)


ITEMS_PER_REPLAY = 10_000
"""Maximum units that a selection names (`Filters.wal_ids`)."""


def repair_day(
    pipeline: Pipeline,
    compared: ComparedDay,
    decision: Decision,
    *,
    limit: int,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Record unknown objects; with a change reference, replay lost Items; each up to `limit`.

    Return the numbers of recorded units, repeated units and remaining differences, and the id of replay or proposal.
    Raises RefusedError for a dataset that is switched off, GuardError if a replay's guard refuses.
    """
    refuse_switched_off(pipeline.ledger.switches, compared.dataset)
    grammar = pipeline.registry.grammars[compared.dataset]
    parsed = (parse_listed(grammar, listed) for listed in compared.missing_units)
    units = islice((unit for unit in parsed if unit is not None), limit)
    entered = 0
    for chunk in in_chunks(units, LISTING_CHUNK):
        entered += _enter(pipeline, compared, decision, chunk)
        progress(entered)
    started = _repeat(ReplayEngine(pipeline=pipeline), compared, decision, min(limit, ITEMS_PER_REPLAY))
    repeated = len(started.plan.units) if started else 0
    return {
        "entered": entered,
        "repeated": repeated,
        "left": sum(compared.counts().values()) - entered - repeated,
        "replay_run_id": started and started.replay_run_id,
        "proposal_id": started and started.proposal_id,
    }


def _enter(pipeline: Pipeline, compared: ComparedDay, decision: Decision, chunk: Sequence[Envelope]) -> int:
    """Create the units of a chunk of objects, and log the repair, in one transaction."""
    day = compared.day.isoformat()
    with pipeline.database.transaction() as tx:
        # Extend the window, because a run needs a partition, and a day before the window has none.
        pipeline.window.lower(compared.day, actor=decision.actor, reason=f"reconcile: {decision.reason}"[:1000], tx=tx)
        ensured, requeued = enter_listed(pipeline.ledger, chunk, tx)
        details = {"day": day, "objects": len(ensured.created), "requeued": len(requeued)}
        pipeline.ledger.log.record(
            GovernanceAction.RECONCILED, decision, dataset=compared.dataset, details=details, tx=tx
        )
    return len(ensured.created)


def _repeat(engine: ReplayEngine, compared: ComparedDay, decision: Decision, limit: int) -> Started | None:
    """Replay units with lost Items; None if there are no such units, or no change reference."""
    if not compared.remakeable or decision.change_ref is None:
        return None
    selection = selection_from(
        engine.pipeline.settings.env,
        "the repair",
        name=f"reconcile {compared.dataset} {compared.day}",
        mode=Mode.REPAIR_AND_REPLACE.value,
        datasets=[compared.dataset],
        status=[Status.SUCCEEDED.value],
        wal_ids=[str(wal_id) for wal_id in islice(compared.remakeable, limit)],
        allow_repair_and_replace=True,
        must_match=True,
        approval=decision.change_ref,
    )
    return start(engine, selection, decision)
