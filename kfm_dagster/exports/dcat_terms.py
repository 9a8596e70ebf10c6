"""DCAT terms of a dataset: theme, frequency, contact, licence and public distributions.

Controlled terms are from ISO 19115 (topic categories) and the EU's authority tables, which DCAT-AP and DCAT-US
both accept; a frequency has DCAT-US's ISO 8601 interval as its label. Belongs here: deriving terms from the contract.
Does not belong here: the document (`dcat.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.assets import anyone_reads, bucket_endpoint
from kfm_dagster.catalog.layout import JSON, collection_path
from kfm_dagster.contracts.identity import uuid8
from kfm_dagster.contracts.model import DatasetContract, Provider

Document = dict[str, Any]

_DAY = 86_400
_TOPICS = "http://inspire.ec.europa.eu/metadata-codelist/TopicCategory"
_ATMOSPHERE = ("climatologyMeteorologyAtmosphere", "Climatology, meteorology, atmosphere")
_TOPIC_OF = {
    **dict.fromkeys(("lightning", "model", "radar", "satellite", "surface observations"), _ATMOSPHERE),
    "ocean": ("oceans", "Oceans"),
}
"""Topic category of ISO 19115 for each theme of our contracts; another theme has only its own concept."""
_FREQUENCIES = "http://publications.europa.eu/resource/authority/frequency"
_FREQUENCY_OF = {3600: "HOURLY", 3 * 3600: "TRIHOURLY", 12 * 3600: "12HRS", _DAY: "DAILY", 7 * _DAY: "WEEKLY"}
_FORMAT_OF = {"application/netcdf": "NetCDF", "application/wmo-GRIB2": "GRIB2", JSON: "JSON"}
"""Names of formats with a media type of their own; others are named by the asset's title."""
_OBJECT_SCHEMES = {"aws": "s3", "gcp": "gs", "azure": "az"}
_NO_SPDX = {"other", "various", "proprietary"}
"""Words that STAC allows instead of an SPDX identifier."""


def licence(contract: DatasetContract) -> Document:
    """Return licence and rights, for a dataset and its distributions, as readers check both."""
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
    """Return the update frequency: from the contract's hours or listings, else continuous."""
    seconds = _interval(contract)
    if seconds is None:
        return _frequency("UPDATE_CONT", "R/PT1S")
    days, hours = divmod(seconds // 3600, 24)
    label = f"R/P{days}D" if days and not hours else f"R/PT{max(1, seconds // 3600)}H"
    return _frequency(_FREQUENCY_OF.get(seconds), label)


def _interval(contract: DatasetContract) -> int | None:
    """Return the seconds between sets of objects; None where objects come one by one."""
    listing = contract.storage.scheduled_listing
    if listing is not None and not contract.notifications.topics:
        return listing.every_seconds
    products = contract.coverage.products if contract.coverage else []
    if not products or not all(product.hours for product in products):
        return None
    return _DAY // len({hour for product in products for hour in product.hours})


def _frequency(code: str | None, label: str) -> Document:
    identity = f"{_FREQUENCIES}/{code}" if code else f"urn:uuid:{uuid8('frequency', label)}"
    return {"accrualPeriodicity": {"id": identity, "type": "dct:Frequency", "label": label}}


def contact(name: str, address: str) -> Document:
    """Return a contact point: a name with an e-mail address (mailto:) or a page."""
    means = {"hasEmail": address} if address.startswith("mailto:") else {"hasURL": address}
    return {
        "contactPoint": {"id": f"urn:uuid:{uuid8('contact', name, address)}", "type": "vcard:Organization", "fn": name}
        | means
    }


def producers_contact(contract: DatasetContract) -> Document:
    """Return the contact point of the first producer with a URL, for a catalog without its own."""
    producers: list[Provider] = [agent for agent in contract.stac.providers if "producer" in agent.roles and agent.url]
    return contact(producers[0].name, str(producers[0].url)) if producers else {}


def distributions(iri: str, collection_id: str, contract: DatasetContract, *, catalog: str) -> list[Document]:
    """Return the STAC Collection, and the data of each bucket: by https where it is public."""
    asset = contract.stac.data_asset
    return [
        _distribution(
            f"{iri}:stac",
            "STAC Collection",
            url=_url(catalog, collection_path(collection_id)),
            media_type=JSON,
            terms=licence(contract),
        ),
        *(
            _distribution(
                f"{iri}:data:{bucket}",
                asset.title,
                url=_bucket_url(contract, bucket),
                media_type=asset.media_type,
                terms=licence(contract),
            )
            | {"identifier": f"{_OBJECT_SCHEMES[contract.storage.provider]}://{bucket}/"}
            for bucket in contract.storage.buckets
        ),
    ]


def _distribution(iri: str, title: str, *, url: str, media_type: str, terms: Mapping[str, Any]) -> Document:
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
        **terms,
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
