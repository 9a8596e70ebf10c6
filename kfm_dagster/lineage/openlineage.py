"""OpenLineage: START and COMPLETE of one unit's ingest, as plain dictionaries (pure).

Events follow https://openlineage.io/spec/2-0-2/OpenLineage.json. They are right by construction, since every value
comes from a frozen envelope; the tests hold them against the official schemas. openlineage-python's own classes cost
many times as much, so they are used only where an event leaves for a backend (`backend.py`).

Times are those of the batch: START when the run began, COMPLETE when the batch's lineage was recorded, because a unit
has no other observed times. The object's announcement is no start: a backfilled volume of 1991 would be a run of
decades. What the events say is fixed once, when they are recorded; a retry never makes them again (`store.py`).
"""

from __future__ import annotations

from typing import Any

import orjson

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.lineage.unit import PRODUCER, SCHEMAS, IngestRun, LineageUnit

Event = dict[str, Any]

JOB_NAMESPACE = "kfm-nodd"
STAC_NAMESPACE = "kfm-stac"
RUN_EVENT_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets/"


def openlineage_events(unit: LineageUnit, run: IngestRun) -> tuple[Event, Event]:
    """Return the START and the COMPLETE event of one unit.

    Facets accumulate over a run's events (OpenLineage, "Run State Updates"), so START has what is known before the
    ingest, and COMPLETE what came of it.
    """
    producer = PRODUCER + run.software_version
    job = {"namespace": JOB_NAMESPACE, "name": f"kfm.nodd.ingest.{run.public(unit.envelope.dataset)}"}
    given = data_object(unit.envelope.object_uri)
    start = {
        "eventType": "START",
        "eventTime": run.started_text,
        "run": {"runId": unit.openlineage_run_id, "facets": _start_facets(unit, run, producer)},
        "job": job,
        "inputs": [given],
        "outputs": [],
        "producer": producer,
        "schemaURL": RUN_EVENT_SCHEMA,
    }
    complete = {
        "eventType": "COMPLETE",
        "eventTime": run.occurred_text,
        "run": {"runId": unit.openlineage_run_id, "facets": _complete_facets(unit, run, producer)},
        "job": job,
        "inputs": [{**given, **_input_facets(unit, producer)}],
        # A unit that came after a newer one wrote nothing.
        "outputs": [] if unit.stac.superseded else [_output(unit, producer)],
        "producer": producer,
        "schemaURL": RUN_EVENT_SCHEMA,
    }
    return start, complete


def openlineage_lines(unit: LineageUnit, run: IngestRun) -> bytes:
    """Return both events as newline-delimited JSON, START first."""
    return b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in openlineage_events(unit, run))


def data_object(uri: str) -> dict[str, Any]:
    """Return an object as a dataset of OpenLineage: its bucket as the namespace, its key as the name."""
    scheme, _, path = uri.partition("://")
    bucket, _, key = path.partition("/")
    return {"namespace": f"{scheme}://{bucket}", "name": key}


def _start_facets(unit: LineageUnit, run: IngestRun, producer: str) -> dict[str, Any]:
    envelope = unit.envelope
    return {
        "kfmWal": _wal_facet(unit, run, producer),
        "nominalTime": {
            **_base(producer, f"{_FACETS}1-0-1/NominalTimeRunFacet.json#/$defs/NominalTimeRunFacet"),
            "nominalStartTime": rfc3339(envelope.time_range_start),
            "nominalEndTime": rfc3339(envelope.time_range_end),
        },
        "processing_engine": {
            **_base(producer, f"{_FACETS}1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet"),
            "name": "kfm_dagster",
            "version": run.software_version,
        },
    }


def _wal_facet(unit: LineageUnit, run: IngestRun, producer: str) -> dict[str, Any]:
    envelope = unit.envelope
    facet: dict[str, Any] = {
        **_base(producer, f"{SCHEMAS}kfm-wal-facet.schema.json"),
        "wal_id": envelope.wal_id,
        "dataset": run.public(envelope.dataset),
        "attempt": envelope.attempt,
        "prov_activity_id": unit.activity_id,
    }
    if unit.revision:
        facet["revision"] = unit.revision
    if envelope.replay_run_id is not None:
        facet["replay_run_id"] = envelope.replay_run_id
        if envelope.replay_reason is not None:
            facet["replay_reason"] = envelope.replay_reason
    return facet


def _complete_facets(unit: LineageUnit, run: IngestRun, producer: str) -> dict[str, Any]:
    envelope, stac = unit.envelope, unit.stac
    wal = _wal_facet(unit, run, producer) | {
        "integrity_status": envelope.integrity.status if envelope.integrity else "unknown",
        "metadata_status": envelope.metadata.status if envelope.metadata else "unknown",
        "stac_status": stac.write_status,
        "stac_item_id": stac.item_id,
        "stac_collection_id": stac.collection_id,
        "stac_item_href": stac.item_href,
    }
    if stac.superseded:
        wal["superseded"] = True
        if stac.superseded_by is not None:
            wal["superseded_by"] = stac.superseded_by
    return {
        "kfmWal": wal,
        "kfmRunState": {
            **_base(producer, f"{SCHEMAS}kfm-run-state-facet.schema.json"),
            "dataset_id": f"{run.public(envelope.dataset)}.stac_register",
            "run_id": run.run_id,
            "outcome": "success",
        },
    }


def _input_facets(unit: LineageUnit, producer: str) -> dict[str, Any]:
    envelope = unit.envelope
    facets: dict[str, Any] = {}
    if envelope.object_version is not None:
        facets["facets"] = {
            "version": {
                **_base(producer, f"{_FACETS}1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"),
                "datasetVersion": envelope.object_version,
            }
        }
    observed = envelope.integrity.actual_size_bytes if envelope.integrity else None
    size = envelope.object_size if observed is None else observed
    if size is not None:
        statistics = "InputStatisticsInputDatasetFacet"
        facets["inputFacets"] = {
            "inputStatistics": {
                **_base(producer, f"{_FACETS}1-0-0/{statistics}.json#/$defs/{statistics}"),
                "size": size,
                "fileCount": 1,
            }
        }
    return facets


def _output(unit: LineageUnit, producer: str) -> dict[str, Any]:
    # The dataset is the Collection, not each Item: a dataset per Item would bury a lineage browser. Which part of the
    # Collection the run wrote is what the official subset facet is for.
    subset = _base(producer, f"{_FACETS}1-0-0/BaseSubsetDatasetFacet.json#/$defs/OutputSubsetOutputDatasetFacet")
    return {
        "namespace": STAC_NAMESPACE,
        "name": unit.stac.collection_id,
        "outputFacets": {
            "subset": {**subset, "outputCondition": {"type": "location", "locations": [unit.stac.item_href]}}
        },
    }


def _base(producer: str, schema: str) -> dict[str, str]:
    return {"_producer": producer, "_schemaURL": schema}
