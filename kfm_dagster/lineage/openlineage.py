"""OpenLineage: form of an event, and START and COMPLETE of a unit's ingest, as dicts (pure).

Events follow https://openlineage.io/spec/2-0-2/OpenLineage.json. Events are valid by construction, because every value
comes from a frozen envelope; the tests validate events by the official schemas. openlineage-python's own classes need
many times the CPU, so they are used only to send an event to a backend (`delivery.py`).

The times of a single unit are not observed. So START has the time of the batch's claim, and COMPLETE the time when its
lineage is recorded. If START had the time of the data, the run of a backfilled volume of 1991 would last for decades.
An event is built once, when it is recorded, and not again by a retry (`store.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.lineage.unit import IngestRun, LineageUnit

Event = dict[str, Any]

JOB_NAMESPACE = "kfm-nodd"
_PRODUCER = f"https://kfm.dev/kfm_dagster/{__version__}"
"""URI that identifies the software; no document needs to be there."""
_SCHEMAS = "https://kfm.dev/schemas/"
"""Base of the `$id`s of our published JSON Schemas (docs/spec)."""
_SPEC = "https://openlineage.io/spec/"


def run_event(
    kind: str,
    at: str,
    run_id: str,
    facets: Mapping[str, Any],
    *,
    job: Mapping[str, str],
    inputs: Sequence[Mapping[str, Any]] = (),
    outputs: Sequence[Mapping[str, Any]] = (),
) -> Event:
    """Return an event of a run; `at` is in RFC 3339."""
    return {
        "eventType": kind,
        "eventTime": at,
        "run": {"runId": run_id, "facets": facets},
        "job": job,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "producer": _PRODUCER,
        "schemaURL": f"{_SPEC}2-0-2/OpenLineage.json#/$defs/RunEvent",
    }


def ingest_job(dataset: str) -> dict[str, str]:
    """Return the job that ingests a dataset, by the dataset's public name."""
    return {"namespace": JOB_NAMESPACE, "name": f"kfm.nodd.ingest.{dataset}"}


def official_facet(release: str, name: str, definition: str = "", /, **members: Any) -> dict[str, Any]:
    """Return an official facet by its schema's file and, if named differently, its definition."""
    schema = f"{_SPEC}facets/{release}/{name}.json#/$defs/{definition or name}"
    return {"_producer": _PRODUCER, "_schemaURL": schema, **members}


def kfm_facet(name: str, /, **members: Any) -> dict[str, Any]:
    """Return a facet of this project, which docs/spec defines."""
    return {"_producer": _PRODUCER, "_schemaURL": f"{_SCHEMAS}kfm-{name}-facet.schema.json", **members}


def error_facet(message: str) -> dict[str, Any]:
    """Return the facet of a run that failed."""
    return official_facet("1-0-1", "ErrorMessageRunFacet", message=message, programmingLanguage="PYTHON")


def version_facet(version: str) -> dict[str, Any]:
    """Return the facet that names a dataset's version."""
    return official_facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=version)


def statistics_of_input(**known: Any) -> dict[str, Any]:
    """Return the input facet with the known amounts of data read; empty if no amount is known."""
    counts = {name: value for name, value in known.items() if value is not None}
    facet = official_facet("1-0-0", "InputStatisticsInputDatasetFacet", **counts)
    return {"inputStatistics": facet} if counts else {}


def event_lines(events: Iterable[Event]) -> bytes:
    """Return events as newline-delimited JSON."""
    return b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events)


def openlineage_events(unit: LineageUnit, run: IngestRun) -> tuple[Event, Event]:
    """Return the START and the COMPLETE event of a unit.

    Facets accumulate over a run's events (OpenLineage, "Run State Updates"). So START has the facts known before the
    ingest, and COMPLETE has the results of the ingest.
    """
    job, source = ingest_job(run.dataset), data_object(unit.envelope.object_uri)
    return (
        run_event("START", run.started_at, unit.openlineage_run_id, _start_facets(unit, run), job=job, inputs=[source]),
        run_event(
            "COMPLETE",
            run.occurred_at,
            unit.openlineage_run_id,
            _complete_facets(unit, run),
            job=job,
            inputs=[{**source, **_input_facets(unit)}],
            # If a newer unit was registered first, this unit wrote no Item.
            outputs=[] if unit.stac.superseded else [_output(unit)],
        ),
    )


def data_object(uri: str) -> dict[str, Any]:
    """Return an object as an OpenLineage dataset: bucket as namespace, key as name."""
    scheme, _, path = uri.partition("://")
    bucket, _, key = path.partition("/")
    return {"namespace": f"{scheme}://{bucket}", "name": key}


def _start_facets(unit: LineageUnit, run: IngestRun) -> dict[str, Any]:
    envelope = unit.envelope
    return {
        "kfmWal": _wal_facet(unit, run),
        "nominalTime": official_facet(
            "1-0-1",
            "NominalTimeRunFacet",
            nominalStartTime=rfc3339(envelope.time_range_start),
            nominalEndTime=rfc3339(envelope.time_range_end),
        ),
        "processing_engine": official_facet(
            "1-1-1", "ProcessingEngineRunFacet", name="kfm_dagster", version=__version__
        ),
    }


def _wal_facet(unit: LineageUnit, run: IngestRun) -> dict[str, Any]:
    envelope = unit.envelope
    facet = kfm_facet(
        "wal",
        wal_id=envelope.wal_id,
        dataset=run.dataset,
        attempt=envelope.attempt,
        prov_activity_id=unit.activity_id,
    )
    if unit.revision:
        facet["revision"] = unit.revision
    if envelope.replay_run_id is not None:
        facet["replay_run_id"] = envelope.replay_run_id
        if envelope.replay_reason is not None:
            facet["replay_reason"] = envelope.replay_reason
    return facet


def _complete_facets(unit: LineageUnit, run: IngestRun) -> dict[str, Any]:
    envelope, stac = unit.envelope, unit.stac
    wal = _wal_facet(unit, run) | {
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
    dataset_id = f"{run.dataset}.stac_register"
    state = kfm_facet("run-state", dataset_id=dataset_id, run_id=run.run_id, outcome="success")
    return {"kfmWal": wal, "kfmRunState": state}


def _input_facets(unit: LineageUnit) -> dict[str, Any]:
    envelope = unit.envelope
    facets: dict[str, Any] = {}
    if envelope.object_version is not None:
        facets["facets"] = {"version": version_facet(envelope.object_version)}
    observed = envelope.integrity.actual_size_bytes if envelope.integrity else None
    size = envelope.object_size if observed is None else observed
    if size is not None:
        facets["inputFacets"] = statistics_of_input(size=size, fileCount=1)
    return facets


def _output(unit: LineageUnit) -> dict[str, Any]:
    # The dataset is the Collection, because a dataset for each Item would flood a lineage browser. The official subset
    # facet names the part of the Collection that the run wrote.
    subset = official_facet(
        "1-0-0",
        "BaseSubsetDatasetFacet",
        "OutputSubsetOutputDatasetFacet",
        outputCondition={"type": "location", "locations": [unit.stac.item_href]},
    )
    return {"namespace": "kfm-stac", "name": unit.stac.collection_id, "outputFacets": {"subset": subset}}
