"""Virtual stores of a Collection, opened by zarr and xarray; objects are read as indexed.

A document of references has the ETag of each object (`followers/virtual/references.py`), and each read requires this
ETag (If-Match), so an object that was written again raises ObjectReadError. Other clients of reference files require no
ETag; `unchanged` compares the ETags for them. Does not belong here: opening Items' objects (`fields.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from kfm_dagster.catalog.assets import STORE_ASSET, VIRTUAL_ASSET
from kfm_dagster.catalog.layout import collection_path, store_days_path, store_list_path
from kfm_dagster.errors import ConfigurationError, UnknownNameError
from kfm_dagster.reading.items import CatalogFiles, Time, read_item, time_range
from kfm_dagster.reading.names import Item
from kfm_dagster.reading.packages import package
from kfm_dagster.storage.object_handle import RemoteObject
from kfm_dagster.storage.objects import s3_bucket
from kfm_dagster.storage.s3 import LARGEST_SIZE, S3Bucket

if TYPE_CHECKING:
    import pystac

    from kfm_dagster.followers.virtual.references import VirtualCube

StoreSource: TypeAlias = "str | pystac.Item | Item | Sequence[str | pystac.Item | Item]"
"""A store's Item, references, or address of the references; several stores are joined to one array."""
PARALLEL = 32
"""Number of requests that `unchanged` makes in parallel."""


def stores(
    dataset: str, name: str | None = None, *, time: Time | tuple[Time, Time] = None, catalog: str | None = None
) -> list[pystac.Item]:
    """Return the virtual stores of a dataset as Items, by day and name; `time` selects days.

    Raises UnknownNameError if the Collection has no virtual stores, or no store of the name, and as `search` does.
    """
    import pystac  # noqa: PLC0415, takes 0.1 s to import

    start, end = (moment and f"{moment:%Y-%m-%d}" for moment in time_range(time))
    opened = CatalogFiles(catalog)
    items: list[pystac.Item] = []
    names: set[str] = set()
    for collection in opened.read([collection_path(name) for name in opened.collections([dataset])]).values():
        if (asset := collection.get("assets", {}).get(VIRTUAL_ASSET)) is None:
            raise UnknownNameError(f"{dataset} has no virtual stores", expected="an ingest with KFM_VIRTUAL_URL")
        path = store_days_path(collection["id"])
        place = CatalogFiles(asset["href"].removesuffix(f"/{path}"))
        days = place.read([path]).get(path, {}).get("days", [])
        paths = [store_list_path(collection["id"], day) for day in days if (start or day) <= day <= (end or day)]
        for document in place.read(paths).values():
            names |= {feature["properties"]["title"] for feature in document["features"]}
            items += [
                pystac.Item.from_dict(feature)
                for feature in document["features"]
                if name in {None, feature["properties"]["title"]}
            ]
    if name is not None and not items:
        raise UnknownNameError("no such store at this time", observed=name, expected=", ".join(sorted(names)) or None)
    return items


def joined(documents: Sequence[Mapping[str, Any]]) -> tuple[VirtualCube, str]:
    """Join stores to one, and return it with the region of its objects.

    Raises UnknownNameError if they differ in grid, type, scale or unit.
    """
    # Imported here, because the followers of the catalog import the database's client.
    from kfm_dagster.followers.virtual.references import from_document  # noqa: PLC0415

    cube, *others = map(from_document, documents)
    for other in others:
        if other.frame.signature != cube.frame.signature:
            raise UnknownNameError(
                "the stores are not one array: they differ in grid, type, scale or unit",
                observed=f"from {other.steps[0].datetime} on",
                next_step="open each, or restrict the time",
            )
        cube = cube.changed(frozenset(), other.steps, cube.frame.joined(other.frame))
    return cube, documents[0]["kfm"]["region"]


def zarr_store(source: StoreSource) -> Any:
    """Open a store, or several as one array, as a zarr-python store. Raises as `open` does."""
    document, *others = documents = documents_of(source)
    if others:
        from kfm_dagster.followers.virtual.references import references_of  # noqa: PLC0415, as in `joined`

        cube, region = joined(documents)
        document = references_of(cube, region=region)
    return package("kfm_dagster.reading.reference_store").ReferenceStore(document["refs"], _versions(document))


def open_store(source: StoreSource, **options: Any) -> Any:
    """Open a store, or several as one array, as a Dataset; `options` are of `open_dataset`."""
    return package("xarray").open_dataset(zarr_store(source), engine="zarr", **options)


@contextmanager
def unchanged(source: StoreSource) -> Iterator[None]:
    """Raise ObjectReadError if an object differs from the index before or after the block.

    If no error is raised, the values that another client read within the block are the store's values.
    """
    versions = [version for document in documents_of(source) for version in _versions(document).values()]

    def check(version: RemoteObject) -> None:
        version.read(0, 1)

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(check, versions))
        yield
        list(pool.map(check, versions))


def is_store(source: object) -> bool:
    """Return whether a source is the Item of a store, references, or several of them."""
    if isinstance(source, Mapping):
        return "refs" in source or STORE_ASSET in source.get("assets", ())
    return isinstance(source, Sequence) or STORE_ASSET in getattr(source, "assets", ())


def documents_of(source: StoreSource) -> list[Mapping[str, Any]]:
    """Read the references of stores.

    Raises UnknownNameError for missing references, ConfigurationError for references that this package did not write.
    """
    sources = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    documents = [_read(entry) for entry in sources]
    if not documents or any("kfm" not in document for document in documents):
        raise ConfigurationError("not virtual stores of this package", observed=source)
    return documents


def _read(entry: str | pystac.Item | Item) -> Item:
    """Read the references at an address or of an Item; return references as they are."""
    if isinstance(entry, str):
        return read_item(entry)
    item: Item = entry if isinstance(entry, Mapping) else entry.to_dict(transform_hrefs=False)
    return item if "refs" in item else read_item(item["assets"][STORE_ASSET]["href"])


def _versions(document: Mapping[str, Any]) -> dict[str, RemoteObject]:
    """Return a store's objects by address; each is read only in its indexed version."""
    buckets: dict[str, S3Bucket] = {}
    objects: dict[str, RemoteObject] = {}
    for *_, uri, etag in document["kfm"]["steps"]:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if bucket not in buckets:
            buckets[bucket] = s3_bucket(bucket, region=document["kfm"]["region"], anonymous=True)
        # The object's size is unknown, and is not requested, because references end within the object.
        objects[uri] = RemoteObject(buckets[bucket], uri=uri, key=key, size=LARGEST_SIZE, etag=etag)
    return objects
