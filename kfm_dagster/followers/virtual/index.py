"""An Item's object as a step: its chunk index, by requests of its own, in the version that the Item is of.

Belongs here: where an Item's object is, and what keeps an object out of a store.
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
from kfm_dagster.storage.objects import ObjectReadError, ObjectStores

_MULTIHASH_MD5 = "d50110"


Indexed: TypeAlias = tuple[Frame, StoreStep, tuple[str, ...]] | str
"""An Item's object as a step with its frame and the reasons of refused fields; or why it is in no store."""


def index(objects: ObjectStores, contract: DatasetContract, change: ItemChange, *, rule: VirtualStore) -> Indexed:
    """Read the chunk index of an Item's object. Raises FollowError where the store does not answer."""
    asset = _data(change)
    uri, size, etag = object_uri(change), asset.get("file:size"), _etag(asset)
    try:
        source = objects.open(contract, uri, size=size, etag=etag)
    except ObjectReadError as error:
        return str(error)
    try:
        if etag is None or size is None:
            # A head pins the version that is read; its size says whether it is the Item's.
            actual = source.head().size
            if size is not None and actual != size:
                return f"{uri} has {actual} bytes, its Item says {size}"
        if contract.metadata_extract.reader == "grib2":
            # An Item that came before its index has no layers.
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
        return _given_up(error, objects, contract, uri, etag)
    step = step_of(
        cube_step,
        along=rule.along,
        item_id=change.item_id,
        content_sha256=str(change.content_sha256),
        uri=uri,
        datetime=str((change.item or {})["properties"].get("datetime", "")),
    )
    return frame_of(cube_step, along=rule.along), step, cube_step.refused


def object_uri(change: ItemChange) -> str:
    """Return the address of an Item's object, as clients of S3 take it; empty where it has none."""
    return unquote(str(_data(change).get("href", "")))


def _given_up(
    error: ObjectReadError, objects: ObjectStores, contract: DatasetContract, uri: str, etag: str | None
) -> str:
    """Return why an object stays out: it is gone, or another version. Raises FollowError for what may pass."""
    if error.code in {IntegrityIssue.MISSING_OBJECT, IntegrityIssue.ACCESS_DENIED}:
        return str(error)
    try:
        found = objects.open(contract, uri).head().etag
    except ObjectReadError:
        found = etag
    if found == etag:
        raise FollowError(observed=str(error), next_step="it is tried again") from error
    return f"{uri} was written again: its ETag is {found}, its Item has {etag}"


def _data(change: ItemChange) -> Mapping[str, Any]:
    found = (change.item or {}).get("assets", {}).get("data", {})
    return found if isinstance(found, Mapping) else {}


def _etag(asset: Mapping[str, Any]) -> str | None:
    checksum = str(asset.get("file:checksum", ""))
    return checksum.removeprefix(_MULTIHASH_MD5) if checksum.startswith(_MULTIHASH_MD5) else None
