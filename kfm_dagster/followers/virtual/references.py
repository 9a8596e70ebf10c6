"""A virtual store as a document of references: Zarr's metadata, and for each chunk its byte range in an object.

The format is kerchunk's reference file, version 1 (kerchunk documentation, "References specification"), over Zarr's
storage specification: version 2, or 3 if chunks are GRIB2 messages (`zarr3.py`). fsspec, xarray and zarr-python open
the document directly. Its key `kfm` (the Item of each step) is internal. A document depends on its steps alone.

Belongs here: writing and parsing documents. Does not belong here: reading objects (`readers/`), publishing (`day.py`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from kfm_dagster.followers.virtual.netcdf_step import CubeStep, StoredVariable
from kfm_dagster.followers.virtual.zarr3 import METADATA, array_of, is_message, to_version_2, to_version_3
from kfm_dagster.readers.hdf5_chunks import StoredChunk
from kfm_dagster.readers.hdf5_messages import DEFLATE, FLETCHER32, SHUFFLE

_INLINE = "base64:"
_ARRAY, _ATTRIBUTES, _GROUP, _CONSOLIDATED = ".zarray", ".zattrs", ".zgroup", ".zmetadata"
_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Attribute with the names of dimensions, by xarray's convention for Zarr 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStep:
    """A step of a store, sorted by `place`: `values` of small arrays, `chunks` of large arrays."""

    item_id: str
    content_sha256: str
    uri: str
    datetime: str
    place: float
    values: Mapping[str, bytes]
    chunks: Mapping[str, tuple[StoredChunk, ...]]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Metadata that all steps of a store share.

    `shape[0]` of stepped arrays is 0. `metadata` is Zarr's, by its key in the store; `fixed` has the values of axes and
    grid mappings. Steps may lack an array of GRIB2 messages, because its metadata follows from name and grid.
    """

    along: str
    metadata: Mapping[str, Mapping[str, Any]]
    fixed: Mapping[str, bytes]

    @cached_property
    def signature(self) -> str:
        """Hash of the frame; steps of another hash differ in grid, type, scale or unit and belong to another store."""
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
        """Return the frame of the same signature that has the arrays of both."""
        return Frame(along=self.along, metadata={**self.metadata, **other.metadata}, fixed=self.fixed)

    @property
    def stepped(self) -> list[str]:
        """Names of the arrays that have steps."""
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
        """Return the store without the Items `leaving`, plus `steps`; `frame` has the same signature."""
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
        metadata[f"{name}/{_ATTRIBUTES}"] = {**variable.attributes, _DIMENSIONS: dimensions}
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
    cube_step: CubeStep, *, along: str, item_id: str, content_sha256: str, uri: str, datetime: str
) -> StoreStep:
    """Return an object as a step of its store."""
    (place,) = np.frombuffer(cube_step.values[along], cube_step.variables[along].data_type)
    return StoreStep(
        item_id=item_id,
        content_sha256=content_sha256,
        uri=uri,
        datetime=datetime,
        place=float(place),
        values=cube_step.values,
        chunks=cube_step.images,
    )


def to_document(store: VirtualCube) -> bytes:
    """Return the document of a store that has a step."""
    images = store.images
    unused = store.frame.messages.difference(images)
    metadata = {
        key: _with_steps(store, key, images) for key in store.frame.metadata if key.rpartition("/")[0] not in unused
    }
    if store.frame.messages:
        refs: dict[str, Any] = {key: _text(value) for key, value in to_version_3(metadata).items()}
    else:
        refs = {key: _text(value) for key, value in metadata.items()}
        refs[_CONSOLIDATED] = _text({"zarr_consolidated_format": 1, "metadata": metadata})
    for name, data in store.frame.fixed.items():
        refs[f"{name}/{_first_chunk(metadata, name)}"] = _inline(data)
    for name in store.steps[0].values:
        data = b"".join(step.values[name] for step in store.steps)
        refs[f"{name}/{_first_chunk(metadata, name)}"] = _inline(data)
    for number, step in enumerate(store.steps):
        uri = "{{" + _template(number) + "}}"
        for name, chunks in step.chunks.items():
            for chunk in chunks:
                place = ".".join(map(str, (number, *chunk.place)))
                refs[f"{name}/{place}"] = [uri, chunk.offset, chunk.length]
    ours = {
        "along": store.frame.along,
        "images": images,
        "steps": [[step.item_id, step.content_sha256, step.datetime, step.place] for step in store.steps],
    }
    templates = {_template(number): step.uri for number, step in enumerate(store.steps)}
    return _text({"version": 1, "kfm": ours, "templates": templates, "refs": refs}).encode()


def from_document(content: bytes) -> VirtualCube:
    """Parse a document of `to_document`. Raises ValueError or KeyError for any other document."""
    document = orjson.loads(content)
    ours, refs, templates = document["kfm"], document["refs"], document["templates"]
    if METADATA in refs:
        arrays = to_version_2(orjson.loads(refs[METADATA]))
    else:
        keys = {key for key in refs if key.rpartition("/")[2] in {_ARRAY, _ATTRIBUTES, _GROUP}}
        arrays = {key: orjson.loads(refs[key]) for key in sorted(keys)}
    frame = Frame(along=ours["along"], metadata=arrays, fixed={})
    stepped, images = frame.stepped, set(ours["images"])
    small = {
        name: _outline(refs[f"{name}/{_first_chunk(arrays, name)}"]) for name in frame.arrays if name not in images
    }
    for name in stepped:
        array = arrays[f"{name}/{_ARRAY}"]
        array["shape"][0], array["chunks"][0] = 0, 1
    chunks: list[dict[str, list[StoredChunk]]] = [{name: [] for name in ours["images"]} for _ in ours["steps"]]
    for key, reference in refs.items():
        if isinstance(reference, list):
            name, _, place = key.rpartition("/")
            number, *inner = map(int, place.split("."))
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
            uri=templates[_template(number)],
            datetime=datetime,
            place=place,
            values={name: _slice(small[name], number, len(chunks)) for name in stepped if name not in images},
            chunks={
                name: tuple(listed) for name, listed in chunks[number].items() if listed or name not in frame.messages
            },
        )
        for number, (item_id, content_sha256, datetime, place) in enumerate(ours["steps"])
    )
    return VirtualCube(frame=frame, steps=steps)


def _with_steps(store: VirtualCube, key: str, images: Sequence[str]) -> Mapping[str, Any]:
    """Return a key's metadata with the number of steps; a small array is one chunk of all steps."""
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


def _first_chunk(metadata: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return the key of the single chunk of a small array."""
    return ".".join("0" for _ in metadata[f"{name}/{_ARRAY}"]["shape"]) or "0"


def _text(value: Any) -> str:
    """Return JSON with sorted keys, so that the text does not depend on the order in which steps arrive."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _template(number: int) -> str:
    """Return the name of a step's object; it begins with a letter, because fsspec formats it as a Python field."""
    return f"a{number}"


def _slice(data: bytes, number: int, count: int) -> bytes:
    size = len(data) // count
    return data[number * size : (number + 1) * size]


def _inline(data: bytes) -> str:
    return _INLINE + base64.b64encode(data).decode()


def _outline(text: str) -> bytes:
    return base64.b64decode(text.removeprefix(_INLINE), validate=True)
