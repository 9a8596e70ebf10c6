"""Reader of GOES-R ABI radiances (L1b Rad) and imagery (L2 CMIP, MCMIP): NetCDF-4 headers, never a pixel.

Belongs here: what the headers mean, and whether they agree with the key. Does not belong here: which headers there are
(`goes_abi_header.py`), the fixed grid (`geostationary.py`). PUG is the GOES-R Product Definition and Users' Guide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import geostationary
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.geostationary import FixedGrid, ImageBounds, ImageFootprint
from kfm_dagster.readers.goes_abi_header import EXTENT, L0_ERRORS, read_native
from kfm_dagster.readers.ranges import BLOCK_BYTES

PROPERTIES = frozenset({
    "platform", "instruments", "gsd", "bands", "processing:level", "sat:orbit_state",
    "sat:platform_international_designator", "goes:product", "goes:image-type", "goes:orbital-slot", "goes:mode",
    "goes:timeline", "goes:mesoscale-region", "goes:created", "goes:production-site", "goes:uuid", "goes:extent",
    "goes:percent-uncorrectable-l0-errors", "proj:code", "proj:wkt2", "proj:shape", "proj:transform", "proj:centroid",
})  # fmt: skip
"""What an object can have."""
FIRST_BYTES = BLOCK_BYTES
"""Of an object, by its first request."""

_SCENES = {"F": ("Full Disk", "FULL DISK"), "C": ("CONUS", "CONUS"), "M": ("Mesoscale", "MESOSCALE")}
"""Scene letter of the product name: `scene_id` in the file, image type in the catalog."""

_INTERNATIONAL_DESIGNATORS = {"G16": "2016-071A", "G17": "2018-022A", "G18": "2022-021A", "G19": "2024-119A"}
"""COSPAR designators of GOES-R, -S, -T and -U (launched 2016-11-19, 2018-03-01, 2022-03-01, 2024-06-25), as NASA's
Space Science Data Coordinated Archive (NSSDCA master catalog) lists them."""

_COMMON_NAMES = {1: "blue", 2: "red", 3: "nir08", 4: "cirrus", 5: "swir16", 6: "swir22", 14: "lwir11", 15: "lwir12"}
"""STAC common band names (EO extension 2.0.0) of the bands whose range (Schmit et al. 2017, BAMS 98, table 1) fits."""

_TIME_TOLERANCE = timedelta(seconds=1)
_LARGEST_ANGLE = 0.2
"""Radians. The full disk ends at 0.151872 (PUG volume 3, section 5.1.2)."""
_ANGLE_DECIMALS = 7
"""Edges of images are multiples of 1 microradian; packed as 32-bit floats they come back with errors below 2e-8."""
_EXTENT_TOLERANCE = 2.0
"""Degrees. The file's extent is of pixel centres and ours of edges; next to the limb one pixel spans 1.6 degrees."""
_EXTENT_DECIMALS = 6
"""Of a degree. The file has 32-bit floats, whose steps are 1.5e-5 there."""


def read_goes_abi(request: ReadRequest) -> HeaderMetadata:
    """Read the headers of one ABI object and hold them against its key.

    Raises ReadError: TIME_MISMATCH, PLATFORM_MISMATCH or INCOMPLETE_PRODUCT_METADATA when content and key disagree,
    MISSING_GEOLOCATION, INVALID_GEOMETRY, INVALID_TIME_RANGE, and what `read_hdf5` raises.
    """
    native = read_native(request.source, complete=False)
    attributes = native["attrs"]
    start, end = _coverage(attributes)
    _check_key(request, native, start, end)
    grid, image = _fixed_grid(native["goes_imager_projection"]), _image_bounds(native)
    footprint = geostationary.footprint(grid, image)
    if footprint is None:
        raise ReadError(MetadataIssue.MISSING_GEOLOCATION, "the image shows no part of the Earth")
    extent, findings = _extent(native["geospatial_lat_lon_extent"], footprint)
    return HeaderMetadata(
        start=start,
        end=end,
        datetime=start,
        geometry=footprint.outline,
        properties={
            **_product_properties(request, native),
            **_projection_properties(grid, image, footprint, native["dims"]),
            **extent,
        },
        native=native,
        findings=findings,
    )


