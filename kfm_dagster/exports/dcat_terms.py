"""What DCAT asks of a dataset in words of its own: theme, frequency, contact, licence, and places that anyone can open.

Controlled words are those of ISO 19115 (topic categories) and of the EU's authority tables, which DCAT-AP and DCAT-US
both take; a frequency has DCAT-US's ISO 8601 interval as its label. Belongs here: how each follows from the contract.
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
"""Names of formats whose media type is theirs alone; of another the asset's title says more."""
_OBJECT_SCHEMES = {"aws": "s3", "gcp": "gs", "azure": "az"}
_NO_SPDX = {"other", "various", "proprietary"}
"""Words that STAC allows where there is no SPDX identifier."""


def licence(contract: DatasetContract) -> Document:
    """Return licence and rights: both of a dataset and of each of its distributions, where readers look for them."""
    governance = contract.governance
    attribution = {"rights": governance.attribution} if governance.attribution else {}
    if governance.license in _NO_SPDX:
        return {"rights": [governance.license, *attribution.values()]}
    return {"license": f"https://spdx.org/licenses/{governance.license}", **attribution}


def themes(contract: DatasetContract) -> Document:
    """Return the contract's own theme, and the topic category that it belongs to."""
    theme = contract.metadata.labels.get("theme")
    if theme is None:
        return {}
    own = {"id": f"urn:uuid:{uuid8('theme', theme)}", "type": "skos:Concept", "prefLabel": theme}
    if theme not in _TOPIC_OF:
        return {"theme": [own]}
    code, label = _TOPIC_OF[theme]
    topic = {"id": f"{_TOPICS}/{code}", "type": "skos:Concept", "prefLabel": label, "inScheme": _TOPICS}
    return {"theme": [topic, own]}


def frequency(contract: DatasetContract) -> Document:
    """Return how often objects are added: at the contract's hours, or by its listings; else all the time."""
    seconds = _interval(contract)
    if seconds is None:
        return _frequency("UPDATE_CONT", "R/PT1S")
    days, hours = divmod(seconds // 3600, 24)
    label = f"R/P{days}D" if days and not hours else f"R/PT{max(1, seconds // 3600)}H"
    return _frequency(_FREQUENCY_OF.get(seconds), label)


def _interval(contract: DatasetContract) -> int | None:
    """Seconds from one set of objects to the next; None where they come one by one."""
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
    """Return the contact point of the first producer that has an address, for a catalog that names none of its own."""
    found: list[Provider] = [one for one in contract.stac.providers if "producer" in one.roles and one.url]
    return contact(found[0].name, str(found[0].url)) if found else {}


def distributions(iri: str, collection_id: str, contract: DatasetContract, *, catalog: str) -> list[Document]:
    """Return the STAC Collection, and the data in each bucket: by https where anyone may read it."""
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
    # A media type's parameters are no part of its IANA registration.
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
