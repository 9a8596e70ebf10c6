"""Invalidation: withdraws what a run told, by telling so; files and rows of what was told stay (PCS-03).

A withdrawn batch gets a batch beside it, through the same outbox: per unit an OpenLineage event of type OTHER, which
adds to a run that has ended (OpenLineage.json 2-0-2, `eventType`), or the PROV-O invalidation of the entities that the
ingest generated. Both are recorded in the transaction that withdraws, once per batch.
Does not belong here: what a unit is told as afterwards (`revisions.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import pseudonym, rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.batches import BATCH_ID_DIGITS, Batch, LineageBatches
from kfm_dagster.lineage.openlineage import JOB_NAMESPACE, RUN_EVENT_SCHEMA, Event
from kfm_dagster.lineage.prov import SERVICE, Node, jsonld
from kfm_dagster.lineage.unit import (
    PRODUCER,
    SCHEMAS,
    LineagePath,
    invalidation_activity,
    item_entity,
    qc_report_entity,
)
from kfm_dagster.storage.database import Database, Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdrawn:
    """One unit's telling that is withdrawn; has_item is False when the Item never stood (a newer unit's did)."""

    wal_id: WalId
    revision: str
    lineage_id: str
    has_item: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Invalidation:
    """The withdrawal of one batch: by which activity, when, and why."""

    batch_id: str
    activity_id: str
    run_id: str
    at: datetime
    reason: str


def invalidation_event(unit: Withdrawn, why: Invalidation, contract: DatasetContract) -> Event:
    """Return the OpenLineage event that adds the withdrawal to a unit's run."""
    producer = PRODUCER + __version__
    name = pseudonym(contract.id) if contract.governed else contract.id
    facet = {
        "_producer": producer,
        "_schemaURL": f"{SCHEMAS}kfm-invalidation-facet.schema.json",
        "wal_id": unit.wal_id,
        "invalidated_at": rfc3339(why.at),
        "run_id": why.run_id,
        "reason": why.reason,
        "prov_activity_id": why.activity_id,
    }
    return {
        "eventType": "OTHER",
        "eventTime": rfc3339(why.at),
        "run": {
            "runId": unit.lineage_id,
            "facets": {"kfmInvalidation": {**facet, **({"revision": unit.revision} if unit.revision else {})}},
        },
        "job": {"namespace": JOB_NAMESPACE, "name": f"kfm.nodd.ingest.{name}"},
        "inputs": [],
        "outputs": [],
        "producer": producer,
        "schemaURL": RUN_EVENT_SCHEMA,
    }


def invalidation_nodes(units: Sequence[Withdrawn], why: Invalidation) -> Iterator[Node]:
    """Yield the rollback as an activity, and what it invalidated."""
    at = rfc3339(why.at)
    yield {"id": SERVICE, "type": ["Agent", "prov:SoftwareAgent"], "kfm:name": "kfm_dagster"}
    yield {
        "id": why.activity_id,
        "type": ["Activity", "kfm:Rollback"],
        "startedAtTime": at,
        "endedAtTime": at,
        "wasAssociatedWith": [SERVICE],
        "kfm:run_id": why.run_id,
        "kfm:reason": why.reason,
    }
    for unit in units:
        entities = [(qc_report_entity(unit.wal_id, unit.revision), "kfm:QcReport")]
        if unit.has_item:
            entities.append((item_entity(unit.wal_id, unit.revision), "kfm:StacItem"))
        for entity, kind in entities:
            yield {
                "id": entity,
                "type": ["Entity", kind],
                "wasInvalidatedBy": why.activity_id,
                "invalidatedAtTime": at,
            }


class Invalidations:
    """Withdraws runs' batches in a database."""

    def __init__(self, database: Database, batches: LineageBatches, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._batches = batches
        self._clock = clock

    def invalidate(self, *, run_id: str, contract: DatasetContract, reason: str, tx: Transaction) -> int:
        """Withdraw what a run told of a dataset and still stands; return the number of units."""
        at = self._clock()
        withdrawn: set[WalId] = set()
        standing = tx.run("lineage.standing_batches", run_id=run_id, dataset=contract.id).all()
        for row in standing:
            why = Invalidation(
                batch_id=row.batch_id,
                activity_id=invalidation_activity(row.batch_id),
                run_id=run_id,
                at=at,
                reason=reason,
            )
            withdrawn |= self._withdraw(tx, LineagePath(row.path), row.href, why, contract)
        return len(withdrawn)

    def _withdraw(
        self, tx: Transaction, path: LineagePath, href: str, why: Invalidation, contract: DatasetContract
    ) -> set[WalId]:
        batch_id = hashlib.sha256(orjson.dumps(["invalidation", why.batch_id])).hexdigest()[:BATCH_ID_DIGITS]
        ours = tx.run(
            "lineage.invalidate",
            batch_id=why.batch_id,
            invalidated_by=batch_id,
            reason=why.reason,
            invalidated_at=why.at,
        ).first()
        if ours is None:
            return set()  # another process was quicker
        units = [
            Withdrawn(
                wal_id=WalId(row.wal_id),
                revision=row.revision,
                lineage_id=row.lineage_id,
                has_item=row.content_sha256 is not None,
            )
            for row in tx.run("lineage.emissions_of_batch", batch_id=why.batch_id)
        ]
        folder, _, name = href.rpartition("/")
        batch = Batch(
            batch_id=batch_id,
            path=path,
            dataset=contract.id,
            run_id=why.run_id,
            href=f"{folder}/{batch_id}.{name.rpartition('.')[2]}",
            units=len(units),
        )
        self._batches.record(tx, batch, _content(path, units, why, contract))
        return {unit.wal_id for unit in units}


def _content(path: LineagePath, units: Sequence[Withdrawn], why: Invalidation, contract: DatasetContract) -> bytes:
    if path is LineagePath.PROV:
        return jsonld(orjson.dumps(node) for node in invalidation_nodes(units, why))
    events = (invalidation_event(unit, why, contract) for unit in units)
    return b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events)
