"""Days whose beams are to be computed: those with metadata that `path_arrival` has not seen, once their units ended.

Belongs here: which days. Does not belong here: asking Dagster for them (`defs/path_arrival.py`), the node itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.ingest.path_arrivals import NODE, READER
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger

LOOKS_BACK = timedelta(days=2)
"""Metadata older than this have been asked for long since, or by a person."""
PAUSE = timedelta(minutes=10)
"""Between two tables of one day, whose volumes may come one by one."""
AT_WORK = (Status.PENDING, Status.IN_PROGRESS, Status.FAILED)


@dataclass(frozen=True, kw_only=True, slots=True)
class PathDay:
    """A dataset's day to compute; `content_hash` is that of the metadata that were added last."""

    dataset: str
    day: str
    content_hash: str


def radars(registry: ContractRegistry) -> list[DatasetContract]:
    """Return the datasets of radar volumes: those with beams."""
    return [contract for contract in registry if contract.metadata_extract.reader == READER]


def days_to_compute(ledger: Ledger, nodes: IdempotentNodes, *, at: datetime) -> list[PathDay]:
    """Return the days with metadata newer than their table, no unit that is still at work, and no table of late."""

    def has_ended(dataset: str, day: str) -> bool:
        counts = ledger.day(dataset=dataset, partition=day).counts
        return not any(counts[status] for status in AT_WORK)

    return [
        PathDay(dataset=contract.id, day=day, content_hash=output.content_hash)
        for contract in radars(ledger.registry)
        for day, output in nodes.outputs_ahead(
            f"{contract.id}.{MetadataExtract.operator}",
            later=f"{contract.id}.{NODE}",
            since=at - LOOKS_BACK,
            before=at - PAUSE,
        ).items()
        if output.record["units"] and has_ended(contract.id, day)
    ]
