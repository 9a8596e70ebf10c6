"""An Item's assets: addresses of its object and sidecars, and arguments to open them.

An href is the object's own `s3://` address. Public objects also have `https` addresses, in the bucket itself and in the
mirrors that the contract names (alternate-assets extension 1.2.0). The storage extension 2.0.0 defines region and
bucket, xarray-assets 1.0.0 the arguments of `xarray.open_dataset`. Does not belong here: Items' properties (`item.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from kfm_dagster.contracts.envelope import Envelope, Metadata
from kfm_dagster.contracts.model import DatasetContract

DATA_ASSET = "data"
VIRTUAL_ASSET, STORE_ASSET = "virtual-zarr", "references"
"""Keys of assets: in a Collection, the Catalog of days with virtual stores; in an Item of a day's list, the store."""
EXTENSIONS = (
    "https://stac-extensions.github.io/alternate-assets/v1.2.0/schema.json",
    "https://stac-extensions.github.io/storage/v2.0.0/schema.json",
    "https://stac-extensions.github.io/xarray-assets/v1.0.0/schema.json",
)
"""Extensions of the fields that this module writes; a contract need not name these."""

_SCHEME = "aws"
"""Key of an Item's only storage scheme."""
_PLATFORM = "https://{bucket}.s3.{region}.amazonaws.com"
"""Template of a bucket's address (storage extension 2.0.0, platforms/aws-s3.json)."""
_TYPES = {".gz": "application/gzip", ".parquet": "application/vnd.apache.parquet"}
"""IANA's media types by the end of a key; these replace the contract's. RFC 6713 has the type of gzipped content."""
_MD5 = re.compile(r"[0-9a-f]{32}")
_MULTIHASH_MD5 = "d50110"
"""Multihash prefix of MD5: varint of code 0xd5 (multiformats' multicodec table), then the digest's length, 16 bytes."""
_IRI_SAFE = "/:@!$&'()*+,;=~-._"
"""Characters that need no escape in the path of an IRI (RFC 3986, 3.3)."""
_HTTPS_SAFE = _IRI_SAFE.replace("+", "")
"""Like _IRI_SAFE without `+`, which S3 reads as a space in a URL's path."""


def storage_schemes(envelope: Envelope, contract: DatasetContract) -> dict[str, Any]:
    """Return the Item's `storage:schemes`; empty if the objects are not in S3."""
    if contract.storage.provider != "aws":
        return {}
    bucket, _ = _place(envelope.object_uri)
    return {
        _SCHEME: {
            "type": "aws-s3",
            "platform": _PLATFORM,
            "bucket": bucket,
            "region": contract.storage.region,
            "requester_pays": False,
        }
    }


def assets(
    envelope: Envelope, *, contract: DatasetContract, metadata: Metadata, groups: Mapping[str, str]
) -> dict[str, Any]:
    """Return the assets of object and existing sidecars; `groups` are the key's regex groups."""
    definition = contract.stac.data_asset
    data: dict[str, Any] = {
        "title": definition.title,
        "type": _TYPES.get(PurePosixPath(envelope.object_uri).suffix, definition.media_type),
        "roles": list(definition.roles),
        **addresses(envelope.object_uri, contract, groups),
        **_file(envelope),
    }
    if definition.open_kwargs:
        data["xarray:open_kwargs"] = definition.open_kwargs
    if anyone_reads(contract):
        data["xarray:storage_options"] = {"anon": True}
    if metadata.layers:
        data["grib:layers"] = {
            name: {"start_byte": offset, "byte_size": length} for name, (offset, length) in metadata.layers.items()
        }
    if bands := metadata.stac_properties.get("bands"):
        data["bands"] = bands
    item_assets = {DATA_ASSET: data}
    for uri in metadata.sidecars.values():
        for sidecar in contract.storage.sidecars:
            if uri == envelope.object_uri + sidecar.suffix:
                key = sidecar.role if sidecar.role not in item_assets else f"{sidecar.role}{sidecar.suffix}"
                item_assets[key] = {
                    "title": f"{sidecar.role.capitalize()} ({sidecar.suffix})",
                    "type": sidecar.media_type,
                    "roles": [sidecar.role],
                    **addresses(uri, contract, groups),
                }
    return item_assets


def _file(envelope: Envelope) -> dict[str, Any]:
    """Return the file extension's fields: the size in bytes, and the ETag if it is an MD5."""
    integrity = envelope.integrity
    observed = integrity.actual_size_bytes if integrity else None
    size = envelope.object_size if observed is None else observed
    etag = (integrity.actual_etag if integrity else None) or envelope.etag or ""
    fields: dict[str, Any] = {} if size is None else {"file:size": size}
    return fields | ({"file:checksum": _MULTIHASH_MD5 + etag} if _MD5.fullmatch(etag) else {})


def addresses(uri: str, contract: DatasetContract, groups: Mapping[str, str]) -> dict[str, Any]:
    """Return href and alternates of an object; a key with only safe characters stays unchanged."""
    bucket, key = _place(uri)
    addresses: dict[str, Any] = {"href": f"s3://{bucket}/{quote(key, safe=_IRI_SAFE)}"}
    if contract.storage.provider != "aws":
        return addresses
    addresses["storage:refs"] = [_SCHEME]
    if anyone_reads(contract):
        path = quote(key, safe=_HTTPS_SAFE)
        # In a mirror's template, a group without a match is an empty text.
        texts = defaultdict(str, groups, bucket=bucket, key=path)
        mirrors = {name: {"href": href.format_map(texts)} for name, href in contract.storage.mirrors.items()}
        own = {"href": f"{bucket_endpoint(bucket, contract.storage.region)}/{path}", "storage:refs": [_SCHEME]}
        addresses["alternate:name"] = "s3"
        addresses["alternate"] = {"https": own, **mirrors}
    return addresses


def bucket_endpoint(bucket: str, region: str) -> str:
    """Return the https address of a bucket; a name with dots is in the address's path."""
    if "." in bucket:  # the certificate covers a single label before `.s3.`
        return f"https://s3.{region}.amazonaws.com/{bucket}"
    return f"https://{bucket}.s3.{region}.amazonaws.com"


def anyone_reads(contract: DatasetContract) -> bool:
    """Return whether the objects can be read without credentials."""
    return contract.storage.provider == "aws" and contract.governance.access == "open"


def _place(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key
