"""Reader of GOES-R ABI radiances (L1b Rad) and all L2 products: NetCDF-4 headers, no pixels.

Belongs here: the attributes and variables to read, their meaning, and their agreement with the key. Does not belong
here: headers that all instruments share (`goes_granule.py`), the fixed grid (`geostationary.py`), HDF5 (`hdf5.py`).

Names and units: GOES-R Product Definition and Users' Guide (PUG), volume 3 (L1b, 416-R-PUG-L1B-0347) and volume 5 (L2+,
416-R-PUG-L2 Plus-0349): section 5.0 global attributes, 5.1.2 fixed grid, 5.1.3 variables.

An image is on the fixed grid, and its footprint follows from its axes. Radiation (DSR of some years, RSR) is on a grid
of latitudes and longitudes, and winds (DMW, DMWV) are points; the footprint of both is the extent that the file states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kfm_dagster.contracts.bounding_box import Box, bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import geometry, geostationary, goes_granule, stored_values
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.geostationary import FixedGrid
from kfm_dagster.readers.goes_granule import L0_ERRORS, expect
from kfm_dagster.readers.hdf5 import Hdf5Dataset, Hdf5Group, read_hdf5
from kfm_dagster.readers.stored_values import COLUMNS, ROWS, band_fields, horizontal, shown_text

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
"""Maximum pixels along an axis; the full disk at 0.5 km has 21,696."""
GRID, LAT_LON = "goes_imager_projection", "goes_lat_lon_projection"
"""Variables whose presence shows the kind of coordinates: scan angles of the fixed grid, or degrees."""


def _header(root: Hdf5Group) -> dict[str, Any]:
    """Return header values of any ABI product, unrounded, under the file's own names.

    On the fixed grid, `dims` has the lengths of the axes, `x_first_last` and `y_first_last` have their ends (radians,
    decoded), and `images` has the stored type and the attributes of each image by its name. Absent values are left out;
    values of bands are lists. Raises ReadError(MISSING_GEOLOCATION) if neither variable, GRID nor LAT_LON, exists.
    """
    native: dict[str, Any] = {}
    extent, projection = _required(root, "geospatial_lat_lon_extent"), root.dataset(GRID)
    if projection is None and root.dataset(LAT_LON) is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"neither variable {GRID} nor {LAT_LON} exists")
    if projection is not None:
        native["dims"] = {}
        for name in ("x", "y"):
            native["dims"][name], native[f"{name}_first_last"] = _axis(root, name)
        native[GRID] = {
            **goes_granule.texts(projection, ("grid_mapping_name", "sweep_angle_axis")),
            **goes_granule.numbers(projection, _PROJECTION_NUMBERS),
        }
    native.update(goes_granule.variables(root, {L0_ERRORS: 1}))
    native.update(_band_numbers(root))
    if projection is not None:
        shape = native["dims"]["y"], native["dims"]["x"]
        native["images"] = {name: _image(image) for name, image in _images(root, shape).items()}
    native["attrs"] = goes_granule.texts(root, _ATTRIBUTES)
    native["geospatial_lat_lon_extent"] = goes_granule.numbers(extent, EXTENT)
    return native


def _required(root: Hdf5Group, name: str) -> Hdf5Dataset:
    dataset = root.dataset(name)
    if dataset is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"variable {name} does not exist")
    return dataset


def _axis(root: Hdf5Group, name: str) -> tuple[int, list[float]]:
    """Return length, first and last scan angle (radians) of an axis; packed angles are decoded."""
    axis = _required(root, name)
    if len(axis.shape) != 1 or not 2 <= axis.shape[0] <= _LONGEST_AXIS:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"variable {name} of shape {axis.shape} is not an axis")
    length = axis.shape[0]
    ends = [end for end in map(axis.storage.element, (0, length - 1)) if end is not None]
    if len(ends) != 2:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"variable {name} has no written values")
    scale, offset = axis.number("scale_factor"), axis.number("add_offset")
    if scale is not None and offset is not None:
        # CF 1.7, 8.1: unpacked data have the type of the attributes, which is float32 (PUG volume 3, 5.1.3).
        with np.errstate(over="ignore", invalid="ignore"):
            ends = [float(np.float32(end) * np.float32(scale) + np.float32(offset)) for end in ends]
    return length, ends


def _images(root: Hdf5Group, shape: tuple[int, int]) -> dict[str, Hdf5Dataset]:
    """Return the variables with a value for each pixel.

    Radiances and imagery are requested by name, so that no other header is read. For any other product the headers of
    all variables are read, because the images' names depend on product and version.
    """
    names = next((names for names in _IMAGES if root.dataset(names[0]) is not None), ())
    candidates = {name: image for name in names if (image := root.dataset(name)) is not None}
    if not names:
        candidates = {name: image for name, image in root.datasets().items() if not name.startswith(_QUALITY)}
    return {name: image for name, image in candidates.items() if image.shape == shape}


def _image(image: Hdf5Dataset) -> dict[str, Any]:
    """Return the type of the stored values as `dtype`, and the attributes that define them."""
    return {
        "dtype": image.data_type,
        **goes_granule.texts(image, (*stored_values.TEXTS, "long_name")),
        **goes_granule.numbers(image, stored_values.NUMBERS),
    }


def _band_numbers(root: Hdf5Group) -> dict[str, list[float]]:
    """Return numbers and wavelengths (micrometres) of the bands; MCMIP has 16 bands."""
    suffixes = [""]
    if root.dataset("band_id") is None:
        suffixes = [f"_C{band:02}" for band in range(1, 17)]
    bands: dict[str, list[float]] = {"band_id": [], "band_wavelength": []}
    for suffix in suffixes:
        for name, values in bands.items():
            values.extend(goes_granule.elements(root, name + suffix, 1))
    return {name: values for name, values in bands.items() if values}


_SCENES = {"F": ("Full Disk", "FULL DISK"), "C": ("CONUS", "CONUS"), "M": ("Mesoscale", "MESOSCALE")}
"""Scene letter of the product name: `scene_id` in the file, image type in the catalog."""
_ALL_BANDS = "ABI-L2-MCMIP"
"""Product with all bands. The key of a product of a single band names the band."""

_COMMON_NAMES = {1: "blue", 2: "red", 3: "nir08", 4: "cirrus", 5: "swir16", 6: "swir22", 14: "lwir11", 15: "lwir12"}
"""STAC common band names (EO extension 2.0.0), for bands that fit them (Schmit et al. 2017, BAMS 98, table 1)."""

_LARGEST_ANGLE = 0.2
"""Maximum scan angle of an image in radians; the full disk ends at 0.151872 (PUG volume 3, section 5.1.2)."""
_SHORTEST, _LONGEST = 0.4, 14.0
"""Bounds of a band's centre in micrometres: the ABI's are 0.47 to 13.3 (goes-r.gov/spacesegment/abi.html)."""
_ANGLE_DECIMALS = 7
"""Decimals of a radian. Edges of images are multiples of 1 microradian, with errors below 2e-8 as 32-bit floats."""
_LIMB_CURVATURE = 0.153
"""Semi-major axis divided by the distance from the perspective point to the limb. If a point on the ground is inside
the limb by an angle a at the Earth's centre, its scan angle is below the limb's by this value times a * a / 2."""
_DESCRIBED_BY = {"description": "long_name", "unit": "units"}
"""Fields of a Variable Object, and the attribute that each is read from."""
_EXTENT_DECIMALS = 6
"""Decimals of a degree. The file has 32-bit floats with steps of 1.5e-5."""

_Findings = tuple[tuple[MetadataIssue, str], ...]


def read_goes_abi(request: ReadRequest) -> HeaderMetadata:
    """Read the headers of an ABI object and check them against its key.

    Raises ReadError: TIME_MISMATCH, PLATFORM_MISMATCH or INCOMPLETE_PRODUCT_METADATA when content and key disagree,
    MISSING_GEOLOCATION, INVALID_GEOMETRY, INVALID_TIME_RANGE, and the errors of `read_hdf5`.
    """
    native = read_hdf5(request.source, _header)
    attributes, groups = native["attrs"], request.groups
    start, end = goes_granule.coverage(attributes)
    goes_granule.check_key(request, attributes, start, end)
    # Numbers of the object's bands, by its key.
    numbers = [float(groups["band"])] if "band" in groups else []
    if groups["product"].startswith(_ALL_BANDS):
        numbers = [float(band) for band in range(1, 17)]
    expect("scene_id", attributes.get("scene_id"), _SCENES[groups["scene"]][0])
    if numbers:
        expect("band_id", native.get("band_id"), numbers)
    outline, place, findings = (_on_fixed_grid if GRID in native else _in_degrees)(native)
    properties = {
        **goes_granule.properties(request, native, instrument="abi"),
        "bands": _bands(numbers, native) or None,
        "goes:image-type": _SCENES[groups["scene"]][1],
        "goes:mode": int(groups["mode"]),
        "goes:timeline": attributes.get("timeline_id"),
        "goes:mesoscale-region": int(groups["name"][-1]) if groups["scene"] == "M" else None,
    }
    return HeaderMetadata(
        start=start,
        end=end,
        datetime=start,
        geometry=outline,
        properties={**{name: value for name, value in properties.items() if value is not None}, **place},
        native=native,
        findings=findings,
    )


def _on_fixed_grid(native: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any], _Findings]:
    """Return outline, properties and findings of an image."""
    grid, image = _fixed_grid(native[GRID]), _image_bounds(native)
    footprint = geostationary.footprint(grid, image)
    if footprint is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the image shows no part of the Earth")
    outline, centroid = footprint
    properties = _projection_properties(grid, image, centroid, native["dims"])
    properties |= _cube(properties, native["images"])
    stated = _extent(native)
    if stated is None:
        return outline, properties, ((MetadataIssue.MISSING_GEOLOCATION, "the file states no extent"),)
    properties["goes:extent"] = _rounded(stated)
    bounds = bounding_box(outline)
    # The difference of two longitudes, folded into [-180, 180].
    difference = max(abs((edge - bound + 180) % 360 - 180) for edge, bound in zip(stated, bounds, strict=True))
    if difference <= _extent_tolerance((image[2] - image[0]) / native["dims"]["x"]):
        return outline, properties, ()
    wrong = f"the file states the extent {stated}; its grid has {bounds}"
    return outline, properties, ((MetadataIssue.INVALID_GEOMETRY, wrong),)


def _in_degrees(native: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any], _Findings]:
    """Return outline, properties and findings of a product in degrees, from its stated extent."""
    stated = _extent(native)
    if stated is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the file states no extent")
    return geometry.rectangle(*stated), {"goes:extent": _rounded(stated)}, ()


def _extent(native: Mapping[str, Any]) -> Box | None:
    """Return the stated west, south, east and north in degrees; None for an invalid extent."""
    stated = native["geospatial_lat_lon_extent"]
    west, south, east, north = (stated.get(name, math.nan) for name in EXTENT)
    if -180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90:
        return west, south, east, north
    return None


def _rounded(extent: Box) -> list[float]:
    return [round(edge, _EXTENT_DECIMALS) for edge in extent]


def _extent_tolerance(pixel: float) -> float:
    """Return the tolerance of a stated extent in degrees; `pixel` is in radians.

    The file states the extent of the pixels' centres; the grid gives the extent of their edges. They may differ by the
    angle on the ground between the limb and the point that is seen one pixel inside the limb (PUG 5.1.2.8, second
    order): 1.6 degrees for pixels of 2 km, 3.5 for pixels of 10 km. The tolerance is 1.1 times this, but at least 2.
    """
    return max(2.0, 1.1 * math.degrees(math.sqrt(2 * pixel / _LIMB_CURVATURE)))


def _fixed_grid(projection: Mapping[str, Any]) -> FixedGrid:
    """Return the geostationary projection (over the equator, sweep in x). Raises ReadError."""
    height, major, minor = (
        projection.get(name, math.nan) for name in ("perspective_point_height", "semi_major_axis", "semi_minor_axis")
    )
    longitude = projection.get("longitude_of_projection_origin", math.nan)
    if not (
        projection.get("grid_mapping_name") == "geostationary"
        and projection.get("sweep_angle_axis") == "x"
        and projection.get("latitude_of_projection_origin") == 0
        and -180 <= longitude <= 180
        and 6.3e6 < minor <= major < 6.4e6
        and 3e7 < height < 4.5e7
    ):
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, f"goes_imager_projection is unknown: {dict(projection)}")
    return FixedGrid(
        longitude_of_origin=longitude,
        perspective_point_height=height,
        semi_major_axis=major,
        semi_minor_axis=minor,
    )


def _image_bounds(native: Mapping[str, Any]) -> Box:
    """Return the edges of the image in scan angles, half a pixel beyond the outermost centres.

    x_image_bounds and y_image_bounds are not used: in early files (2017) they are half a pixel off the axes.
    """
    (west, east), (north, south) = (_edges(native, name) for name in ("x", "y"))
    if not (-_LARGEST_ANGLE < west < east < _LARGEST_ANGLE and -_LARGEST_ANGLE < south < north < _LARGEST_ANGLE):
        raise ReadError(
            MetadataIssue.MISSING_GEOLOCATION, f"x spans {west} to {east} and y {north} to {south}: not an ABI image"
        )
    return west, south, east, north


def _edges(native: Mapping[str, Any], name: str) -> tuple[float, float]:
    first, last = native[f"{name}_first_last"]
    half = (last - first) / (native["dims"][name] - 1) / 2
    return round(first - half, _ANGLE_DECIMALS), round(last + half, _ANGLE_DECIMALS)


def _bands(numbers: list[float], native: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return STAC bands: the instrument's channels, else the product's images."""
    images = {name: band_fields(image["dtype"], image) for name, image in native.get("images", {}).items()}
    if not numbers:
        return [{"name": name, **fields} for name, fields in images.items()]
    bands = _channels(numbers, native.get("band_wavelength", []))
    # Images of several bands are in the order of _IMAGES, which is the order of the bands.
    fields = images.values() if len(images) == len(bands) else [{}] * len(bands)
    return [band | values for band, values in zip(bands, fields, strict=True)]


