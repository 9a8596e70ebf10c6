"""A virtual store as a document: Zarr's metadata, and each chunk's byte range in an object.

The format is kerchunk's reference file, version 1 (kerchunk documentation, "References specification"), over Zarr's
storage specification: version 2, or 3 if chunks are GRIB2 messages (`zarr3.py`). Each address is written in full,
because GDAL and VirtualiZarr refuse the format's `templates`. The key `kfm`, which other clients ignore, has the Item
of each step, and the ETag that the object had when it was indexed (`reading/stores.py`). Stores with equal
steps have equal documents.

Belongs here: writing and parsing documents. Does not belong here: reading objects (`readers/`), publishing (`day.py`).
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from kfm_dagster.followers.virtual.netcdf_step import FILL, CubeStep, StoredVariable
from kfm_dagster.followers.virtual.zarr3 import (
    METADATA,
    array_of,
    chunk_key,
    chunk_place,
    is_message,
    to_version_2,
    to_version_3,
)
from kfm_dagster.readers.hdf5_chunks import StoredChunk
from kfm_dagster.readers.hdf5_messages import DEFLATE, FLETCHER32, SHUFFLE

_INLINE = "base64:"
_ARRAY, _ATTRIBUTES, _GROUP, _CONSOLIDATED = ".zarray", ".zattrs", ".zgroup", ".zmetadata"
_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Attribute with the names of dimensions, by xarray's convention for Zarr 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStep:
    """An Item at its `place` along a store's first dimension.

    `values` has the bytes of small arrays, `chunks` the byte ranges of large arrays in the object.
    """

    item_id: str
    content_sha256: str
    uri: str
    etag: str
    datetime: str
    place: float
    values: Mapping[str, bytes]
    chunks: Mapping[str, tuple[StoredChunk, ...]]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Metadata that all steps of a store share.

    `metadata` has Zarr's metadata documents by their keys in the store. In these, `shape[0]` is 0 for an array along
    the first dimension. `fixed` has the values of axes and grid mappings. A step can lack an array of GRIB2 messages.
    """

    along: str
    metadata: Mapping[str, Mapping[str, Any]]
    fixed: Mapping[str, bytes]

    @cached_property
    def signature(self) -> str:
        """Hash of grid, types, scales and units, equal for all steps of a store; without `messages`."""
        common = {key: value for key, value in self.metadata.items() if key.rpartition("/")[0] not in self.messages}
        content = [self.along, common, {name: _inline(data) for name, data in self.fixed.items()}]
        return hashlib.sha256(_text(content).encode()).hexdigest()

    @cached_property
    def messages(self) -> frozenset[str]:
        """Names of the arrays whose chunks are GRIB2 messages."""
        return frozenset(name for name in self.arrays if is_message(self.metadata[f"{name}/{_ARRAY}"]))

    @property
    def arrays(self) -> list[str]:
        """Names of all arrays."""
        return [key.removesuffix(f"/{_ARRAY}") for key in self.metadata if key.endswith(f"/{_ARRAY}")]

    def joined(self, other: Frame) -> Frame:
        """Return a frame with the arrays of both frames, which have the same signature."""
        return Frame(along=self.along, metadata={**self.metadata, **other.metadata}, fixed=self.fixed)

    @property
    def stepped(self) -> list[str]:
        """Names of the arrays along the first dimension."""
        return [name for name in self.arrays if self.along in self.metadata[f"{name}/{_ATTRIBUTES}"][_DIMENSIONS]]


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualCube:
    """Steps of a frame, in order."""

    frame: Frame
    steps: tuple[StoreStep, ...]

    @property
    def images(self) -> list[str]:
        """Names of the arrays with chunks in any step, in order."""
        return sorted({name for step in self.steps for name in step.chunks})

    def changed(self, leaving: AbstractSet[str], steps: Iterable[StoreStep], frame: Frame) -> VirtualCube:
        """Return the store without the Items in `leaving`, with `steps` and the arrays of `frame`."""
        kept = (step for step in self.steps if step.item_id not in leaving)
        ordered = tuple(sorted((*kept, *steps), key=lambda step: (step.place, step.item_id)))
        return VirtualCube(frame=self.frame.joined(frame), steps=ordered)


