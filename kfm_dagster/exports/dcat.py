"""DCAT export: each collection as a dcat:Dataset, in JSON-LD with inline context (RSP-14).

Terms are from https://www.w3.org/TR/vocab-dcat-3/, controlled terms from ISO 19115 (topic categories) and the EU's
authority tables, which DCAT-AP and DCAT-US both accept; a frequency has DCAT-US's ISO 8601 interval as its label. The
document is built from the index and run-state, without the time of the export, so the same database gives the same
bytes. Does not belong here: STAC's own documents (`catalog/documents.py`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.assets import anyone_reads, bucket_endpoint
from kfm_dagster.catalog.documents import ROOT_DESCRIPTION, ROOT_ID, ROOT_TITLE
from kfm_dagster.catalog.index import Bbox, CollectionIndex, Extent
from kfm_dagster.catalog.layout import JSON, collection_path
from kfm_dagster.catalog.store import PAGE_SIZE
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract, Provider
from kfm_dagster.exports.atomic_files import write_document
from kfm_dagster.idempotent_node.wal import run_uuid
from kfm_dagster.run_state.record import RunState
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.storage.database import Database, Transaction

Document = dict[str, Any]

PUBLISHER = "Kansas Frontier Matrix"
CATALOG_ID = f"urn:kfm:catalog:{ROOT_ID}"
FILE = "catalog.jsonld"
OPENING = f'{{\n "id": "{CATALOG_ID}",\n'.encode()

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
    "dct": ("title", "description", "identifier", "rights"),
    "dcat": ("keyword", "version"),
    "adms": ("versionNotes",),
    "foaf": ("name",),
    "rdfs": ("label",),
    "skos": ("prefLabel",),
    "vcard": ("fn",),
    "kfm": ("dataset_id", "run_id", "inputs_hash", "outcome", "care_label"),
}
_LINKS = {
    "dcat": ("dataset", "distribution", "accessURL", "mediaType", "theme", "contactPoint"),
    "dct": ("license", "publisher", "creator", "spatial", "temporal", "provenance", "accrualPeriodicity", "format"),
    "foaf": ("homepage",),
    "skos": ("inScheme",),
    "vcard": ("hasEmail", "hasURL"),
    "prov": ("wasGeneratedBy",),
    "kfm": ("run_state",),
}
_TIMES = {"dct": ("issued", "modified"), "dcat": ("startDate", "endDate"), "kfm": ("recorded_at",)}
"""Terms of texts, links and times, by prefix. In the document, the member of a term has the term's name."""
CONTEXT: Document = {
    **_PREFIXES,
    "id": "@id",
    "type": "@type",
    "bbox": {"@id": "dcat:bbox", "@type": "geo:wktLiteral"},
    **{name: f"{prefix}:{name}" for prefix, names in _TEXTS.items() for name in names},
    **{
        name: {"@id": f"{prefix}:{name}", "@type": kind}
        for kind, terms in (("@id", _LINKS), ("xsd:dateTime", _TIMES))
        for prefix, names in terms.items()
        for name in names
    },
}

_DAY = 86_400
_TOPICS = "http://inspire.ec.europa.eu/metadata-codelist/TopicCategory"
_ATMOSPHERE = ("climatologyMeteorologyAtmosphere", "Climatology, meteorology, atmosphere")
_TOPIC_OF = {
    **dict.fromkeys(
        ("air quality", "climate", "forecast", "lightning", "model", "radar", "satellite", "surface observations"),
        _ATMOSPHERE,
    ),
    **dict.fromkeys(("cryosphere", "ocean"), ("oceans", "Oceans")),
    "water": ("inlandWaters", "Inland waters"),
}
"""Topic category of ISO 19115 for each theme of our contracts; another theme has only its own concept."""
_FREQUENCIES = "http://publications.europa.eu/resource/authority/frequency"
_FREQUENCY_OF = {3600: "HOURLY", 3 * 3600: "TRIHOURLY", 12 * 3600: "12HRS", _DAY: "DAILY", 7 * _DAY: "WEEKLY"}
_FORMAT_OF = {"application/netcdf": "NetCDF", "application/wmo-GRIB2": "GRIB2", JSON: "JSON"}
"""Names of formats with a media type of their own; other formats are named by the asset's title."""
_OBJECT_SCHEMES = {"aws": "s3", "gcp": "gs", "azure": "az"}
_NO_SPDX = {"other", "various", "proprietary"}
"""Words that STAC allows instead of an SPDX identifier."""


