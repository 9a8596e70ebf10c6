"""An Item's object as a step: its chunk index, by requests of its own, in the version that the Item is of.

Belongs here: where an Item's object is, how many requests its index takes, and what keeps an object out of a store.
Does not belong here: the formats (`netcdf_step.py`, `grib2_step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from kfm_dagster.catalog.changes import FollowError, ItemChange
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.virtual import VirtualStore
from kfm_dagster.followers.virtual.grib2_step import read_grib2_step
from kfm_dagster.followers.virtual.netcdf_step import read_cube_step
from kfm_dagster.followers.virtual.references import Frame, StoreStep, frame_of, step_of
from kfm_dagster.readers.base import ReadError
from kfm_dagster.storage.objects import ObjectHandle, ObjectReadError, ObjectStores

_MULTIHASH_MD5 = "d50110"


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexed:
    """What came of an Item: a step with its frame, or why it is in no store; and what that took."""

    frame: Frame | None = None
    step: StoreStep | None = None
    why: str = ""
    refused: tuple[str, ...] = ()
    requests: int = 0
    bytes_read: int = 0


class _Counted:
    """An object whose requests are counted."""

    def __init__(self, handle: ObjectHandle, size: int) -> None:
        self._handle = handle
        self.size = size
        self.requests = 0
        self.bytes_read = 0

    def head(self) -> int:
        self.requests += 1
        return self._handle.head().size

    def read(self, start: int, length: int) -> bytes:
        self.requests += 1
        found = self._handle.read(start, length)
        self.bytes_read += len(found)
        return found


def index(objects: ObjectStores, contract: DatasetContract, change: ItemChange, *, rule: VirtualStore) -> Indexed:
    """Read the chunk index of an Item's object. Raises FollowError where the store does not answer."""
    asset = _data(change)
    uri, size, etag = object_uri(change), asset.get("file:size"), _etag(asset)
    try:
        source = _Counted(objects.open(contract, uri, size=size, etag=etag), size or 0)
    except ObjectReadError as error:
        return Indexed(why=str(error))
    try:
        if etag is None or size is None:
            # A head pins the version that is read; its size says whether it is the Item's.
            found = source.head()
            if size is not None and found != size:
                return Indexed(why=f"{uri} has {found} bytes, its Item says {size}", requests=source.requests)
            source.size = found
        if contract.metadata_extract.reader == "grib2":
            found_step = read_grib2_step(source, _layers(asset), fields=rule.fields, along=rule.along)
        else:
            found_step = read_cube_step(source, along=rule.along)
    except ReadError as error:
        return Indexed(why=f"{uri}: {error}", requests=source.requests, bytes_read=source.bytes_read)
    except ObjectReadError as error:
        why = _given_up(error, objects, contract, uri, etag)
        return Indexed(why=why, requests=source.requests, bytes_read=source.bytes_read)
    step = step_of(
        found_step,
        along=rule.along,
        item_id=change.item_id,
        content_sha256=str(change.content_sha256),
        uri=uri,
        datetime=_datetime(change),
    )
    return Indexed(
        frame=frame_of(found_step, along=rule.along),
        step=step,
        refused=found_step.refused,
        requests=source.requests,
        bytes_read=source.bytes_read,
    )


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


def _layers(asset: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Offset and length of each field; none where an Item came before its index."""
    found = asset.get("grib:layers", {})
    return {name: (int(place["start_byte"]), int(place["byte_size"])) for name, place in found.items()}


def _datetime(change: ItemChange) -> str:
    return str((change.item or {})["properties"].get("datetime", ""))


def _etag(asset: Mapping[str, Any]) -> str | None:
    checksum = str(asset.get("file:checksum", ""))
    return checksum.removeprefix(_MULTIHASH_MD5) if checksum.startswith(_MULTIHASH_MD5) else None