def frame_of(cube_step: CubeStep, *, along: str) -> Frame:
    """Return the frame of an object's store."""
    metadata: dict[str, dict[str, Any]] = {_GROUP: {"zarr_format": 2}, _ATTRIBUTES: dict(cube_step.attributes)}
    for name, variable in sorted(cube_step.variables.items()):
        dimensions, shape, chunk = list(variable.dimensions), list(variable.shape), list(variable.chunk)
        if name not in cube_step.fixed:
            dimensions, shape, chunk = [along, *dimensions], [0, *shape], [1, *chunk]
        metadata[f"{name}/{_ATTRIBUTES}"] = {**variable.attributes, **_fill(variable), _DIMENSIONS: dimensions}
        metadata[f"{name}/{_ARRAY}"] = array_of(
            shape,
            chunk,
            message=variable.message,
            data_type=variable.data_type,
            fill=variable.fill,
            filters=_filters(variable) if name in cube_step.images else None,
        )
    return Frame(along=along, metadata=metadata, fixed=cube_step.fixed)


def step_of(
    cube_step: CubeStep, *, along: str, item_id: str, content_sha256: str, uri: str, etag: str, datetime: str
) -> StoreStep:
    """Return an object as a step of its store."""
    (place,) = np.frombuffer(cube_step.values[along], cube_step.variables[along].data_type)
    return StoreStep(
        item_id=item_id,
        content_sha256=content_sha256,
        uri=uri,
        etag=etag,
        datetime=datetime,
        place=float(place),
        values=cube_step.values,
        chunks=cube_step.images,
    )


def metadata_of(store: VirtualCube) -> dict[str, Mapping[str, Any]]:
    """Return Zarr's metadata (version 2) by key, of a store with at least one step."""
    images = store.images
    unused = store.frame.messages.difference(images)
    return {
        key: _with_steps(store, key, images) for key in store.frame.metadata if key.rpartition("/")[0] not in unused
    }


def values_of(store: VirtualCube) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the single chunk of each small array of a store."""
    yield from store.frame.fixed.items()
    for name in store.steps[0].values:
        yield name, b"".join(step.values[name] for step in store.steps)


def references_of(store: VirtualCube, *, region: str) -> dict[str, Any]:
    """Return the document of a store with at least one step; `region` is the buckets' region."""
    metadata = metadata_of(store)
    version = 3 if store.frame.messages else 2
    if version == 3:
        refs: dict[str, Any] = {key: _text(value) for key, value in to_version_3(metadata).items()}
    else:
        refs = {key: _text(value) for key, value in metadata.items()}
        refs[_CONSOLIDATED] = _text({"zarr_consolidated_format": 1, "metadata": metadata})
    for name, data in values_of(store):
        refs[_only_chunk(metadata, name, version=version)] = _inline(data)
    for name, place, step, chunk in chunks_of(store):
        refs[chunk_key(name, place, version=version)] = [step.uri, chunk.offset, chunk.length]
    ours = {
        "along": store.frame.along,
        "images": store.images,
        "region": region,
        "steps": [
            [step.item_id, step.content_sha256, step.datetime, step.place, step.uri, step.etag] for step in store.steps
        ],
    }
    return {"version": 1, "kfm": ours, "refs": refs}


def to_document(store: VirtualCube, *, region: str) -> bytes:
    """Return the file of a store with at least one step."""
    return _text(references_of(store, region=region)).encode()


def chunks_of(store: VirtualCube) -> Iterator[tuple[str, tuple[int, ...], StoreStep, StoredChunk]]:
    """Yield array, place in the array, step and byte range of each chunk of a store's images."""
    for number, step in enumerate(store.steps):
        for name, chunks in step.chunks.items():
            for chunk in chunks:
                yield name, (number, *chunk.place), step, chunk


