"""Catalog documents: root, Collection, year, day and page, from the current index.

pystac builds Collections. Its import takes 0.2 s, so only writers of a Collection import it. Does not belong here:
Items (`item.py`), paths (`layout.py`), queries (`index.py`), publishing documents (`store.py`, `undo.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kfm_dagster.catalog import layout
from kfm_dagster.catalog.assets import DATA_ASSET, VIRTUAL_ASSET
from kfm_dagster.catalog.index import NO_PLACES, CollectionIndex, Extent, Page, Places
from kfm_dagster.catalog.item import STAC_VERSION, canonical, item_notice, used_extensions
from kfm_dagster.catalog.layout import GEOJSON, JSON, link
from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Governance
from kfm_dagster.storage.publisher import Level, PublishError

MIRROR_ASSET = "geoparquet-items"
MIRROR = {
    "title": "Items as GeoParquet",
    "description": "The Items of each day as stac-geoparquet 1.0.0; while files are replaced, the newest "
    "items/YYYY/YYYY-MM-DD-*.json of a day names its current files.",
    # A pattern, because a list of days would grow large. Readers of Parquet (DuckDB, GDAL, Polars) accept patterns.
    "href": "./items/*/*.parquet",
    "type": "application/vnd.apache.parquet",
    "roles": ["collection-mirror"],
}
"""Asset of a Collection by stac-geoparquet 1.0.0, "Referencing a STAC GeoParquet Collection"."""

VERSION_EXTENSION = "https://stac-extensions.github.io/version/v1.2.0/schema.json"

ROOT_ID = "kfm-nodd"
ROOT_TITLE = "Kansas Frontier Matrix: NOAA open data"
ROOT_DESCRIPTION = (
    "NOAA Open Data Dissemination (NODD) objects, catalogued with their provenance as they are published."
)
MAX_SUMMARY_VALUES = 500
"""Maximum distinct values of a property that a Collection lists, so that it lists the 160 sites of NEXRAD. Of more
values, it has only the range."""


def tree(
    index: CollectionIndex, days: Iterable[str], *, pages: Iterable[Page] | None = None, root: bool = True
) -> list[Level]:
    """Return documents from the root to these days' pages, by level. Raises PublishError.

    The document of a root, collection, year or day without Items is None. `root=False` leaves out the root, and the
    Collections that precede or succeed this one. `pages` names the pages to return, by default all pages of the days;
    each must have Items.
    """
    contract, collection = index.contract, index.contract.stac.collection
    pages_of = {day: index.pages(day) for day in sorted(set(days))}
    years = index.years()
    if pages is None:
        pages = [(day, page) for day, numbers in pages_of.items() for page in numbers]
    levels: list[dict[str, dict[str, Any] | None]] = [
        {layout.collection_path(collection): _collection(index, years) if years else None},
        {
            layout.year_path(collection, year): _year(contract, year, index.days(year)) if year in years else None
            for year in sorted({day[:4] for day in pages_of})
        },
        {
            layout.day_path(collection, day): _day(contract, day, numbers) if numbers else None
            for day, numbers in pages_of.items()
        },
        {
            layout.page_path(collection, day, page): _page(contract, day, page, index.page_items(day, page))
            for day, page in sorted(pages)
        },
    ]
    if root:
        levels.insert(0, _related(index))
        # Read the root last, because this waits for other writers of the root.
        levels.insert(0, {layout.ROOT: _root(index.collections())})
    return [{path: _checked(path, document) for path, document in level.items()} for level in levels]


def _checked(path: str, document: Mapping[str, Any] | None) -> bytes | None:
    if document is None:
        return None
    if reasons := validate_document(document):
        raise PublishError(StacIssue.STAC_VALIDATION_FAILED, f"{path}: {'; '.join(reasons)}")
    return canonical(document)


def _root(collections: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    if not collections:
        return None
    children = [link("child", f"./{name}/collection.json", title=title) for name, title in collections]
    return _catalog(ROOT_ID, ROOT_TITLE, ROOT_DESCRIPTION, [link("root", "./catalog.json"), *children])


def _related(index: CollectionIndex) -> dict[str, dict[str, Any] | None]:
    """Return the preceding and succeeding Collections; they link this one only if it has Items."""
    documents = {}
    for _, other in index.versions():
        with other.only_writer():
            documents[layout.collection_path(other.contract.stac.collection)] = _collection(other, other.years())
    return {**documents}


def _collection(index: CollectionIndex, years: Sequence[str]) -> dict[str, Any]:
    return collection_document(
        index.contract,
        extent=index.extent(),
        summaries=index.summaries(),
        years=years,
        run_id=index.newest_run(),
        places=index.places,
        versions=[(relation, other.contract) for relation, other in index.versions()],
    )


def collection_document(
    contract: DatasetContract,
    *,
    extent: Extent,
    summaries: Mapping[str, Sequence[Any]],
    years: Sequence[str],
    run_id: str | None = None,
    places: Places = NO_PLACES,
    versions: Sequence[tuple[str, DatasetContract]] = (),
) -> dict[str, Any]:
    """Return the Collection of a dataset; `run_id` is the run that wrote the newest Item.

    `versions` has the preceding and succeeding datasets, each with its link relation.
    """
    import pystac  # noqa: PLC0415, as above

    interval: list[datetime | None] = [datetime.fromisoformat(extent.start), datetime.fromisoformat(extent.end)]
    status = _status(contract)
    versioned = [VERSION_EXTENSION] if versions or len(status) > 1 else []
    collection = pystac.Collection(
        id=contract.stac.collection,
        title=contract.metadata.title,
        description=" ".join(filter(None, (contract.metadata.description, contract.metadata.notice))),
        keywords=list(contract.stac.keywords),
        license=contract.governance.license,
        providers=[pystac.Provider.from_dict(body.model_dump(exclude_none=True)) for body in contract.stac.providers],
        extent=pystac.Extent(
            # The specification requires a bbox even if no Item has a bbox.
            pystac.SpatialExtent([list(extent.bbox or (-180.0, -90.0, 180.0, 90.0))]),
            pystac.TemporalExtent([interval]),
        ),
        summaries=pystac.Summaries(_summaries(summaries), maxcount=MAX_SUMMARY_VALUES),
        stac_extensions=[*used_extensions(contract, iter(summaries)), *versioned],
        extra_fields={
            "item_assets": _item_assets(contract),
            "kfm:dataset": contract.public_id,
            **({"assets": published} if (published := _assets(contract, places)) else {}),
            **(
                {"kfm:run_state": {"dataset_id": f"{contract.public_id}.stac_register", "run_id": run_id}}
                if run_id
                else {}
            ),
            **status,
            **collection_notice(contract.governance),
        },
    )
    related = [
        link(relation, f"../{layout.collection_path(other.stac.collection)}", title=other.metadata.title)
        for relation, other in versions
    ]
    upward = [link(rel, "../catalog.json", title=ROOT_TITLE) for rel in ("root", "parent")]
    return {
        **collection.to_dict(include_self_link=False, transform_hrefs=False),
        # pystac's own links are not used, because they need the linked documents in memory.
        "links": [*upward, *related, *(link("child", f"./{year}/catalog.json", title=year) for year in years)],
    }


def _assets(contract: DatasetContract, places: Places) -> dict[str, Any]:
    """Return the assets of a Collection; followers publish their files."""
    assets: dict[str, Any] = {MIRROR_ASSET: MIRROR} if places.geoparquet else {}
    if places.virtual and contract.virtual:
        assets[VIRTUAL_ASSET] = {
            "title": "Virtual Zarr stores",
            "description": "A Catalog of the days with stores; it links a list of each day's stores, which are Items.",
            "href": f"{places.virtual}/{layout.store_days_path(contract.stac.collection)}",
            "type": JSON,
            "roles": ["virtual"],
        }
    return assets


def _status(contract: DatasetContract) -> dict[str, Any]:
    """Return a Collection's status, and the member for this status in STAC's version extension."""
    members = {"retired": {"deprecated": True}, "preliminary": {"experimental": True}}
    return {"kfm:status": contract.metadata.status, **members.get(contract.metadata.status, {})}


def collection_notice(governance: Governance) -> dict[str, str]:
    """Return a Collection's governance members, with an embargo, which explains missing Items."""
    embargo = governance.embargo
    if embargo is None:
        embargo_notice = {}
    elif embargo.until is not None:
        embargo_notice = {"kfm:embargo": f"until {embargo.until.isoformat()}"}
    else:
        embargo_notice = {"kfm:embargo": f"{embargo.days_after_observation} days after observation"}
    return {"kfm:care_label": governance.care_label, **item_notice(governance), **embargo_notice}