def _coverage(attributes: Mapping[str, str]) -> tuple[datetime, datetime]:
    """Start and end of the scan from the global attributes."""
    start, end = (_moment(attributes, name) for name in ("time_coverage_start", "time_coverage_end"))
    if end < start:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"the scan ends at {end} before it starts at {start}")
    return start, end


def _moment(attributes: Mapping[str, str], name: str) -> datetime:
    text = attributes.get(name, "")
    try:
        moment = datetime.fromisoformat(text)
        # A naive time would be taken for the machine's own zone.
        aware = moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        aware = None
    if aware is None:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"{name} is {text!r}, no RFC 3339 time")
    return aware


def _check_key(request: ReadRequest, native: Mapping[str, Any], start: datetime, end: datetime) -> None:
    """Hold platform, times, scene, band and name in the file against the key's."""
    groups, attributes = request.groups, native["attrs"]
    platform = attributes.get("platform_ID")
    if platform != f"G{groups['satellite']}":
        raise ReadError(
            MetadataIssue.PLATFORM_MISMATCH, f"platform_ID is {platform}, the key says G{groups['satellite']}"
        )
    for name, moment in (("start", start), ("end", end)):
        if abs(moment - _stamp(groups[name])) > _TIME_TOLERANCE:
            raise ReadError(
                MetadataIssue.TIME_MISMATCH,
                f"time_coverage_{name} is {moment.isoformat()}, the key says {groups[name]}",
            )
    scene = _SCENES[groups["scene"]][0]
    expected_bands = [float(groups["band"])] if "band" in groups else [float(band) for band in range(1, 17)]
    # Without the creation stamp: a copy under the name of a re-issue is still the same scan.
    name = request.key.rpartition("/")[2].rpartition("_c")[0]
    for what, observed, expected in (
        ("scene_id", attributes.get("scene_id"), scene),
        ("band_id", native.get("band_id"), expected_bands),
        ("dataset_name", attributes.get("dataset_name", "").rpartition("_c")[0], name),
    ):
        if observed != expected:
            raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, f"{what} is {observed}, the key says {expected}")


def _stamp(text: str) -> datetime:
    """Time of a stamp YYYYDDDHHMMSSt, t being tenths of a second (PUG, file naming)."""
    return datetime(int(text[:4]), 1, 1, tzinfo=UTC) + timedelta(
        days=int(text[4:7]) - 1,
        hours=int(text[7:9]),
        minutes=int(text[9:11]),
        seconds=int(text[11:13]),
        milliseconds=100 * int(text[13]),
    )


def _fixed_grid(projection: Mapping[str, Any]) -> FixedGrid:
    """Make the projection, which must be a geostationary one of this Earth, swept in x, over the equator."""
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


def _image_bounds(native: Mapping[str, Any]) -> ImageBounds:
    """Edges of the image, half a pixel outside the first and last centres.

    Not from x_image_bounds and y_image_bounds: those of early files (2017) are half a pixel off the axes.
    """
    (west, east), (north, south) = (_edges(native, name) for name in ("x", "y"))
    if not (-_LARGEST_ANGLE < west < east < _LARGEST_ANGLE and -_LARGEST_ANGLE < south < north < _LARGEST_ANGLE):
        raise ReadError(
            MetadataIssue.MISSING_GEOLOCATION, f"x spans {west} to {east} and y {north} to {south}, no ABI image"
        )
    return ImageBounds(west=west, east=east, south=south, north=north)


def _edges(native: Mapping[str, Any], name: str) -> tuple[float, float]:
    first, last = native[f"{name}_first_last"]
    half = (last - first) / (native["dims"][name] - 1) / 2
    return round(first - half, _ANGLE_DECIMALS), round(last + half, _ANGLE_DECIMALS)