def export_dcat(
    database: Database,
    registry: ContractRegistry,
    run_states: RunStateStore,
    *,
    catalog: str,
    folder: Path,
    contact: str,
) -> Path:
    """Write the catalog's datasets to a folder and return the file.

    `catalog` is the STAC catalog's public address, else its URL or folder. `contact` is an address for readers,
    `mailto:` or a page; if it is empty, each dataset names its producer as contact. Raises ContractError for a
    collection without a contract, ForeignFileError, ConfigurationError.
    """
    own_contact = contact_point(PUBLISHER, contact) if contact else {}
    with database.snapshot() as tx:
        tx.run("exports.stand_still")
        datasets = [
            {
                **_dataset(row, registry[row.dataset], catalog=catalog, tx=tx, run_states=run_states),
                **(own_contact or producers_contact(registry[row.dataset])),
            }
            for row in tx.run("exports.collections").all()
        ]
    document: Document = {
        "id": CATALOG_ID,
        "@context": CONTEXT,
        "type": "dcat:Catalog",
        "title": ROOT_TITLE,
        "description": ROOT_DESCRIPTION,
        "publisher": _agent(PUBLISHER, None),
        "dataset": datasets,
    }
    text = json.dumps(document | own_contact, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_document(folder / FILE, text, opening=OPENING)
    return folder / FILE


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
        **licence(contract),
        **themes(contract),
        **frequency(contract),
        "care_label": contract.governance.care_label,
        **(_where_and_when(extent) if extent else {}),
        **_version(row, states),
        "distribution": distributions(iri, row.collection_id, contract, catalog=catalog),
        **_provenance(states),
    }


def _agent(name: str, url: str | None) -> Document:
    agent = {"id": f"urn:uuid:{uuid8('prov', 'agent', name)}", "type": ["foaf:Agent", "prov:Agent"], "name": name}
    return agent if url is None else {**agent, "homepage": url}


def _where_and_when(extent: Extent) -> Document:
    period = {"type": "dct:PeriodOfTime", "startDate": extent.start, "endDate": extent.end}
    place = {} if extent.bbox is None else {"spatial": {"type": "dct:Location", "bbox": wkt(extent.bbox)}}
    return {"temporal": period, **place}


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
    return {
        "id": f"urn:uuid:{uuid8('run-state', state.dataset_id, state.run_id)}",
        "type": "prov:Entity",
        "dataset_id": state.dataset_id,
        "run_id": state.run_id,
        "inputs_hash": state.inputs_hash,
        "outcome": state.outcome.value,
        "recorded_at": rfc3339(state.recorded_at),
    }


def licence(contract: DatasetContract) -> Document:
    """Return licence and rights, which both a dataset and its distributions state."""
    governance = contract.governance
    attribution = {"rights": governance.attribution} if governance.attribution else {}
    if governance.license in _NO_SPDX:
        return {"rights": [governance.license, *attribution.values()]}
    return {"license": f"https://spdx.org/licenses/{governance.license}", **attribution}


def themes(contract: DatasetContract) -> Document:
    """Return the contract's own theme and its topic category."""
    theme = contract.metadata.labels.get("theme")
    if theme is None:
        return {}
    concept = {"id": f"urn:uuid:{uuid8('theme', theme)}", "type": "skos:Concept", "prefLabel": theme}
    if theme not in _TOPIC_OF:
        return {"theme": [concept]}
    code, label = _TOPIC_OF[theme]
    topic = {"id": f"{_TOPICS}/{code}", "type": "skos:Concept", "prefLabel": label, "inScheme": _TOPICS}
    return {"theme": [topic, concept]}


