"""A NetCDF-4 object as a step of a cube: chunks of images, and values of small variables.

Pixels are never read. Does not belong here: HDF5 (`readers/hdf5_chunks.py`), joining steps (`references.py`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.hdf5 import TAIL_BLOCKS, AttributeValue, Hdf5Group, read_hdf5
from kfm_dagster.readers.hdf5_chunks import StoredChunk, StoredValues
from kfm_dagster.readers.hdf5_forms import unreadable
from kfm_dagster.readers.hdf5_messages import DEFLATE, FLETCHER32, SHUFFLE
from kfm_dagster.readers.netcdf_header import NamedDataset, named_datasets, shown
from kfm_dagster.readers.ranges import BlockCache

MAX_BLOCKS = 512
"""Maximum blocks of 64 KiB to request for an index. The index lies among the chunks, so a full disk at 2 km needs some
20 blocks, and a full disk at 0.5 km at most 480."""
MAX_ALL_CHUNKS = 65_536
"""Maximum chunks of all images of an object: 16 bands with flags of a full disk at 2 km have 15,488."""
MAX_STEP_VALUES = 64
"""Maximum values of a small variable that differs between steps; the ABI observes 24 stars."""
KNOWN_FILTERS = {DEFLATE, SHUFFLE, FLETCHER32}
FILL, _UNSIGNED = "_FillValue", "_Unsigned"
# netCDF's own `_Unsigned`, and the attributes of appendix A of the CF conventions 1.11 except the file's history. All
# other attributes describe a granule (the share of good pixels), so a store of many granules cannot have them.
_MEANING = frozenset({
    _UNSIGNED, FILL, "add_offset", "ancillary_variables", "axis", "bounds", "calendar", "cell_measures",
    "cell_methods", "comment", "coordinates", "flag_masks", "flag_meanings", "flag_values", "formula_terms",
    "grid_mapping", "long_name", "missing_value", "positive", "scale_factor", "standard_name", "units", "valid_max",
    "valid_min", "valid_range",
})  # fmt: skip
_PACKED = frozenset({FILL, "flag_masks", "flag_values", "missing_value", "valid_max", "valid_min", "valid_range"})
"""Attributes that have the type of the stored values."""
_GLOBAL = frozenset({"Conventions", "institution", "references", "source", "title"})
_GRID_MAPPING = "grid_mapping_name"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredVariable:
    """Storage of a variable: `data_type` in NumPy's form (`<i2`), HDF5 `filters` in write order."""

    dimensions: tuple[str, ...] = ()
    attributes: Mapping[str, AttributeValue]
    data_type: str = "<f8"
    shape: tuple[int, ...] = ()
    chunk: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    fill: int | float | None = None
    """The file's fill value; None if the file has none."""
    message: bool = False
    """Whether each chunk is a GRIB2 message, which a codec decodes. A step can lack such a variable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CubeStep:
    """An object as a step: `fixed` axes and grid mappings, and `values` of its small variables."""

    attributes: Mapping[str, AttributeValue]
    variables: Mapping[str, StoredVariable]
    fixed: Mapping[str, bytes]
    values: Mapping[str, bytes]
    images: Mapping[str, tuple[StoredChunk, ...]]
    refused: tuple[str, ...] = ()
    """Requested fields that no store can have, each with the reason."""


def read_cube_step(source: ByteSource, *, along: str) -> CubeStep:
    """Read the index of an object; `along` is the scalar variable that orders the steps.

    Raises the errors of `read_hdf5`, and ReadError(UNREADABLE_FORMAT, RESOURCE_LIMIT) for objects that no store can
    refer to: without the variable `along`, with unknown filters, or with unwritten chunks that a store would fill with
    other values than the file.
    """
    cache = BlockCache(source, max_blocks=MAX_BLOCKS, tail_blocks=TAIL_BLOCKS)
    return read_hdf5(source, lambda root: _step(root, along), cache=cache)


def _step(root: Hdf5Group, along: str) -> CubeStep:
    _, named = named_datasets(root)
    usable = {variable.name: variable for variable in named if _can_be_referred_to(variable)}
    order = usable.get(along)
    if order is None or order.dimensions:
        raise unreadable(f"scalar variable {along} does not exist")
    variables: dict[str, StoredVariable] = {}
    fixed: dict[str, bytes] = {}
    values: dict[str, bytes] = {}
    images: dict[str, tuple[StoredChunk, ...]] = {}
    chunks = 0
    for name, variable in usable.items():
        stored = variable.dataset.storage
        if len(variable.dimensions) > 1:
            images[name] = _chunks_of(variable, stored)
            chunks += len(images[name])
            if chunks > MAX_ALL_CHUNKS:
                raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"images of more than {MAX_ALL_CHUNKS} chunks")
        elif variable.dimensions == (name,) or _GRID_MAPPING in variable.attributes:
            fixed[name] = stored.values()
        elif math.prod(stored.shape) <= MAX_STEP_VALUES:
            values[name] = stored.values()
        else:
            continue
        variables[name] = _variable(variable, stored)
    if not images or any(along in variable.dimensions for variable in variables.values()):
        raise unreadable(f"no image exists, or {along} is a dimension already")
    attributes = dict(_finite(shown(root.attributes()), _GLOBAL))
    return CubeStep(attributes=attributes, variables=variables, fixed=fixed, values=values, images=images)


def _can_be_referred_to(named: NamedDataset) -> bool:
    """Return whether a variable has numbers, a name valid in a path, and no empty dimension."""
    plain = named.name.isprintable() and "/" not in named.name and not named.name.startswith(".")
    return plain and named.dataset.data_type is not None and all(named.dataset.shape)


def _variable(named: NamedDataset, stored: StoredValues) -> StoredVariable:
    attributes = dict(_finite(named.attributes, None if _GRID_MAPPING in named.attributes else _MEANING))
    data_type = np.dtype(stored.datatype.struct_code)
    if data_type.kind == "i" and attributes.pop(_UNSIGNED, None) == "true":
        # netCDF's own convention, which GDAL ignores: the signed integers hold the bits of unsigned integers.
        data_type = np.dtype(data_type.str.replace("i", "u"))
        attributes |= {name: _wrapped(attributes[name], data_type) for name in _PACKED & attributes.keys()}
    fill = attributes.pop(FILL, None)
    return StoredVariable(
        dimensions=named.dimensions,
        attributes=attributes,
        data_type=data_type.str,
        shape=stored.shape,
        chunk=stored.chunk,
        filters=stored.filters,
        fill=fill if isinstance(fill, int | float) else None,
    )


def _wrapped(value: AttributeValue, data_type: np.dtype[Any]) -> AttributeValue:
    """Return an attribute's signed numbers as numbers of an unsigned type."""
    wrapped: AttributeValue = np.asarray(value).astype(data_type).tolist()
    return wrapped


def _finite(
    attributes: Mapping[str, AttributeValue], names: frozenset[str] | None
) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes of these names (None: all), but no non-finite number: JSON has none."""
    for name, value in attributes.items():
        numbers = value if isinstance(value, list) else [] if isinstance(value, str) else [value]
        if (names is None or name in names) and all(map(math.isfinite, numbers)):
            yield name, value


def _chunks_of(named: NamedDataset, stored: StoredValues) -> tuple[StoredChunk, ...]:
    """Return an image's chunks. Raises ReadError if a store's values would differ from the file."""
    if set(stored.filters) - KNOWN_FILTERS:
        raise unreadable(f"variable {named.name} uses filters {stored.filters}")
    if stored.layout.compact is not None:
        raise unreadable(f"variable {named.name} is stored in the header")
    chunks = stored.chunks()
    if len(chunks) < stored.chunk_count:
        unwritten = stored.fill or bytes(stored.datatype.size)
        fill = named.attributes.get(FILL)
        is_finite = isinstance(fill, int | float) and math.isfinite(fill)
        if not is_finite or struct.pack(stored.datatype.struct_code or "", fill) != unwritten:
            raise unreadable(f"variable {named.name} has unwritten chunks, and {FILL} {fill}")
    return chunks
