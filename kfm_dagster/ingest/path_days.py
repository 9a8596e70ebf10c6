"""Days whose beams are to be computed: those with metadata that `path_arrival` has not seen, once their units ended.

Belongs here: which days. Does not belong here: asking Dagster for them (`defs/path_arrival.py`), the node itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.ingest.path_arrivals import NODE, READER
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status

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


def days_to_compute(pipeline: Pipeline) -> list[PathDay]:
    """Return the days with metadata newer than their table, no unit that is still at work, and no table of late."""
    now = pipeline.clock()
    return [
        PathDay(dataset=contract.id, day=day, content_hash=output.content_hash)
        for contract in radars(pipeline.registry)
        for day, output in pipeline.nodes.outputs_ahead(
            f"{contract.id}.{MetadataExtract.operator}",
            later=f"{contract.id}.{NODE}",
            since=now - LOOKS_BACK,
            before=now - PAUSE,
        ).items()
        if output.record["units"] and _has_ended(pipeline, contract.id, day)
    ]


def _has_ended(pipeline: Pipeline, dataset: str, day: str) -> bool:
    counts = pipeline.ledger.day(dataset=dataset, partition=day).counts
    return not any(counts[status] for status in AT_WORK)
