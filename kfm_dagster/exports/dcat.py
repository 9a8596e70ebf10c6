"""DCAT export: each collection as a dcat:Dataset, in JSON-LD with inline context (RSP-14).

Terms are from https://www.w3.org/TR/vocab-dcat-3/. The document is built from the index and run-state, without the
time of the export, so the same database gives the same bytes. Does not belong here: terms that follow from a contract
alone (`dcat_terms.py`), and STAC's own documents (`catalog/documents.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.documents import ROOT_DESCRIPTION, ROOT_ID, ROOT_TITLE
from kfm_dagster.catalog.index import Bbox, CollectionIndex, Extent
from kfm_dagster.catalog.store import PAGE_SIZE
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.exports import dcat_terms
from kfm_dagster.exports.atomic_files import ExportFile, atomic_files
from kfm_dagster.exports.dcat_terms import Document
from kfm_dagster.idempotent_node.wal import run_uuid
from kfm_dagster.run_state.record import RunState
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.storage.database import Database, Transaction

PUBLISHER = "Kansas Frontier Matrix"
CATALOG_ID = f"urn:kfm:catalog:{ROOT_ID}"
FILE = ExportFile(name="catalog.jsonld", opening=f'{{\n "id": "{CATALOG_ID}",\n'.encode())

_PREFIXES = {
    "adms": "http://www.w3.org/ns/adms#",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dct": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "geo": "http://www.opengis.net/ont/geosparql#",
    "kfm": "https://kfm.dev/ns/nodd#",
    "prov": "http://www.w3.org/ns/prov#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "vcard": "http://www.w3.org/2006/vcard/ns#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
_TEXTS = {
    "title": "dct:title",
    "description": "dct:description",
    "identifier": "dct:identifier",
    "rights": "dct:rights",
    "keyword": "dcat:keyword",
    "version": "dcat:version",
    "versionNotes": "adms:versionNotes",
    "name": "foaf:name",
    "label": "rdfs:label",
    "prefLabel": "skos:prefLabel",
    "fn": "vcard:fn",
    **{name: f"kfm:{name}" for name in ("dataset_id", "run_id", "inputs_hash", "outcome", "care_label")},
}
_LINKS = {
    "dataset": "dcat:dataset",
    "distribution": "dcat:distribution",
    "accessURL": "dcat:accessURL",
    "mediaType": "dcat:mediaType",
    "license": "dct:license",
    "publisher": "dct:publisher",
    "creator": "dct:creator",
    "spatial": "dct:spatial",
    "temporal": "dct:temporal",
    "provenance": "dct:provenance",
    "homepage": "foaf:homepage",
    "theme": "dcat:theme",
    "inScheme": "skos:inScheme",
    "accrualPeriodicity": "dct:accrualPeriodicity",
    "format": "dct:format",
    "contactPoint": "dcat:contactPoint",
    "hasEmail": "vcard:hasEmail",
    "hasURL": "vcard:hasURL",
    "wasGeneratedBy": "prov:wasGeneratedBy",
    "run_state": "kfm:run_state",
}
_TIMES = {
    "issued": "dct:issued",
    "modified": "dct:modified",
    "startDate": "dcat:startDate",
    "endDate": "dcat:endDate",
    "recorded_at": "kfm:recorded_at",
}
CONTEXT: Document = {
    **_PREFIXES,
    "id": "@id",
    "type": "@type",
    "bbox": {"@id": "dcat:bbox", "@type": "geo:wktLiteral"},
    **_TEXTS,
    **{name: {"@id": term, "@type": "@id"} for name, term in _LINKS.items()},
    **{name: {"@id": term, "@type": "xsd:dateTime"} for name, term in _TIMES.items()},
}


def export_dcat(
    database: Database,
    registry: ContractRegistry,
    run_states: RunStateStore,
    *,
    catalog: str,
    folder: Path,
    contact: str = "",
) -> Path:
    """Write the catalog's datasets to a folder and return the file.

    `catalog` is the STAC catalog's public address, else its URL or folder; `contact` is an address for readers,
    `mailto:` or a page: without one, each dataset names its producer's. Raises ContractError for a collection without
    a contract, ForeignFileError, ConfigurationError.
    """
    own_contact = dcat_terms.contact(PUBLISHER, contact) if contact else {}
    with database.snapshot() as tx:
        tx.run("exports.stand_still")
        datasets = [
            {
                **_dataset(row, registry[row.dataset], catalog=catalog, tx=tx, run_states=run_states),
                **(own_contact or dcat_terms.producers_contact(registry[row.dataset])),
            }
            for row in tx.run("exports.collections").all()
        ]
    with atomic_files(folder, [FILE]) as [file]:
        # The opening, which has the document's first member, is written already.
        text = json.dumps(_catalog(datasets) | own_contact, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        file.write(text.encode().removeprefix(FILE.opening))
    return folder / FILE.name


def _catalog(datasets: list[Document]) -> Document:
    return {
        "id": CATALOG_ID,
        "@context": CONTEXT,
        "type": "dcat:Catalog",
        "title": ROOT_TITLE,
        "description": ROOT_DESCRIPTION,
        "publisher": _agent(PUBLISHER, None),
        "dataset": datasets,
    }


def _dataset(
    row: Any, contract: DatasetContract, *, catalog: str, tx: Transaction, run_states: RunStateStore
) -> Document:
    iri = f"urn:kfm:collection:{row.collection_id}"
    latest = tx.run("exports.latest_run", dataset=contract.id).one_or_none()
    recorded = [] if latest is None else run_states.of_run(latest.run_id)
    states = [
        # A public document names a governed dataset by its pseudonym.
        replace(state, dataset_id=f"{contract.public_id}.{state.dataset_id.rpartition('.')[2]}")
        for state in recorded
        if state.dataset_id.rpartition(".")[0] == contract.id
    ]
    extent = CollectionIndex(tx, contract, page_size=PAGE_SIZE).extent() if row.items else None
    return {
        "id": iri,
        "type": "dcat:Dataset",
        "identifier": row.collection_id,
        "title": row.title,
        "description": contract.metadata.description,
        "keyword": sorted(contract.stac.keywords),
        "publisher": _agent(PUBLISHER, None),
        "creator": [_agent(agent.name, agent.url) for agent in contract.stac.providers if "producer" in agent.roles],
        **dcat_terms.licence(contract),
        **dcat_terms.themes(contract),
        **dcat_terms.frequency(contract),
        "care_label": contract.governance.care_label,
        **(_where_and_when(extent) if extent else {}),
        **_version(row, states),
        "distribution": dcat_terms.distributions(iri, row.collection_id, contract, catalog=catalog),
        **_provenance(states),
    }


def _agent(name: str, url: str | None) -> Document:
    agent = {"id": f"urn:uuid:{uuid8('prov', 'agent', name)}", "type": ["foaf:Agent", "prov:Agent"], "name": name}
    return agent if url is None else {**agent, "homepage": url}


def _where_and_when(extent: Extent) -> Document:
    members: Document = {
        "temporal": {"type": "dct:PeriodOfTime", "startDate": extent.start, "endDate": extent.end},
    }
    if extent.bbox is not None:
        members["spatial"] = {"type": "dct:Location", "bbox": wkt(extent.bbox)}
    return members


def wkt(bbox: Bbox) -> str:
    """Return a box in WGS 84 degrees as WKT; a box across the antimeridian gives two polygons."""
    west, south, east, north = bbox
    halves = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    rings = [
        "((" + ", ".join(f"{x} {y}" for x, y in ((w, south), (e, south), (e, north), (w, north), (w, south))) + "))"
        for w, e in halves
    ]
    return f"POLYGON {rings[0]}" if len(rings) == 1 else f"MULTIPOLYGON ({', '.join(rings)})"


def _version(row: Any, states: list[RunState]) -> Document:
    """Return the collection's version: the time of the last change of an Item."""
    if not row.items:
        return {"versionNotes": "No Item is in this collection yet."}
    changed = rfc3339(row.changed_at)
    outcomes = ", ".join(f"{state.dataset_id} {state.outcome.value}" for state in states) or "none recorded"
    return {
        "issued": rfc3339(row.first_at),
        "modified": changed,
        "version": changed,
        "versionNotes": f"{row.items} Items; an Item last changed at {changed}. The latest run: {outcomes}.",
    }


def _provenance(states: list[RunState]) -> Document:
    """Return the provenance of the collection: the run-state of its latest run."""
    if not states:
        return {"provenance": {"type": "dct:ProvenanceStatement", "label": "No run has recorded its state yet."}}
    run_id = states[0].run_id
    run = {"id": f"urn:uuid:{run_uuid(run_id)}", "type": "prov:Activity", "run_id": run_id}
    return {
        "provenance": {
            "type": "dct:ProvenanceStatement",
            "label": f"Made by kfm_dagster; its latest run is {run_id}, explained by its run-state.",
            "run_state": [_run_state(state) for state in states],
        },
        "wasGeneratedBy": run,
    }


def _run_state(state: RunState) -> Document:
    facts: Mapping[str, str] = {
        "dataset_id": state.dataset_id,
        "run_id": state.run_id,
        "inputs_hash": state.inputs_hash,
        "outcome": state.outcome.value,
        "recorded_at": rfc3339(state.recorded_at),
    }
    identity = uuid8("run-state", state.dataset_id, state.run_id)
    return {"id": f"urn:uuid:{identity}", "type": "prov:Entity", **facts}
