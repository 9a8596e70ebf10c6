"""Conversion of a store's metadata between versions 2 and 3 of Zarr.

Stores of GRIB2 messages use version 3, because gribberish's codec for version 2 needs bytes, but zarr-python 3 passes
arrays to it. Icechunk knows only version 3 (`reading/icechunk_form.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MESSAGE_CODEC = "gribberish"
METADATA = "zarr.json"
_DIMENSIONS = "_ARRAY_DIMENSIONS"
_KEYS = {"name": "default", "configuration": {"separator": "/"}}


def is_message(array: Mapping[str, Any]) -> bool:
    """Return whether chunks of an array (`.zarray`) are GRIB2 messages."""
    return any(entry["id"] == MESSAGE_CODEC for entry in array.get("filters") or ())


def to_version_3(metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the version 3 documents of a store by key, from its version 2 metadata by key."""
    arrays = {key.removesuffix("/.zarray"): value for key, value in metadata.items() if key.endswith("/.zarray")}
    converted = {name: _array(name, array, metadata[f"{name}/.zattrs"]) for name, array in arrays.items()}
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": metadata[".zattrs"],
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": converted},
    }
    return {METADATA: group, **{f"{name}/{METADATA}": array for name, array in converted.items()}}


def to_version_2(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version 2 metadata of a store of messages, from its `zarr.json`."""
    metadata: dict[str, Any] = {".zgroup": {"zarr_format": 2}, ".zattrs": group["attributes"]}
    for name, array in group["consolidated_metadata"]["metadata"].items():
        message = array["codecs"][0]["name"] == MESSAGE_CODEC
        metadata[f"{name}/.zarray"] = array_of(
            array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"], message=message
        )
        metadata[f"{name}/.zattrs"] = {**array["attributes"], _DIMENSIONS: array["dimension_names"]}
    return metadata


def array_of(
    shape: list[int],
    chunk: list[int],
    *,
    message: bool,
    data_type: str = "<f8",
    fill: float | None = None,
    filters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return `.zarray`; an absent message is read as NaN, like a missing value in a message."""
    return {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunk,
        "dtype": data_type,
        "fill_value": "NaN" if message else fill,
        "order": "C",
        "compressor": None,
        "filters": [{"id": MESSAGE_CODEC}] if message else filters,
        "dimension_separator": ".",
    }


def chunk_key(name: str, place: Sequence[int], *, version: int) -> str:
    """Return the key of a chunk in a store of Zarr's version 2 or 3."""
    return "/".join((name, "c", *map(str, place))) if version == 3 else f"{name}/{'.'.join(map(str, place)) or '0'}"


def chunk_place(key: str) -> tuple[str, list[int]]:
    """Return array and place of a chunk from its key in either version."""
    name, _, place = key.partition("/")
    return name, [int(number) for number in place.removeprefix("c/").replace("/", ".").split(".")]


def _array(name: str, array: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    data_type = np.dtype(array["dtype"])
    if is_message(array):
        codecs = [{"name": MESSAGE_CODEC, "configuration": {"var": name}}]
    else:
        endian = "big" if array["dtype"].startswith(">") else "little"
        codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
        for entry in array["filters"] or ():
            configuration = {key: value for key, value in entry.items() if key != "id"}
            codecs.append({"name": f"numcodecs.{entry['id']}", "configuration": configuration})
    fill = array["fill_value"]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array["shape"],
        "data_type": data_type.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array["chunks"]}},
        "chunk_key_encoding": _KEYS,
        "fill_value": fill if fill is not None else "NaN" if data_type.kind == "f" else 0,
        "codecs": codecs,
        "attributes": {key: value for key, value in attributes.items() if key != _DIMENSIONS},
        "dimension_names": attributes[_DIMENSIONS],
    }
