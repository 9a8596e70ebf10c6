"""An Item's object as a step of a virtual store: the chunk index of the described version.

Does not belong here: the formats (`netcdf_step.py`, `grib2_step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from kfm_dagster.catalog.changes import FollowError, ItemChange
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.virtual import VirtualStore
from kfm_dagster.followers.virtual.grib2_step import read_grib2_step
from kfm_dagster.followers.virtual.netcdf_step import read_cube_step
from kfm_dagster.followers.virtual.references import Frame, StoreStep, frame_of, step_of
from kfm_dagster.readers.base import ReadError
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster.storage.objects import ObjectStores

_MULTIHASH_MD5 = "d50110"


Indexed: TypeAlias = tuple[Frame, StoreStep, tuple[str, ...]] | str
"""An Item's object as a step, with frame and reasons for refused fields; or the reason why no store can have it."""


def index(objects: ObjectStores, contract: DatasetContract, change: ItemChange, *, rule: VirtualStore) -> Indexed:
    """Read the chunk index of an Item's object. Raises FollowError if the bucket is unavailable."""
    asset = _data(change)
    uri, size, etag = object_uri(change), asset.get("file:size"), _etag(asset)
    try:
        source = objects.open(contract, uri, size=size, etag=etag)
    except ObjectReadError as error:
        return str(error)
    try:
        if etag is None or size is None:
            # A HEAD request gives the version to read; the size shows whether the Item describes this version.
            head = source.head()
            if size is not None and head.size != size:
                return f"{uri} has {head.size} bytes, its Item has {size}"
            if head.etag is None or etag not in {None, head.etag}:
                return f"{uri} has the ETag {head.etag}, its Item has {etag}"
            etag = head.etag
        if contract.metadata_extract.reader == "grib2":
            # An Item has no layers if it was registered before the object's index existed.
            layers = {
                name: (int(place["start_byte"]), int(place["byte_size"]))
                for name, place in asset.get("grib:layers", {}).items()
            }
            cube_step = read_grib2_step(source, layers, fields=rule.fields, along=rule.along)
        else:
            cube_step = read_cube_step(source, along=rule.along)
    except ReadError as error:
        return f"{uri}: {error}"
    except ObjectReadError as error:
        return _permanent_fault(error, objects, contract, uri, etag)
    step = step_of(
        cube_step,
        along=rule.along,
        item_id=change.item_id,
        content_sha256=str(change.content_sha256),
        uri=uri,
        etag=etag,
        datetime=str((change.item or {})["properties"].get("datetime", "")),
    )
    return frame_of(cube_step, along=rule.along), step, cube_step.refused


def object_uri(change: ItemChange) -> str:
    """Return the address of an Item's object in S3 clients' form; empty without a data asset."""
    return unquote(str(_data(change).get("href", "")))


def _permanent_fault(
    error: ObjectReadError, objects: ObjectStores, contract: DatasetContract, uri: str, etag: str | None
) -> str:
    """Return why no store can have an object that is missing, not accessible or replaced.

    Raises FollowError for a failure that can be temporary.
    """
    if error.code in {IntegrityIssue.MISSING_OBJECT, IntegrityIssue.ACCESS_DENIED}:
        return str(error)
    try:
        current = objects.open(contract, uri).head().etag
    except ObjectReadError:
        current = etag
    if etag in {None, current}:
        raise FollowError(observed=str(error), next_step="none: the follower is retried") from error
    return f"{uri} was written again: its ETag is {current}, its Item has {etag}"


def _data(change: ItemChange) -> Mapping[str, Any]:
    asset = (change.item or {}).get("assets", {}).get("data", {})
    return asset if isinstance(asset, Mapping) else {}


def _etag(asset: Mapping[str, Any]) -> str | None:
    checksum = str(asset.get("file:checksum", ""))
    return checksum.removeprefix(_MULTIHASH_MD5) if checksum.startswith(_MULTIHASH_MD5) else None