def _year(contract: DatasetContract, year: str, days: Sequence[str]) -> dict[str, Any]:
    parent = link("parent", "../collection.json", title=contract.metadata.title)
    children = [link("child", f"./{day}/catalog.json", title=day) for day in days]
    return _branch(contract, "../../", year, year, f"Days of {year} (UTC).", [parent, *children])


def _day(contract: DatasetContract, day: str, pages: Iterable[int]) -> dict[str, Any]:
    parent = link("parent", "../catalog.json", title=day[:4])
    children = [link("child", f"./{layout.page_name(page)}", title=f"Page {page}") for page in pages]
    return _branch(contract, "../../../", day, day, f"Items of {day} (UTC), by pages.", [parent, *children])


def _page(contract: DatasetContract, day: str, page: int, item_ids: Sequence[str]) -> dict[str, Any]:
    parent = link("parent", "./catalog.json", title=day)
    items = [link("item", f"./{item_id}.json", media_type=GEOJSON) for item_id in item_ids]
    name, label = f"{day}-page-{page:04d}", f"{day}, page {page}"
    return _branch(contract, "../../../", name, label, f"A page of the Items of {day} (UTC).", [parent, *items])


def _branch(
    contract: DatasetContract, up: str, name: str, label: str, description: str, links: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a Catalog below a Collection; `up` leads to the root's folder."""
    root = link("root", f"{up}catalog.json", title=ROOT_TITLE)
    identifier, title = f"{contract.stac.collection}-{name}", f"{contract.metadata.title}, {label}"
    return _catalog(identifier, title, description, [root, *links])


def _catalog(identifier: str, title: str, description: str, links: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": "Catalog",
        "stac_version": STAC_VERSION,
        "id": identifier,
        "title": title,
        "description": description,
        "links": links,
    }


def _item_assets(contract: DatasetContract) -> dict[str, Any]:
    data = contract.stac.data_asset
    assets: dict[str, Any] = {DATA_ASSET: {"title": data.title, "type": data.media_type, "roles": list(data.roles)}}
    if data.open_kwargs:
        assets[DATA_ASSET]["xarray:open_kwargs"] = data.open_kwargs
    for sidecar in contract.storage.sidecars:
        assets.setdefault(sidecar.role, {"type": sidecar.media_type, "roles": [sidecar.role]})
    return assets


def _summaries(summaries: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    summarised: dict[str, Any] = {}
    for name, values in summaries.items():
        if len(values) <= MAX_SUMMARY_VALUES:
            summarised[name] = sorted(values, key=lambda value: (isinstance(value, str), value))
        elif len({isinstance(value, str) for value in values}) == 1:
            summarised[name] = {"minimum": min(values), "maximum": max(values)}
    return summarised