def from_document(document: Mapping[str, Any]) -> VirtualCube:
    """Parse a document of `references_of`.

    Raises ValueError, TypeError or KeyError for any other document.
    """
    ours, refs = document["kfm"], document["refs"]
    version = 3 if METADATA in refs else 2
    if version == 3:
        arrays = to_version_2(orjson.loads(refs[METADATA]))
    else:
        keys = {key for key in refs if key.rpartition("/")[2] in {_ARRAY, _ATTRIBUTES, _GROUP}}
        arrays = {key: orjson.loads(refs[key]) for key in sorted(keys)}
    frame = Frame(along=ours["along"], metadata=arrays, fixed={})
    stepped, images = frame.stepped, set(ours["images"])
    small = {
        name: _outline(refs[_only_chunk(arrays, name, version=version)]) for name in frame.arrays if name not in images
    }
    for name in stepped:
        array = arrays[f"{name}/{_ARRAY}"]
        array["shape"][0], array["chunks"][0] = 0, 1
    chunks: list[dict[str, list[StoredChunk]]] = [{name: [] for name in ours["images"]} for _ in ours["steps"]]
    for key, reference in refs.items():
        if isinstance(reference, list):
            name, (number, *inner) = chunk_place(key)
            chunks[number][name].append(StoredChunk(tuple(inner), reference[1], reference[2]))
    frame = Frame(
        along=ours["along"],
        metadata=arrays,
        fixed={name: data for name, data in small.items() if name not in stepped},
    )
    steps = tuple(
        StoreStep(
            item_id=item_id,
            content_sha256=content_sha256,
            uri=uri,
            etag=etag,
            datetime=datetime,
            place=place,
            values={name: _slice(small[name], number, len(chunks)) for name in stepped if name not in images},
            chunks={
                name: tuple(listed) for name, listed in chunks[number].items() if listed or name not in frame.messages
            },
        )
        for number, (item_id, content_sha256, datetime, place, uri, etag) in enumerate(ours["steps"])
    )
    return VirtualCube(frame=frame, steps=steps)


def _with_steps(store: VirtualCube, key: str, images: Sequence[str]) -> Mapping[str, Any]:
    """Return a key's metadata for the number of steps; small arrays are one chunk of all steps."""
    entry = store.frame.metadata[key]
    name = key.removesuffix(f"/{_ARRAY}")
    if name == key or name in store.frame.fixed:
        return entry
    count = len(store.steps)
    chunk_steps = 1 if name in images else count
    return {**entry, "shape": [count, *entry["shape"][1:]], "chunks": [chunk_steps, *entry["chunks"][1:]]}


def _filters(variable: StoredVariable) -> list[dict[str, Any]] | None:
    """Return filters as numcodecs' configurations, in writing order."""
    size = int(variable.data_type[2:])
    known: dict[int, dict[str, Any]] = {
        # Readers ignore the level, and HDF5's level differs between writers.
        DEFLATE: {"id": "zlib", "level": 1},
        SHUFFLE: {"id": "shuffle", "elementsize": size},
        FLETCHER32: {"id": "fletcher32"},
    }
    return [known[identifier] for identifier in variable.filters] or None


def _fill(variable: StoredVariable) -> dict[str, Any]:
    """Return the fill value as an attribute, because Zarr 3's own value does not mean "missing"."""
    if variable.fill is None:
        return {}
    # As xarray does (FillValueCoder), so that JSON does not change a float.
    is_float = variable.data_type[1] == "f"
    return {FILL: base64.b64encode(struct.pack("<d", variable.fill)).decode() if is_float else variable.fill}


def _only_chunk(metadata: Mapping[str, Mapping[str, Any]], name: str, *, version: int) -> str:
    """Return the key of the single chunk of a small array."""
    return chunk_key(name, [0] * len(metadata[f"{name}/{_ARRAY}"]["shape"]), version=version)


def _text(value: Any) -> str:
    """Return JSON that does not depend on the order of the steps' arrival."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _slice(data: bytes, number: int, count: int) -> bytes:
    size = len(data) // count
    return data[number * size : (number + 1) * size]


def _inline(data: bytes) -> str:
    return _INLINE + base64.b64encode(data).decode()


def _outline(text: str) -> bytes:
    return base64.b64decode(text.removeprefix(_INLINE), validate=True)
