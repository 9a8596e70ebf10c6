"""NetCDF-4's dimensions, variables and attributes, written by h5py for all samples.

Belongs here: the format. Does not belong here: the content of a product's files (`goes_abi_layout.py`, `oisst.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

Attributes = Mapping[str, Any]


def dimension(file: h5py.File, name: str, length: int | None, number: int) -> None:
    """Write a dimension without a variable (NetCDF-4 file format, "Dimensions"); None: no limit."""
    scale = file.create_dataset(name, shape=(length or 0,), maxshape=None if length else (None,), dtype=">f4")
    scale.make_scale(f"This is a netCDF dimension but not a netCDF variable.{length or 0:10}")
    scale.attrs["_Netcdf4Dimid"] = np.int32(number)


def axis(file: h5py.File, name: str, values: Any, number: int, attributes: Attributes, **options: Any) -> None:
    """Write a dimension with its coordinate variable; `options` are those of `create_dataset`."""
    variable_of_axis = file.create_dataset(name, data=values, **options)
    variable_of_axis.make_scale(name)
    annotate(variable_of_axis, {"_Netcdf4Dimid": np.int32(number), **attributes})


def variable(
    file: h5py.File,
    name: str,
    value: Any,
    *,
    dimensions: Sequence[str] = (),
    chunk: int | None = None,
    **attributes: Any,
) -> None:
    """Write a variable with its values; with `chunk`, its single dimension is unlimited."""
    growing = {"chunks": (chunk,), "maxshape": (None,)} if chunk else {}
    dataset = file.create_dataset(name, data=value, **growing)
    attach(file, dataset, dimensions)
    annotate(dataset, attributes)


def attach(file: h5py.File, dataset: h5py.Dataset, dimensions: Sequence[str]) -> None:
    """Name the dimensions of a variable."""
    for number, name in enumerate(dimensions):
        dataset.dims[number].attach_scale(file[name])


def annotate(holder: Any, attributes: Attributes) -> None:
    """Write attributes; texts become fixed-length strings, which netCDF-4 uses for NC_CHAR."""
    for name, value in attributes.items():
        holder.attrs.create(name, np.bytes_(value) if isinstance(value, str | bytes) else value)


def f4(value: float) -> Any:
    """Return a 32-bit float, as netCDF-4 writes a numeric attribute."""
    return np.array([value], "<f4")
