"""Header of a NetCDF-4 file: dimensions, variables, attributes, some values of its axes.

Belongs here: NetCDF's names over HDF5's (NetCDF Users Guide, appendix B, "The NetCDF-4 Format"). Does not belong here:
the meaning of the names (`cf_axes.py`), their storage in HDF5 (`hdf5.py`). Only the root group is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(frozen=True, kw_only=True, slots=True)
class NetcdfHeader:
    """Global attributes, lengths of dimensions, and variables whose dimensions have names; all by name.

    `axes` are the coordinate variables: variables with a single dimension, of their own name (CF 1.11, section 1.3).
    """

    attributes: Mapping[str, AttributeValue]
    dimensions: Mapping[str, int]
    variables: Mapping[str, Variable]

    @property
    def axes(self) -> dict[str, Variable]:
        """Coordinate variables by name."""
        return {name: variable for name, variable in self.variables.items() if variable.dimensions == (name,)}


def read_netcdf_header(source: ByteSource) -> NetcdfHeader:
    """Read the header. Raises as `read_hdf5`, and ReadError(RESOURCE_LIMIT) above the bounds."""
    return read_hdf5(source, _header)


class NamedDataset(NamedTuple):
    """An HDF5 variable under NetCDF's names; `attributes` are without the format's own."""

    name: str
    dataset: Hdf5Dataset
    dimensions: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]


def named_datasets(root: Hdf5Group) -> tuple[dict[str, int], list[NamedDataset]]:
    """Return lengths of dimensions, and variables of named dimensions. Raises ReadError."""
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
    lengths, datasets = named_datasets(root)
    attributes = root.attributes()
    _bound("bytes of attributes", _bytes(attributes), MAX_ATTRIBUTE_BYTES)
    _bound("axes", sum(variable.dimensions == (variable.dataset.name,) for variable in datasets), MAX_AXES)
    variables = {
        variable.name: Variable(
            dimensions=variable.dimensions,
            attributes=variable.attributes,
            samples=_samples(variable.dataset) if variable.dimensions == (variable.dataset.name,) else {},
            data_type=variable.dataset.data_type,
        )
        for variable in datasets
    }
    return NetcdfHeader(attributes=shown(attributes), dimensions=lengths, variables=variables)


def _bound(what: str, count: int, most: int) -> None:
    if count > most:
        raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"the file has more than {most} {what}")


def _bytes(attributes: Mapping[str, AttributeValue]) -> int:
    """Return the bytes of names, texts, and lists of numbers, 8 for each number."""
    values = attributes.values()
    texts = sum(len(value) for value in values if isinstance(value, str))
    return sum(map(len, attributes)) + texts + sum(8 * len(value) for value in values if isinstance(value, list))


def _dimensions(dataset: Hdf5Dataset, scales: Mapping[int, str]) -> tuple[str, ...] | None:
    """Return the names of a variable's dimensions; None if a name is missing, as never in NetCDF-4."""
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
