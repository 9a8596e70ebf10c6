"""Header of a NetCDF file: names, attributes, samples of axes, values of coordinates.

Belongs here: NetCDF's names for the objects of HDF5 (NetCDF Users Guide, appendix B, "The NetCDF-4 Format"). Does not
belong here: the meaning of the names (`cf_axes.py`), their storage (`hdf5.py`). Only the root group is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.hdf5 import AttributeValue, Hdf5Dataset, Hdf5Group, read_hdf5

MAX_VARIABLES = 256
MAX_AXES = 32
"""Maximum variables and axes of a header; OISST has 8 and 4."""
MAX_ATTRIBUTE_BYTES = 1 << 21
"""Maximum bytes of all attributes together; OISST has 7 KB."""
MAX_NAME = 256
"""Maximum characters of a name: NC_MAX_NAME of netcdf.h."""
MAX_COORDINATE_BYTES = 3 << 19
"""Maximum bytes of a variable that is read whole, such as 300,000 longitudes of an ocean model's nodes (1.2 MB)."""

T = TypeVar("T")
Values = npt.NDArray[np.float64]

_SCALE = "DIMENSION_SCALE"
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."
"""Attribute NAME of a scale that only declares a dimension."""
_NO_AXIS = "_nc4_non_coord_"
"""Prefix of the HDF5 name of a variable that has a dimension's name, but is not the dimension's axis."""
_OF_FORMAT = frozenset({"CLASS", "NAME", "_Netcdf4Coordinates", "_Netcdf4Dimid", "_NCProperties", "_nc3_strict"})
"""Attributes of the format itself, hidden by the NetCDF libraries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A variable; `samples` has an axis's values by place: two at each end, one in the middle.

    `data_type` is the type of the stored values, such as `int16`; None when they are not numbers.
    """

    dimensions: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    samples: Mapping[int, float]
    data_type: str | None

    def text(self, name: str) -> str:
        """Return the text attribute of a name, else an empty text."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str, default: float = math.nan) -> float:
        """Return a numeric attribute, the default if it is absent, NaN if it is not a number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int | float) else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class NetcdfHeader:
    """Global attributes, lengths of dimensions, and variables with named dimensions, by name.

    `axes` has a variable for a dimension: the variable with the dimension's name (CF 1.11, section 1.3), else the only
    variable along the dimension that has the attribute `axis`, such as the times of a dimension `tdim`.
    """

    attributes: Mapping[str, AttributeValue]
    dimensions: Mapping[str, int]
    variables: Mapping[str, Variable]
    axes: Mapping[str, Variable]
    values: Callable[[str], Values | None]
    """Read all stored values of a variable; None if they are too many, or not numbers."""


def read_netcdf_header(source: ByteSource, read: Callable[[NetcdfHeader], T]) -> T:
    """Return the result of `read` with the header; coordinates are requested as needed.

    Raises the errors of `read_hdf5`, and ReadError(RESOURCE_LIMIT) above the bounds.
    """
    return read_hdf5(source, lambda root: read(_header(root)))


class NamedDataset(NamedTuple):
    """A stored variable under NetCDF's names; `attributes` has none of the format's own."""

    name: str
    dataset: Hdf5Dataset
    dimensions: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]


def named_datasets(root: Hdf5Group) -> tuple[dict[str, int], list[NamedDataset]]:
    """Return lengths of dimensions, and variables with named dimensions. Raises ReadError."""
    datasets = root.datasets()
    _bound("variables", len(datasets), MAX_VARIABLES)
    _bound("characters in a name", max(map(len, datasets), default=0), MAX_NAME)
    attributes: dict[str, dict[str, AttributeValue]] = {}
    size = 0
    for name, dataset in datasets.items():
        attributes[name] = dataset.attributes()
        size += _bytes(attributes[name])
        _bound("bytes of attributes", size, MAX_ATTRIBUTE_BYTES)
    scales = {scale.address: name for name, scale in datasets.items() if attributes[name].get("CLASS") == _SCALE}
    lengths = dict.fromkeys(scales.values(), 0)
    variables: list[NamedDataset] = []
    for name, dataset in datasets.items():
        dimensions = _dimensions(dataset, scales)
        if dimensions is None:
            continue
        for dimension, length in zip(dimensions, dataset.shape, strict=True):
            # The scale of an unlimited dimension without an axis does not grow with the dimension.
            lengths[dimension] = max(lengths[dimension], length)
        if not str(attributes[name].get("NAME", "")).startswith(_NO_VARIABLE):
            variables.append(NamedDataset(name.removeprefix(_NO_AXIS), dataset, dimensions, shown(attributes[name])))
    return lengths, variables


