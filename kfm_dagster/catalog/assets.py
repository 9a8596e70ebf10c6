"""An Item's assets: where its object and sidecars are to be had, and with what a client opens them.

An href is the object's own `s3://` address. What anyone may have is also at `https` addresses (alternate-assets
extension 1.2.0): of the bucket itself and of the mirrors that the contract names. The storage extension 2.0.0 tells
region and bucket, xarray-assets 1.0.0 the arguments of `xarray.open_dataset`. Does not belong here: properties of the
Item (`item.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import orjson

from kfm_dagster.contracts.envelope import Envelope, Metadata
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.drawing.svg import data_url

DATA_ASSET, THUMBNAIL_ASSET = "data", "thumbnail"
THUMBNAIL = {"title": "Footprint", "type": "image/svg+xml", "roles": ["thumbnail"]}
EXTENSIONS = (
    "https://stac-extensions.github.io/alternate-assets/v1.2.0/schema.json",
    "https://stac-extensions.github.io/storage/v2.0.0/schema.json",
    "https://stac-extensions.github.io/xarray-assets/v1.0.0/schema.json",
)
"""Those whose fields stand here, whatever a contract names."""

_SCHEME = "aws"
"""Key of the one storage scheme of an Item."""
_PLATFORM = "https://{bucket}.s3.{region}.amazonaws.com"
"""Storage extension 2.0.0, platforms/aws-s3.json."""
_GZIP = "application/gzip"
"""IANA's media type of what is gzipped (RFC 6713), whatever is in it."""
_MD5 = re.compile(r"[0-9a-f]{32}")
_MULTIHASH_MD5 = "d50110"
"""Multihash prefix of MD5: varint of code 0xd5 (multiformats' multicodec table), then the digest's length, 16 bytes."""
_IRI_SAFE = "/:@!$&'()*+,;=~-._"
"""Characters that a path segment of an IRI may hold as they are (RFC 3986, 3.3)."""
_HTTPS_SAFE = _IRI_SAFE.replace("+", "")
"""S3 takes a `+` of a URL's path for a space."""


def storage_schemes(envelope: Envelope, contract: DatasetContract) -> dict[str, Any]:
    """Return the Item's `storage:schemes`; empty where the objects are not in S3."""
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
    """Return the data asset and those of the sidecars that were found; `groups` are those of the key grammar."""
    definition = contract.stac.data_asset
    data: dict[str, Any] = {
        "title": definition.title,
        "type": _GZIP if envelope.object_uri.endswith(".gz") else definition.media_type,
        "roles": list(definition.roles),
        **_addresses(envelope.object_uri, contract, groups),
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
    found = {DATA_ASSET: data}
    for uri in metadata.sidecars.values():
        for sidecar in contract.storage.sidecars:
            if uri == envelope.object_uri + sidecar.suffix:
                key = sidecar.role if sidecar.role not in found else f"{sidecar.role}{sidecar.suffix}"
                found[key] = {
                    "title": f"{sidecar.role.capitalize()} ({sidecar.suffix})",
                    "type": sidecar.media_type,
                    "roles": [sidecar.role],
                    **_addresses(uri, contract, groups),
                }
    if contract.stac.thumbnail and metadata.geometry is not None:
        # As text, for a dictionary is no key of a cache.
        found[THUMBNAIL_ASSET] = {**THUMBNAIL, "href": _picture(orjson.dumps(metadata.geometry))}
    return found


@lru_cache(maxsize=1024)
def _picture(geometry: bytes) -> str:
    """Draw a map of a GeoJSON geometry as a data URL (RFC 2397). Cached: most Items of a dataset share a footprint."""
    # Not above: it draws with numpy and shapely, and most commands and datasets draw nothing.
    from kfm_dagster.drawing.footprints import THUMBNAIL, draw  # noqa: PLC0415

    picture = draw([orjson.loads(geometry)], THUMBNAIL, with_land=False)
    return data_url(picture[0]) if picture else ""


def _file(envelope: Envelope) -> dict[str, Any]:
    """Give the fields of the file extension: the size in bytes, and an MD5 where the ETag is one."""
    integrity = envelope.integrity
    size = integrity.actual_size_bytes if integrity and integrity.actual_size_bytes is not None else None
    size = envelope.object_size if size is None else size
    etag = (integrity.actual_etag if integrity else None) or envelope.etag or ""
    found: dict[str, Any] = {} if size is None else {"file:size": size}
    return found | ({"file:checksum": _MULTIHASH_MD5 + etag} if _MD5.fullmatch(etag) else {})


def _addresses(uri: str, contract: DatasetContract, groups: Mapping[str, str]) -> dict[str, Any]:
    """Return href and its alternates; a key that holds only safe characters stays as it is."""
    bucket, key = _place(uri)
    found: dict[str, Any] = {"href": f"s3://{bucket}/{quote(key, safe=_IRI_SAFE)}"}
    if contract.storage.provider != "aws":
        return found
    found["storage:refs"] = [_SCHEME]
    if anyone_reads(contract):
        path = quote(key, safe=_HTTPS_SAFE)
        # A group that took no part in the match is empty text in a template.
        texts = defaultdict(str, groups, bucket=bucket, key=path)
        mirrors = {name: {"href": href.format_map(texts)} for name, href in contract.storage.mirrors.items()}
        own = {"href": f"{bucket_endpoint(bucket, contract.storage.region)}/{path}", "storage:refs": [_SCHEME]}
        found["alternate:name"] = "s3"
        found["alternate"] = {"https": own, **mirrors}
    return found


def bucket_endpoint(bucket: str, region: str) -> str:
    """Address of a bucket by https; a certificate covers one label before `.s3.` only, so one with dots is a path."""
    if "." in bucket:
        return f"https://s3.{region}.amazonaws.com/{bucket}"
    return f"https://{bucket}.s3.{region}.amazonaws.com"


def anyone_reads(contract: DatasetContract) -> bool:
    """Tell whether the objects are to be had without credentials."""
    return contract.storage.provider == "aws" and contract.governance.access == "open"


def _place(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key