def frequency(contract: DatasetContract) -> Document:
    """Return the update frequency: never (retired), of listings or product hours, or continuous."""
    seconds = _interval(contract)
    if contract.metadata.retired:
        code, label = "NEVER", "never"
    elif seconds is None:
        code, label = "UPDATE_CONT", "R/PT1S"
    else:
        days, hours = divmod(seconds // 3600, 24)
        label = f"R/P{days}D" if days and not hours else f"R/PT{max(1, seconds // 3600)}H"
        code = _FREQUENCY_OF.get(seconds, "")
    identity = f"{_FREQUENCIES}/{code}" if code else f"urn:uuid:{uuid8('frequency', label)}"
    return {"accrualPeriodicity": {"id": identity, "type": "dct:Frequency", "label": label}}


def _interval(contract: DatasetContract) -> int | None:
    """Return the seconds between listings, else between product hours; None without both."""
    listing = contract.storage.scheduled_listing
    if listing is not None and not contract.notifications.topics:
        return listing.every_seconds
    products = contract.coverage.products if contract.coverage else []
    if not products or not all(product.hours for product in products):
        return None
    return _DAY // len({hour for product in products for hour in product.hours})


def contact_point(name: str, address: str) -> Document:
    """Return a contact point: a name with an e-mail address (mailto:) or a page."""
    means = {"hasEmail": address} if address.startswith("mailto:") else {"hasURL": address}
    return {
        "contactPoint": {"id": f"urn:uuid:{uuid8('contact', name, address)}", "type": "vcard:Organization", "fn": name}
        | means
    }


def producers_contact(contract: DatasetContract) -> Document:
    """Return the contact point of the first producer with a URL, for a catalog without contact."""
    producers: list[Provider] = [agent for agent in contract.stac.providers if "producer" in agent.roles and agent.url]
    return contact_point(producers[0].name, str(producers[0].url)) if producers else {}


def distributions(iri: str, collection_id: str, contract: DatasetContract, *, catalog: str) -> list[Document]:
    """Return the STAC Collection and each bucket's data; public buckets have https addresses."""
    asset, terms = contract.stac.data_asset, licence(contract)
    collection = _distribution(f"{iri}:stac", "STAC Collection", _url(catalog, collection_path(collection_id)), JSON)
    data = [
        _distribution(f"{iri}:data:{bucket}", asset.title, _bucket_url(contract, bucket), asset.media_type)
        | terms
        | {"identifier": f"{_OBJECT_SCHEMES[contract.storage.provider]}://{bucket}/"}
        for bucket in contract.storage.buckets
    ]
    return [collection | terms, *data]


def _distribution(iri: str, title: str, url: str, media_type: str) -> Document:
    # The IANA registration of a media type has no parameters.
    registered = media_type.partition(";")[0].strip()
    label = _FORMAT_OF.get(registered, title)
    return {
        "id": iri,
        "type": "dcat:Distribution",
        "title": title,
        "accessURL": url,
        "mediaType": f"https://www.iana.org/assignments/media-types/{registered}",
        "format": {"id": f"urn:uuid:{uuid8('format', label)}", "type": "dct:MediaTypeOrExtent", "label": label},
    }


def _bucket_url(contract: DatasetContract, bucket: str) -> str:
    if anyone_reads(contract):
        return f"{bucket_endpoint(bucket, contract.storage.region)}/"
    if contract.storage.provider == "gcp" and contract.governance.access == "open":
        return f"https://storage.googleapis.com/{bucket}/"
    return f"{_OBJECT_SCHEMES[contract.storage.provider]}://{bucket}/"


def _url(catalog: str, path: str) -> str:
    if "://" in catalog:
        return f"{catalog.rstrip('/')}/{path}"
    return (Path(catalog).absolute() / path).as_uri()
