"""Catalog documents: root, Collection, year, day and page, built by pystac from what the index says.

Pure. pystac takes 0.2 s to import, so only who writes a document imports it. Does not belong here: Items (`item.py`),
paths (`layout.py`), queries (`index.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kfm_dagster.catalog.assets import DATA_ASSET, THUMBNAIL, THUMBNAIL_ASSET
from kfm_dagster.catalog.item import used_extensions
from kfm_dagster.catalog.layout import GEOJSON, link, page_name
from kfm_dagster.catalog.notice import collection_notice
from kfm_dagster.contracts.model import DatasetContract

if TYPE_CHECKING:
    import pystac

MIRROR_ASSET = "geoparquet-items"
MIRROR = {
    "title": "Items as GeoParquet",
    "description": "The Items of each day as stac-geoparquet 1.0.0; while files are replaced, the newest "
    "items/YYYY/YYYY-MM-DD-*.json of a day names those that are its.",
    # A pattern, as readers of Parquet take it (DuckDB, GDAL, Polars): no list of days would stay small.
    "href": "./items/*/*.parquet",
    "type": "application/vnd.apache.parquet",
    "roles": ["collection-mirror"],
}
"""Asset of a Collection by stac-geoparquet 1.0.0, "Referencing a STAC GeoParquet Collection"."""

ROOT_ID = "kfm-nodd"
ROOT_TITLE = "Kansas Frontier Matrix: NOAA open data"
ROOT_DESCRIPTION = (
    "NOAA Open Data Dissemination (NODD) objects, catalogued with their provenance as they are published."
)
MAX_SUMMARY_VALUES = 500
"""Distinct values that a Collection lists per property; beyond, it gives their range. NEXRAD alone has 160 sites."""

Bbox = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """True extent of a Collection's Items.

    bbox is (west, south, east, north) in WGS 84 degrees, west > east when it crosses the antimeridian, None when no
    Item has a geometry; start and end are RFC 3339.
    """

    bbox: Bbox | None
    start: str
    end: str


def root_document(collections: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the root Catalog over (collection id, title)."""
    children = [link("child", f"./{name}/collection.json", title=title) for name, title in collections]
    return _catalog(ROOT_ID, ROOT_TITLE, ROOT_DESCRIPTION, [link("root", "./catalog.json"), *children])


def collection_document(
    contract: DatasetContract,
    *,
    extent: Extent,
    summaries: Mapping[str, Sequence[Any]],
    years: Sequence[str],
    run_id: str | None = None,
    mirrored: bool = False,
) -> dict[str, Any]:
    """Return the Collection of a dataset; `run_id` is the run that wrote the newest of its Items.

    `mirrored` says that its Items are published as GeoParquet, too.
    """
    import pystac  # noqa: PLC0415, see above

    interval: list[datetime | None] = [datetime.fromisoformat(extent.start), datetime.fromisoformat(extent.end)]
    collection = pystac.Collection(
        id=contract.stac.collection,
        title=contract.metadata.title,
        description=contract.metadata.description,
        keywords=list(contract.stac.keywords),
        license=contract.governance.license,
        providers=[pystac.Provider.from_dict(one.model_dump(exclude_none=True)) for one in contract.stac.providers],
        extent=pystac.Extent(
            # The specification asks for a bbox even when no Item has one.
            pystac.SpatialExtent([list(extent.bbox or (-180.0, -90.0, 180.0, 90.0))]),
            pystac.TemporalExtent([interval]),
        ),
        summaries=pystac.Summaries(_summaries(summaries), maxcount=MAX_SUMMARY_VALUES),
        stac_extensions=used_extensions(contract, iter(summaries)),
        extra_fields={
            "item_assets": _item_assets(contract),
            "kfm:dataset": contract.public_id,
            **({"assets": {MIRROR_ASSET: MIRROR}} if mirrored else {}),
            **(
                {"kfm:run_state": {"dataset_id": f"{contract.public_id}.stac_register", "run_id": run_id}}
                if run_id
                else {}
            ),
            **collection_notice(contract.governance),
        },
    )
    parents = [link("root", "../catalog.json", title=ROOT_TITLE), link("parent", "../catalog.json", title=ROOT_TITLE)]
    return _written(collection, [*parents, *(link("child", f"./{year}/catalog.json", title=year) for year in years)])


def year_document(contract: DatasetContract, *, year: str, days: Sequence[str]) -> dict[str, Any]:
    """Return the Catalog of a year, over its days."""
    return _catalog(
        f"{contract.stac.collection}-{year}",
        f"{contract.metadata.title}, {year}",
        f"Days of {year} (UTC).",
        [
            link("root", "../../catalog.json", title=ROOT_TITLE),
            link("parent", "../collection.json", title=contract.metadata.title),
            *(link("child", f"./{day}/catalog.json", title=day) for day in days),
        ],
    )


def day_document(contract: DatasetContract, *, day: str, pages: Sequence[int]) -> dict[str, Any]:
    """Return the Catalog of a day, over its pages."""
    return _catalog(
        f"{contract.stac.collection}-{day}",
        f"{contract.metadata.title}, {day}",
        f"Items of {day} (UTC), by pages.",
        [
            link("root", "../../../catalog.json", title=ROOT_TITLE),
            link("parent", "../catalog.json", title=day[:4]),
            *(link("child", f"./{page_name(page)}", title=f"Page {page}") for page in pages),
        ],
    )


def page_document(contract: DatasetContract, *, day: str, page: int, item_ids: Sequence[str]) -> dict[str, Any]:
    """Return the Catalog of one page of a day, over its Items."""
    return _catalog(
        f"{contract.stac.collection}-{day}-page-{page:04d}",
        f"{contract.metadata.title}, {day}, page {page}",
        f"A page of the Items of {day} (UTC).",
        [
            link("root", "../../../catalog.json", title=ROOT_TITLE),
            link("parent", "./catalog.json", title=day),
            *(link("item", f"./{item_id}.json", media_type=GEOJSON) for item_id in item_ids),
        ],
    )


def _catalog(identifier: str, title: str, description: str, links: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    import pystac  # noqa: PLC0415, see above

    return _written(pystac.Catalog(id=identifier, title=title, description=description), links)


def _written(catalog: pystac.Catalog, links: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    # Not pystac's own links: they want the linked documents in memory.
    return {
        **catalog.to_dict(include_self_link=False, transform_hrefs=False),
        "links": list(links),
    }


def _item_assets(contract: DatasetContract) -> dict[str, Any]:
    data = contract.stac.data_asset
    assets: dict[str, Any] = {DATA_ASSET: {"title": data.title, "type": data.media_type, "roles": list(data.roles)}}
    if data.open_kwargs:
        assets[DATA_ASSET]["xarray:open_kwargs"] = data.open_kwargs
    for sidecar in contract.storage.sidecars:
        assets.setdefault(sidecar.role, {"type": sidecar.media_type, "roles": [sidecar.role]})
    if contract.stac.thumbnail:
        assets[THUMBNAIL_ASSET] = THUMBNAIL
    return assets


def _summaries(summaries: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in summaries.items():
        if len(values) <= MAX_SUMMARY_VALUES:
            found[name] = sorted(values, key=lambda value: (isinstance(value, str), value))
        elif len({isinstance(value, str) for value in values}) == 1:
            found[name] = {"minimum": min(values), "maximum": max(values)}
    return found