def _channels(numbers: list[float], wavelengths: list[float]) -> list[dict[str, Any]]:
    """Return channels with their central wavelengths in micrometres."""
    if len(wavelengths) != len(numbers) or not all(_SHORTEST < wavelength < _LONGEST for wavelength in wavelengths):
        raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, f"wavelengths of bands {numbers} are {wavelengths}")
    bands = []
    for number, wavelength in zip(map(int, numbers), wavelengths, strict=True):
        band: dict[str, Any] = {"name": f"C{number:02}", "eo:center_wavelength": round(wavelength, 4)}
        if number in _COMMON_NAMES:
            band["eo:common_name"] = _COMMON_NAMES[number]
        bands.append(band)
    return bands


def _projection_properties(
    grid: FixedGrid, image: Box, centroid: tuple[float, float] | None, dims: Mapping[str, int]
) -> dict[str, Any]:
    """Return fields of the projection extension 2.0.0, in metres (radians times height)."""
    height, columns, rows = grid.perspective_point_height, dims["x"], dims["y"]
    west, south, east, north = image
    properties: dict[str, Any] = {
        "proj:code": None,
        "proj:wkt2": geostationary.reference_system(grid)[1],
        "proj:bbox": [round(edge * height, 6) for edge in image],
        "proj:shape": [rows, columns],
        "proj:transform": [
            round(number * height, 6)
            for number in (
                (east - west) / columns, 0.0, west,
                0.0, (south - north) / rows, north,
            )
        ],
    }  # fmt: skip
    if centroid is not None:
        longitude, latitude = (round(degrees, 6) for degrees in centroid)
        properties["proj:centroid"] = {"lat": latitude, "lon": longitude}
    return properties


def _cube(projection: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return fields of the datacube extension 2.2.0; axes are in metres, not radians."""
    variables = {
        name: {
            "dimensions": [ROWS, COLUMNS],
            "type": "data",
            **{field: text for field, attribute in _DESCRIBED_BY.items() if (text := shown_text(image.get(attribute)))},
        }
        for name, image in images.items()
    }
    dimensions = horizontal(
        transform=projection["proj:transform"], shape=projection["proj:shape"], wkt2=projection["proj:wkt2"]
    )
    return {"cube:dimensions": dimensions} | ({"cube:variables": variables} if variables else {})