def _header(root: Hdf5Group) -> NetcdfHeader:
    lengths, named = named_datasets(root)
    attributes = root.attributes()
    _bound("bytes of attributes", _bytes(attributes), MAX_ATTRIBUTE_BYTES)
    axes = _axes(named)
    _bound("axes", len(axes), MAX_AXES)
    variables = {
        variable.name: Variable(
            dimensions=variable.dimensions,
            attributes=variable.attributes,
            samples=_samples(variable.dataset) if variable.name in axes.values() else {},
            data_type=variable.dataset.data_type,
        )
        for variable in named
    }
    datasets = {variable.name: variable.dataset for variable in named}

    def values(name: str) -> Values | None:
        """Read the values; None unless they are numbers within the bounds of bytes and blocks."""
        try:
            storage = datasets[name].storage
            data = storage.values(MAX_COORDINATE_BYTES)
        except ReadError as error:
            if error.code is MetadataIssue.RESOURCE_LIMIT:
                return None
            raise
        code = storage.datatype.struct_code
        # Hostile bytes may have a signalling NaN, which would cause a warning.
        with np.errstate(invalid="ignore"):
            return None if code is None else np.frombuffer(data, code).astype(np.float64).reshape(storage.shape)

    return NetcdfHeader(
        attributes=shown(attributes),
        dimensions=lengths,
        variables=variables,
        axes={dimension: variables[name] for dimension, name in axes.items()},
        values=values,
    )


def _axes(named: Sequence[NamedDataset]) -> dict[str, str]:
    """Return the name of each dimension's axis."""
    own = {variable.name: variable.name for variable in named if variable.dimensions == (variable.name,)}
    stated = [variable for variable in named if len(variable.dimensions) == 1 and variable.attributes.get("axis")]
    dimensions = [variable.dimensions[0] for variable in stated]
    # Positions of points may have the attribute, too. Longitudes and latitudes then share a dimension: it gets no axis.
    others = {dimension: variable.name for dimension, variable in zip(dimensions, stated, strict=True)}
    return {dimension: name for dimension, name in others.items() if dimensions.count(dimension) == 1} | own


def _bound(what: str, count: int, most: int) -> None:
    if count > most:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"the file has more than {most} {what}")


def _bytes(attributes: Mapping[str, AttributeValue]) -> int:
    """Return the bytes of names, texts, and lists of numbers, 8 for each number."""
    values = attributes.values()
    texts = sum(len(value) for value in values if isinstance(value, str))
    return sum(map(len, attributes)) + texts + sum(8 * len(value) for value in values if isinstance(value, list))


def _dimensions(dataset: Hdf5Dataset, scales: Mapping[int, str]) -> tuple[str, ...] | None:
    """Return the names of a variable's dimensions; None if one has no name (never in NetCDF-4)."""
    if not dataset.shape:
        return ()
    if dataset.address in scales and len(dataset.shape) == 1:
        return (scales[dataset.address],)
    candidates = [scales.get(address) for address in dataset.scales or () if address is not None]
    names = tuple(name for name in candidates if name is not None)
    return names if len(names) == len(dataset.shape) else None


def _samples(axis: Hdf5Dataset) -> dict[int, float]:
    """Return the written values by their place."""
    (length,) = axis.shape
    places = sorted({place for place in (0, 1, length // 2, length - 2, length - 1) if 0 <= place < length})
    return {place: value for place in places if (value := axis.storage.element(place)) is not None}


def shown(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the attributes without the format's own."""
    return {name: value for name, value in attributes.items() if name not in _OF_FORMAT}
