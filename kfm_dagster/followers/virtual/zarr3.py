"""Conversion of a store's metadata between Zarr's version 2, as in `references.py`, and version 3, as in a document.

Belongs here: the two forms of an array's metadata. Does not belong here: values, and chunks, whose keys are equal.

Stores of GRIB2 messages use version 3: gribberish's codec for version 2 needs bytes, but zarr-python 3 passes arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MESSAGE_CODEC = "gribberish"
METADATA = "zarr.json"
_DIMENSIONS = "_ARRAY_DIMENSIONS"
_KEYS = {"name": "v2", "configuration": {"separator": "."}}
_NUMBERS = {"name": "bytes", "configuration": {"endian": "little"}}


def is_message(array: Mapping[str, Any]) -> bool:
    """Return whether chunks of an array (`.zarray`) are GRIB2 messages."""
    return any(entry["id"] == MESSAGE_CODEC for entry in array.get("filters") or ())


def to_version_3(metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the documents of a store by their keys; arrays have 64-bit floats."""
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
    """Return the version 2 metadata from a store's document `zarr.json`."""
    metadata: dict[str, Any] = {".zgroup": {"zarr_format": 2}, ".zattrs": group["attributes"]}
    for name, array in group["consolidated_metadata"]["metadata"].items():
        message = array["codecs"] != [_NUMBERS]
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
    """Return `.zarray`; absent messages read as NaN, like missing values of the codec."""
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


def _array(name: str, array: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    message = {"name": MESSAGE_CODEC, "configuration": {"var": name}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array["shape"],
        "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array["chunks"]}},
        "chunk_key_encoding": _KEYS,
        "fill_value": "NaN",
        "codecs": [message if is_message(array) else _NUMBERS],
        "attributes": {key: value for key, value in attributes.items() if key != _DIMENSIONS},
        "dimension_names": attributes[_DIMENSIONS],
    }
