"""Invalidation: publishes the withdrawal of a run's lineage; files and rows stay (PCS-03).

A withdrawn batch gets a second batch, through the same outbox: per unit an OpenLineage event of type OTHER, which
adds to a run that has ended (OpenLineage.json 2-0-2, `eventType`), or the PROV-O invalidation of the entities that the
ingest generated. Both are recorded in the transaction that withdraws, once per batch.
Does not belong here: a unit's next revision (`revisions.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.batches import BATCH_ID_DIGITS, LineageBatches
from kfm_dagster.lineage.openlineage import Event, event_lines, ingest_job, kfm_facet, run_event
from kfm_dagster.lineage.prov import SERVICE, Node, joined, jsonld, software_agent
from kfm_dagster.lineage.unit import LineagePath, invalidation_activity, item_entity, qc_report_entity
from kfm_dagster.storage.database import Transaction


def invalidate(
    batches: LineageBatches, *, run_id: str, contract: DatasetContract, reason: str, at: datetime, tx: Transaction
) -> int:
    """Withdraw a run's current lineage of a dataset; return the number of units."""
    withdrawn: set[WalId] = set()
    for batch in tx.run("lineage.standing_batches", run_id=run_id, dataset=contract.id).all():
        batch_id = hashlib.sha256(orjson.dumps(["invalidation", batch.batch_id])).hexdigest()[:BATCH_ID_DIGITS]
        mark = {"batch_id": batch.batch_id, "invalidated_by": batch_id, "reason": reason, "invalidated_at": at}
        if tx.run("lineage.invalidate", mark).first() is None:
            continue  # another process has withdrawn it
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
        if unit.content_sha256 is not None:  # else the Item never reached the catalog, which had a newer unit's
            entities.append((item_entity(unit.wal_id, unit.revision), "kfm:StacItem"))
        for entity, kind in entities:
            yield {"id": entity, "type": ["Entity", kind], "wasInvalidatedBy": activity, "invalidatedAtTime": at}