def _extent(
    extent: Mapping[str, float], footprint: ImageFootprint
) -> tuple[dict[str, list[float]], tuple[tuple[MetadataIssue, str], ...]]:
    """Extent that the file states, as a property, and a finding when it states none or a wrong one."""
    west, south, east, north = stated = [extent.get(name, math.nan) for name in EXTENT]
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        message = f"the file states no extent: {west}, {south}, {east}, {north}"
        return {}, ((MetadataIssue.MISSING_GEOLOCATION, message),)
    bounds = bounding_box(footprint.outline)
    # The difference of two longitudes, folded into [-180, 180].
    off = max(abs((one - other + 180) % 360 - 180) for one, other in zip(stated, bounds, strict=True))
    found = {"goes:extent": [round(edge, _EXTENT_DECIMALS) for edge in stated]}
    if off > _EXTENT_TOLERANCE:
        return found, ((MetadataIssue.INVALID_GEOMETRY, f"the file states the extent {stated}, its grid has {bounds}"),)
    return found, ()


def _product_properties(request: ReadRequest, native: Mapping[str, Any]) -> dict[str, Any]:
    groups, attributes = request.groups, native["attrs"]
    platform = attributes["platform_ID"]
    errors = native.get(L0_ERRORS, math.nan)
    properties = {
        "platform": f"goes-{platform.removeprefix('G')}",
        "instruments": ["abi"],
        "gsd": _ground_sample_distance(attributes.get("spatial_resolution", "")),
        "processing:level": attributes.get("processing_level", "").rpartition(" ")[2] or None,
        "sat:orbit_state": "geostationary",
        "sat:platform_international_designator": _INTERNATIONAL_DESIGNATORS.get(platform),
        "bands": _band_objects(native["band_id"], native.get("band_wavelength", [])),
        "goes:product": groups["product"],
        "goes:image-type": _SCENES[groups["scene"]][1],
        "goes:orbital-slot": attributes.get("orbital_slot"),
        "goes:mode": int(groups["mode"]),
        "goes:timeline": attributes.get("timeline_id"),
        "goes:mesoscale-region": int(groups["name"][-1]) if groups["scene"] == "M" else None,
        "goes:created": attributes.get("date_created"),
        "goes:production-site": attributes.get("production_site"),
        "goes:uuid": attributes.get("id"),
        # A fraction in [0, 1], whatever its name says (valid_range); -999 fills.
        "goes:percent-uncorrectable-l0-errors": errors if 0 <= errors <= 1 else None,
    }
    return {name: value for name, value in properties.items() if value is not None}


def _ground_sample_distance(text: str) -> float | None:
    """Metres at nadir of a text such as `0.5km at nadir`."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?) ?km at nadir", text, re.ASCII)
    return float(found[1]) * 1000 if found else None


def _band_objects(numbers: list[float], wavelengths: list[float]) -> list[dict[str, Any]]:
    """STAC bands with their central wavelengths in micrometres."""
    if len(wavelengths) != len(numbers) or not all(0 < wavelength < 20 for wavelength in wavelengths):
        raise ReadError(MetadataIssue.INCOMPLETE_PRODUCT_METADATA, f"wavelengths of bands {numbers} are {wavelengths}")
    bands = []
    for number, wavelength in zip(map(int, numbers), wavelengths, strict=True):
        band: dict[str, Any] = {"name": f"C{number:02}", "eo:center_wavelength": round(wavelength, 4)}
        if number in _COMMON_NAMES:
            band["eo:common_name"] = _COMMON_NAMES[number]
        bands.append(band)
    return bands


def _projection_properties(
    grid: FixedGrid, image: ImageBounds, footprint: ImageFootprint, dims: Mapping[str, int]
) -> dict[str, Any]:
    """Fields of the projection extension 2.0.0; the transform is in metres (radians times perspective height)."""
    height, columns, rows = grid.perspective_point_height, dims["x"], dims["y"]
    properties: dict[str, Any] = {
        "proj:code": None,
        "proj:wkt2": geostationary.wkt2(grid),
        "proj:shape": [rows, columns],
        "proj:transform": [
            round(number * height, 6)
            for number in (
                (image.east - image.west) / columns, 0.0, image.west,
                0.0, (image.south - image.north) / rows, image.north,
            )
        ],
    }  # fmt: skip
    if footprint.centroid is not None:
        longitude, latitude = (round(degrees, 6) for degrees in footprint.centroid)
        properties["proj:centroid"] = {"lat": latitude, "lon": longitude}
    return properties
