"""What a GOES-R ABI file says in its headers, under its own names and unrounded.

Belongs here: which attributes and variables are read. Does not belong here: what they mean (`goes_abi.py`), how HDF5
stores them (`hdf5.py`).

Names and units: GOES-R Product Definition and Users' Guide (PUG), volume 3 (L1b, 416-R-PUG-L1B-0347) and volume 5 (L2+,
416-R-PUG-L2-0349): section 5.0 global attributes, 5.1.2 fixed grid, 5.1.3 variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.hdf5 import Hdf5Dataset, Hdf5Group, Hdf5Object, read_hdf5
from kfm_dagster.readers.ranges import BlockCache

_ATTRIBUTES = (
    "dataset_name", "date_created", "id", "orbital_slot", "platform_ID", "processing_level", "production_site",
    "scene_id", "spatial_resolution", "time_coverage_end", "time_coverage_start", "timeline_id",
)  # fmt: skip
_OTHER_ATTRIBUTES = (
    "Conventions", "cdm_data_type", "instrument_ID", "instrument_type", "production_environment", "title",
)  # fmt: skip
_PROJECTION_NUMBERS = (
    "perspective_point_height", "semi_major_axis", "semi_minor_axis", "inverse_flattening",
    "latitude_of_projection_origin", "longitude_of_projection_origin",
)  # fmt: skip
EXTENT = (
    "geospatial_westbound_longitude", "geospatial_southbound_latitude",
    "geospatial_eastbound_longitude", "geospatial_northbound_latitude",
)  # fmt: skip
_OTHER_EXTENT = (
    "geospatial_lat_center", "geospatial_lon_center", "geospatial_lat_nadir", "geospatial_lon_nadir",
)  # fmt: skip
_OTHER_VARIABLES = {
    "t": 1, "time_bounds": 2, "x_image_bounds": 2, "y_image_bounds": 2,
    "nominal_satellite_subpoint_lon": 1, "nominal_satellite_subpoint_lat": 1, "nominal_satellite_height": 1,
}  # fmt: skip
"""Variables that no property needs, with their number of elements."""
_LONGEST_AXIS = 65_536
"""Pixels; the full disk at 0.5 km has 21,696 on a side."""
L0_ERRORS = "percent_uncorrectable_L0_errors"


def read_native(source: ByteSource, *, complete: bool = True, cache: BlockCache | None = None) -> dict[str, Any]:
    """Header values of any ABI product, unrounded, under the names that the file gives them.

    Without `complete`, only what `read_goes_abi` needs. Axes are given as `dims`, `x_first_last` and `y_first_last`
    (radians, decoded). Absent names are absent; bands are lists. Raises what `read_hdf5` raises.
    """
    return read_hdf5(source, lambda root: _header(root, complete=complete), cache=cache)


def _header(root: Hdf5Group, *, complete: bool) -> dict[str, Any]:
    native: dict[str, Any] = {}
    projection, extent = (_required(root, name) for name in ("goes_imager_projection", "geospatial_lat_lon_extent"))
    native["dims"] = {}
    for name in ("x", "y"):
        native["dims"][name], native[f"{name}_first_last"] = _axis(root, name)
    for name, count in {L0_ERRORS: 1, **(_OTHER_VARIABLES if complete else {})}.items():
        values = _elements(root, name, count)
        if values:
            native[name] = values[0] if count == 1 else values
    native.update(_bands(root))
    native["attrs"] = _texts(root, _ATTRIBUTES + (_OTHER_ATTRIBUTES if complete else ()))
    native["goes_imager_projection"] = {
        **_texts(projection, ("grid_mapping_name", "sweep_angle_axis")),
        **_numbers(projection, _PROJECTION_NUMBERS),
    }
    native["geospatial_lat_lon_extent"] = {
        **_numbers(extent, EXTENT + (_OTHER_EXTENT if complete else ())),
        **_texts(extent, ("geospatial_lat_units", "geospatial_lon_units") if complete else ()),
    }
    return native


def _texts(holder: Hdf5Object, names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name in names if (value := holder.text(name)) is not None}


def _numbers(holder: Hdf5Object, names: tuple[str, ...]) -> dict[str, float]:
    return {name: value for name in names if (value := holder.number(name)) is not None}


def _required(root: Hdf5Group, name: str) -> Hdf5Dataset:
    found = root.dataset(name)
    if found is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"there is no variable {name}")
    return found


def _elements(root: Hdf5Group, name: str, count: int) -> list[float]:
    """All elements of a variable that has `count`; none when there is no such variable or nothing was written."""
    variable = root.dataset(name)
    if variable is None:
        return []
    values = [variable.element(index) for index in range(count)]
    return [value for value in values if value is not None]


def _axis(root: Hdf5Group, name: str) -> tuple[int, list[float]]:
    """Give length, first and last scan angle (radians) of an axis, packed as integers or unpacked by some tool."""
    axis = _required(root, name)
    if len(axis.shape) != 1 or not 2 <= axis.shape[0] <= _LONGEST_AXIS:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"variable {name} has shape {axis.shape}, no axis")
    length = axis.shape[0]
    ends = [end for end in (axis.element(0), axis.element(length - 1)) if end is not None]
    if len(ends) != 2:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"variable {name} holds nothing")
    scale, offset = axis.number("scale_factor"), axis.number("add_offset")
    if scale is not None and offset is not None:
        # CF 1.7, 8.1: unpacked data have the type of the attributes, which is float32 (PUG volume 3, 5.1.3).
        with np.errstate(over="ignore", invalid="ignore"):
            ends = [float(np.float32(end) * np.float32(scale) + np.float32(offset)) for end in ends]
    return length, ends


def _bands(root: Hdf5Group) -> dict[str, list[float]]:
    """Give number and wavelength (micrometres) of each band: one in Rad and CMIP, sixteen in MCMIP, none elsewhere."""
    suffixes = [""]
    if root.dataset("band_id") is None:
        suffixes = [f"_C{band:02}" for band in range(1, 17)]
    bands: dict[str, list[float]] = {"band_id": [], "band_wavelength": []}
    for suffix in suffixes:
        for name, values in bands.items():
            values.extend(_elements(root, name + suffix, 1))
    return {name: values for name, values in bands.items() if values}
