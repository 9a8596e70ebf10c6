"""Revisions: a unit's lineage beside its earlier publications, and their withdrawal.

The first publication of a unit has the empty revision, in any attempt or replay. A publication is never erased and
never repeated. If a repair has changed the unit's Item, or the lineage was withdrawn, a further revision is added; its
name is the id of the replay or the run.
The Item's hash shows whether the Item has changed; the attempt's status does not. If a repair wrote the catalog and
then died, the next attempt changes nothing, but the repair's revision must still be published.
To withdraw a batch, a second batch in the form of the first is published through the same outbox (PCS-03). In
OpenLineage, its events have the type OTHER, which adds to an ended run (OpenLineage.json 2-0-2, `eventType`). In
PROV-O, it invalidates the entities that the ingest generated. Files and rows are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from kfm_dagster.contracts.envelope import Envelope, StacResult, StacStatus, WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.batches import LineageBatches, batch_id_of
from kfm_dagster.lineage.openlineage import Event, event_lines, ingest_job, kfm_facet, run_event
from kfm_dagster.lineage.prov import SERVICE, Node, joined, jsonld, software_agent
from kfm_dagster.lineage.unit import (
    FIRST_REVISION,
    LineagePath,
    LineageUnit,
    invalidation_activity,
    item_entity,
    qc_report_entity,
)
from kfm_dagster.storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """A publication of a unit's lineage; `content_sha256` is the hash of the unit's Item.

    The hash is None if no Item was registered, or if the unit was published by a release that had no revisions yet.
    `invalidated` means withdrawn.
    """

    path: LineagePath
    revision: str
    content_sha256: str | None
    invalidated: bool = False


History = Mapping[WalId, Sequence[Revision]]
"""Publications by unit, oldest first."""


def in_revision(unit: LineageUnit, history: History, *, run_id: str) -> LineageUnit:
    """Return the unit with its revision, the Item that it replaces, and the newer Item, if any."""
    revision = _revision(unit.envelope, unit.stac, history.get(unit.wal_id, ()), run_id)
    revises, yields_to = _revised(unit, revision, history), _newer_item(unit.stac, history)
    if (revision, revises, yields_to) == (unit.revision, unit.revises, unit.yields_to):
        return unit
    return LineageUnit.of(unit.envelope, revision=revision, revises=revises, yields_to=yields_to)


def _revision(envelope: Envelope, stac: StacResult, published: Sequence[Revision], run_id: str) -> str:
    valid = _valid(published)
    # Without a replay, a further revision has the run's id as name. It exists if a retry by another release has changed
    # the Item, or if the run's publications were withdrawn.
    unused = _unused(envelope.replay_run_id or run_id, published)
    if not valid:
        return unused if published else FIRST_REVISION
    latest = valid[-1]
    if stac.superseded or latest.content_sha256 == stac.content_sha256:
        return latest.revision
    if latest.content_sha256 is None and stac.write_status is StacStatus.NO_OP:
        return latest.revision
    return unused


def _revised(unit: LineageUnit, revision: str, history: History) -> str | None:
    earlier = unit.stac.replaces
    if earlier is None or unit.stac.superseded:
        return None
    revisions = [published.revision for published in _valid(history.get(earlier, ()))]
    if earlier != unit.wal_id:
        return item_entity(earlier, revisions[-1] if revisions else FIRST_REVISION)
    before = [published for published in revisions if published != revision]
    return item_entity(earlier, before[-1]) if before else None


def _newer_item(stac: StacResult, history: History) -> str | None:
    if stac.superseded_by is None:
        return None
    published = _valid(history.get(stac.superseded_by, ()))
    return item_entity(stac.superseded_by, published[-1].revision if published else FIRST_REVISION)


def _valid(published: Sequence[Revision]) -> list[Revision]:
    return [entry for entry in published if not entry.invalidated]


def _unused(name: str, published: Sequence[Revision]) -> str:
    """Return the name; with a number if its publication was withdrawn, because no id is reused."""
    withdrawn = {entry.revision for entry in published if entry.invalidated}
    number = 1
    revision = name
    while revision in withdrawn:
        number += 1
        revision = f"{name}.{number}"
    return revision


def invalidate(
    batches: LineageBatches, *, run_id: str, contract: DatasetContract, reason: str, at: datetime, tx: Transaction
) -> int:
    """Withdraw a run's current lineage of a dataset, batch by batch; return the number of units."""
    withdrawn: set[WalId] = set()
    for batch in tx.run("lineage.standing_batches", run_id=run_id, dataset=contract.id).all():
        batch_id = batch_id_of(orjson.dumps(["invalidation", batch.batch_id]))
        mark = {"batch_id": batch.batch_id, "invalidated_by": batch_id, "reason": reason, "invalidated_at": at}
        tx.run("lineage.invalidate", mark)
        units = tx.run("lineage.emissions_of_batch", batch_id=batch.batch_id).all()
        path, activity = LineagePath(batch.path), invalidation_activity(batch.batch_id)
        attributes = {"run_id": run_id, "reason": reason}
        if path is LineagePath.PROV:
            content = jsonld(joined([node]) for node in _nodes(units, activity, rfc3339(at), attributes))
        else:
            content = event_lines(_event(unit, activity, rfc3339(at), attributes, contract) for unit in units)
        folder, _, name = batch.href.rpartition("/")
        batches.record(
            tx,
            content,
            batch_id=batch_id,
            path=path,
            dataset=contract.id,
            run_id=run_id,
            href=f"{folder}/{batch_id}.{name.rpartition('.')[2]}",
            units=len(units),
        )
        withdrawn |= {unit.wal_id for unit in units}
    return len(withdrawn)


def _event(unit: Any, activity: str, at: str, why: dict[str, str], contract: DatasetContract) -> Event:
    """Return the OpenLineage event that adds the withdrawal to a unit's run."""
    facet = kfm_facet("invalidation", wal_id=unit.wal_id, invalidated_at=at, prov_activity_id=activity, **why)
    if unit.revision:
        facet["revision"] = unit.revision
    return run_event("OTHER", at, unit.lineage_id, {"kfmInvalidation": facet}, job=ingest_job(contract.public_id))


def _nodes(units: Sequence[Any], activity: str, at: str, why: dict[str, str]) -> Iterator[Node]:
    """Yield the rollback as an activity, and the entities that it invalidated."""
    yield software_agent("kfm_dagster")
    yield {
        "id": activity,
        "type": ["Activity", "kfm:Rollback"],
        "startedAtTime": at,
        "endedAtTime": at,
        "wasAssociatedWith": [SERVICE],
        **{f"kfm:{name}": value for name, value in why.items()},
    }
    for unit in units:
        entities = [(qc_report_entity(unit.wal_id, unit.revision), "kfm:QcReport")]
        if unit.content_sha256 is not None:  # None if the catalog had a newer unit's Item already
            entities.append((item_entity(unit.wal_id, unit.revision), "kfm:StacItem"))
        for entity, kind in entities:
            yield {"id": entity, "type": ["Entity", kind], "wasInvalidatedBy": activity, "invalidatedAtTime": at}
