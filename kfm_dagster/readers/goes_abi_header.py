"""Headers of a GOES-R ABI file, under its own names and unrounded.

Belongs here: the attributes and variables to read. Does not belong here: what they mean (`goes_abi.py`), the common
ones of GOES-R files (`goes_granule.py`), how HDF5 stores them (`hdf5.py`).

Names and units: GOES-R Product Definition and Users' Guide (PUG), volume 3 (L1b, 416-R-PUG-L1B-0347) and volume 5 (L2+,
416-R-PUG-L2 Plus-0349): section 5.0 global attributes, 5.1.2 fixed grid, 5.1.3 variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import goes_granule, stored_values
from kfm_dagster.readers.base import ByteSource, ReadError
from kfm_dagster.readers.goes_granule import L0_ERRORS
from kfm_dagster.readers.hdf5 import Hdf5Dataset, Hdf5Group, read_hdf5

_ATTRIBUTES = (*goes_granule.ATTRIBUTES, "scene_id", "timeline_id")
_PROJECTION_NUMBERS = (
    "perspective_point_height", "semi_major_axis", "semi_minor_axis", "inverse_flattening",
    "latitude_of_projection_origin", "longitude_of_projection_origin",
)  # fmt: skip
EXTENT = (
    "geospatial_westbound_longitude", "geospatial_southbound_latitude",
    "geospatial_eastbound_longitude", "geospatial_northbound_latitude",
)  # fmt: skip
_IMAGES = (("Rad",), ("CMI",), tuple(f"CMI_C{band:02}" for band in range(1, 17)))
"""Images of radiances, and of cloud and moisture imagery of one band or all bands."""
_QUALITY = ("DQF", "PQI")
"""Prefixes of variables with the quality of pixels: data quality flags, product quality information."""
_LONGEST_AXIS = 65_536
"""Pixels; the full disk at 0.5 km has 21,696 on a side."""
GRID, LAT_LON = "goes_imager_projection", "goes_lat_lon_projection"
"""Variables for the kind of coordinates: scan angles of the fixed grid, or degrees."""


def read_native(source: ByteSource) -> dict[str, Any]:
    """Return header values of any ABI product, unrounded, under the file's own names.

    On the fixed grid axes are `dims`, `x_first_last` and `y_first_last` (radians, decoded), and `images` has the stored
    type and the attributes of each image by its name. Absent values are left out; bands are lists. Raises as
    `read_hdf5`, and ReadError(MISSING_GEOLOCATION) without a variable for the kind of coordinates.
    """
    return read_hdf5(source, _header)


def _header(root: Hdf5Group) -> dict[str, Any]:
    native: dict[str, Any] = {}
    extent, projection = _required(root, "geospatial_lat_lon_extent"), root.dataset(GRID)
    if projection is None and root.dataset(LAT_LON) is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"there is no variable {GRID}, nor {LAT_LON}")
    if projection is not None:
        native["dims"] = {}
        for name in ("x", "y"):
            native["dims"][name], native[f"{name}_first_last"] = _axis(root, name)
        native[GRID] = {
            **goes_granule.texts(projection, ("grid_mapping_name", "sweep_angle_axis")),
            **goes_granule.numbers(projection, _PROJECTION_NUMBERS),
        }
    native.update(goes_granule.variables(root, {L0_ERRORS: 1}))
    native.update(_bands(root))
    if projection is not None:
        shape = native["dims"]["y"], native["dims"]["x"]
        native["images"] = {name: _image(image) for name, image in _images(root, shape).items()}
    native["attrs"] = goes_granule.texts(root, _ATTRIBUTES)
    native["geospatial_lat_lon_extent"] = goes_granule.numbers(extent, EXTENT)
    return native


def _required(root: Hdf5Group, name: str) -> Hdf5Dataset:
    dataset = root.dataset(name)
    if dataset is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"there is no variable {name}")
    return dataset


def _axis(root: Hdf5Group, name: str) -> tuple[int, list[float]]:
    """Return length, first and last scan angle (radians) of an axis, packed or unpacked."""
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


def _images(root: Hdf5Group, shape: tuple[int, int]) -> dict[str, Hdf5Dataset]:
    """Return the variables with a value for each pixel.

    Radiances and imagery are requested by name, which reads no other header. Of any other product all variables are
    read: their names depend on product and version.
    """
    names = next((names for names in _IMAGES if root.dataset(names[0]) is not None), ())
    candidates = {name: image for name in names if (image := root.dataset(name)) is not None}
    if not names:
        candidates = {name: image for name, image in root.datasets().items() if not name.startswith(_QUALITY)}
    return {name: image for name, image in candidates.items() if image.shape == shape}


def _image(image: Hdf5Dataset) -> dict[str, Any]:
    """Return the type of the stored values as `dtype`, and the attributes with their meaning."""
    return {
        "dtype": image.data_type,
        **goes_granule.texts(image, (*stored_values.TEXTS, "long_name")),
        **goes_granule.numbers(image, stored_values.NUMBERS),
    }


def _bands(root: Hdf5Group) -> dict[str, list[float]]:
    """Return numbers and wavelengths (micrometres) of bands: 1 in Rad, CMIP, DMW, 16 in MCMIP."""
    suffixes = [""]
    if root.dataset("band_id") is None:
        suffixes = [f"_C{band:02}" for band in range(1, 17)]
    bands: dict[str, list[float]] = {"band_id": [], "band_wavelength": []}
    for suffix in suffixes:
        for name, values in bands.items():
            values.extend(goes_granule.elements(root, name + suffix, 1))
    return {name: values for name, values in bands.items() if values}
