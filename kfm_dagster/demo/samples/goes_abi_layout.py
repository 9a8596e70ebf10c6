"""Layout of a sample ABI file: NOAA's dimensions, variables, attributes, scene geometry.

Does not belong here: times and keys (`goes_abi.py`), parts that instruments share (`goes_template.py`).

Names, units and types: GOES-R Product Definition and Users' Guide (PUG), volume 3 section 5.1.3 and volume 5 section
5.1.3. Scan angles are in radians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import h5py
import numpy as np

from kfm_dagster.demo.samples.goes_template import global_attributes, satellite_of
from kfm_dagster.demo.samples.netcdf4 import Attributes, annotate, attach, axis, dimension, f4, variable
from kfm_dagster.demo.samples.patterns import waves


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A scene: scan angles of its edges, extent in degrees, and timing."""

    scene_id: str
    west: float
    east: float
    south: float
    north: float
    extent: tuple[float, float, float, float]
    """West, south, east, north; longitudes from the sub-satellite point."""
    center: tuple[float, float]
    """Longitude and latitude of the middle of the image."""
    cadence_minutes: int
    first_second: float
    seconds: float


_FULL_DISK = Scene(
    scene_id="Full Disk", west=-0.151872, east=0.151872, south=-0.151872, north=0.151872,
    extent=(-81.2995, -81.3282, 81.2995, 81.3282), center=(0.0, 0.0), cadence_minutes=10,
    first_second=20.5, seconds=570.8,
)  # fmt: skip
_CONUS = Scene(
    scene_id="CONUS", west=-0.10136, east=0.03864, south=0.04424, north=0.12824,
    extent=(-77.10928, 14.57134, 22.05312, 56.76145), center=(-12.096954, 30.083002), cadence_minutes=5,
    first_second=77.6, seconds=157.3,
)  # fmt: skip
_PACUS = Scene(
    scene_id="CONUS", west=-0.07, east=0.07, south=0.04424, north=0.12824,
    extent=(-47.37642, 14.57134, 47.37643, 53.50006), center=(0.0, 29.966999), cadence_minutes=5,
    first_second=77.6, seconds=157.3,
)  # fmt: skip
_MESOSCALE_1 = Scene(
    scene_id="Mesoscale", west=-0.014, east=0.014, south=0.09184, north=0.11984,
    extent=(-6.852402, 32.273769, 6.852402, 45.725967), center=(0.0, 38.492256), cadence_minutes=1,
    first_second=26.2, seconds=5.8,
)  # fmt: skip
_MESOSCALE_2 = Scene(
    scene_id="Mesoscale", west=0.02464, east=0.05264, south=0.0924, north=0.1204,
    extent=(9.76566, 32.591496, 27.7451, 46.893936), center=(17.05928, 39.052837), cadence_minutes=1,
    first_second=56.2, seconds=5.8,
)  # fmt: skip
SCENES: Mapping[str, Scene] = {"F": _FULL_DISK, "C": _CONUS, "M1": _MESOSCALE_1, "M2": _MESOSCALE_2}
"""Scenes by their letters in a product name, as the eastern satellites see them."""
_WESTERN_SCENES = {**SCENES, "C": _PACUS}
_WAVELENGTHS = (
    0.47, 0.64, 0.87, 1.38, 1.61, 2.25, 3.89, 6.17, 6.93, 7.34, 8.44, 9.61, 10.33, 11.19, 12.27, 13.27,
)  # fmt: skip
"""Central wavelengths of bands 1 to 16 in micrometres, as the files state them."""
_STEPS = {1: 28e-6, 2: 14e-6, 3: 28e-6, 5: 28e-6}
"""Pixel size, in radians, of the bands finer than 2 km (56 microradians): 1 km and 0.5 km."""
_RESOLUTIONS = {14e-6: "0.5km at nadir", 28e-6: "1km at nadir", 56e-6: "2km at nadir"}
_LONGEST_PLAIN_AXIS = 10_000
"""Longer axes are compressed, which keeps a full disk at 0.5 km below 100 KB."""
_CHUNK = 250
_DISC = 0.3036
"""Diameter of the Earth's disc as scan angle, in radians."""
_DRAWN_BAND = 13
"""Band of the drawn image among the 16 of MCMIP."""
_DRAWN_FROM, _DRAWN_STEP = 1600, 12
"""Stored value of the lowest level of a drawn image, and the difference between two levels."""
_DRAWN_UNITS = {"CMI": ("K", 0.06145332, 89.62), "Rad": ("W m-2 sr-1 um-1", 0.15859237, -20.28991)}
"""Unit, scale and offset of a drawn image, from band 13's temperatures and band 2's radiances."""
_DIMENSIONS = {"number_of_time_bounds": 2, "band": 1, "number_of_image_bounds": 2}
"""Dimensions without a variable."""


def write(
    file: h5py.File, *, kind: str, region: str, satellite: int, band: int | None, texts: Attributes, drawn: bool = False
) -> None:
    """Fill a new file of a `kind` (Rad, CMIP or MCMIP) and a `region` (key of SCENES).

    `texts` are the global attributes that differ between files. If `drawn`, an image has values. Raises ValueError for
    a satellite without ABI.
    """
    platform = satellite_of(satellite)
    scene = (_WESTERN_SCENES if platform.orbital_slot == "GOES-West" else SCENES)[region]
    step = 56e-6 if band is None else _STEPS.get(band, 56e-6)
    annotate(file, {**_global_attributes(kind, scene, satellite, step), **texts})
    for number, (name, length) in enumerate(_DIMENSIONS.items(), start=2):
        dimension(file, name, length, number)
    _axes(file, scene, step)
    _pixels(file, kind, band)
    if drawn:
        _draw(file, {"Rad": "Rad", "CMIP": "CMI", "MCMIP": f"CMI_C{_DRAWN_BAND}"}[kind], scene, step)
    _navigation(file, scene, platform.longitude)
    _quantities(file, band)


def _global_attributes(kind: str, scene: Scene, satellite: int, step: float) -> Attributes:
    radiance = kind == "Rad"
    level = "L1b" if radiance else "L2"
    return global_attributes(
        satellite,
        spatial_resolution=_RESOLUTIONS[step],
        instrument_type="GOES R Series Advanced Baseline Imager",
        scene_id=scene.scene_id,
        title=f"ABI {level} {'Radiances' if radiance else 'Cloud and Moisture Imagery'}",
        summary="Sample with the headers of a real product and no pixels.",
        keywords=f"SPECTRAL/ENGINEERING > {'VISIBLE' if radiance else 'INFRARED'} WAVELENGTHS",
        iso_series_metadata_id="a70be540-c38b-11e0-962b-0800200c9a66",
        processing_level=f"National Aeronautics and Space Administration (NASA) {level}",
        cdm_data_type="Image",
        timeline_id="ABI Mode 6",
    )


def _axes(file: h5py.File, scene: Scene, step: float) -> None:
    """Write y and x: scan angles of pixel centres, packed as 16-bit integers."""
    for number, (name, first, last) in enumerate((("y", scene.north, scene.south), ("x", scene.west, scene.east))):
        length = round(abs(last - first) / step)
        signed = step if last > first else -step
        long = length > _LONGEST_PLAIN_AXIS
        attributes = {
            "scale_factor": f4(signed),
            "add_offset": f4(first + signed / 2),
            "units": "rad",
            "axis": name.upper(),
            "long_name": f"GOES fixed grid projection {name}-coordinate",
            "standard_name": f"projection_{name}_coordinate",
        }
        angles = np.arange(length, dtype="<i2")
        axis(file, name, angles, number, attributes, compression="gzip" if long else None, shuffle=long)
        sides = "north/south" if name == "y" else "west/east"
        variable(file, f"{name}_image", np.float32((first + last) / 2), units="rad", axis=name.upper())
        variable(
            file, f"{name}_image_bounds", np.array([first, last], "<f4"), dimensions=["number_of_image_bounds"],
            long_name=f"GOES-R fixed grid projection {name}-coordinate {sides} extent of image", units="rad",
        )  # fmt: skip


def _pixels(file: h5py.File, kind: str, band: int | None) -> None:
    """Declare the images; no chunk is written, so every pixel is the fill value."""
    names = [("Rad" if kind == "Rad" else "CMI", "DQF")]
    if band is None:
        names = [(f"CMI_C{number:02}", f"DQF_C{number:02}") for number in range(1, 17)]
    shape = (file["y"].shape[0], file["x"].shape[0])
    units = "W m-2 sr-1 um-1" if kind == "Rad" else "1"
    for image, flags in names:
        for name, dtype, unit in ((image, "<i2", units), (flags, "i1", "1")):
            pixels = file.create_dataset(
                name, shape=shape, dtype=dtype, chunks=(_CHUNK, _CHUNK), compression="gzip", compression_opts=1,
                fillvalue=-1,
            )  # fmt: skip
            attach(file, pixels, ("y", "x"))
            annotate(
                pixels,
                {
                    "_FillValue": np.array([-1], dtype),
                    "_Netcdf4Dimid": np.int32(0),
                    "_Unsigned": "true",
                    "units": unit,
                    "coordinates": "band_id band_wavelength t y x",
                    "grid_mapping": "goes_imager_projection",
                    "cell_methods": "t: point area: point",
                },
            )


def _draw(file: h5py.File, name: str, scene: Scene, step: float) -> None:
    """Give an image values within the Earth's disc, a row of chunks at a time."""
    pixels = file[name]
    units, scale, offset = _DRAWN_UNITS[name.partition("_")[0]]
    annotate(pixels, {"units": units, "scale_factor": f4(scale), "add_offset": f4(offset)})
    annotate(file, {"summary": "Sample with the headers of a real product and a synthetic pattern as its image."})
    rows, columns = pixels.shape
    north = scene.north - (np.arange(rows) + 0.5) * step
    east = scene.west + (np.arange(columns) + 0.5) * step
    for first in range(0, rows, _CHUNK):
        part = north[first : first + _CHUNK]
        # Positions relative to the full disc, so that all scenes of a satellite show the same pattern.
        levels = waves(0.5 + part / _DISC, 0.5 + east / _DISC).astype("<i2")
        is_earth = part[:, None] ** 2 + east[None, :] ** 2 < (_DISC / 2) ** 2
        pixels[first : first + _CHUNK] = np.where(is_earth, _DRAWN_FROM + _DRAWN_STEP * levels, np.int16(-1))


def _navigation(file: h5py.File, scene: Scene, longitude: float) -> None:
    variable(
        file, "goes_imager_projection", np.int32(-2147483647),
        long_name="GOES-R ABI fixed grid projection",
        grid_mapping_name="geostationary",
        perspective_point_height=np.array([35786023.0]),
        semi_major_axis=np.array([6378137.0]),
        semi_minor_axis=np.array([6356752.31414]),
        inverse_flattening=np.array([298.2572221]),
        latitude_of_projection_origin=np.array([0.0]),
        longitude_of_projection_origin=np.array([longitude]),
        sweep_angle_axis="x",
    )  # fmt: skip
    west, south, east, north = scene.extent
    west, east = (_wrapped(longitude + offset) for offset in (west, east))
    variable(
        file, "geospatial_lat_lon_extent", np.float32(-999),
        long_name="geospatial latitude and longitude references",
        geospatial_westbound_longitude=f4(west),
        geospatial_northbound_latitude=f4(north),
        geospatial_eastbound_longitude=f4(east),
        geospatial_southbound_latitude=f4(south),
        geospatial_lat_center=f4(scene.center[1]),
        geospatial_lon_center=f4(_wrapped(longitude + scene.center[0])),
        geospatial_lat_nadir=f4(0),
        geospatial_lon_nadir=f4(longitude),
        geospatial_lat_units="degrees_north",
        geospatial_lon_units="degrees_east",
    )  # fmt: skip
    # 0.2 degrees west of the grid's origin, where GOES-16 and GOES-17 were according to their files.
    for name, value, units in (
        ("subpoint_lat", 0.0, "degrees_north"),
        ("subpoint_lon", longitude - 0.2, "degrees_east"),
        ("height", 35786.02, "km"),
    ):
        variable(file, f"nominal_satellite_{name}", np.float32(value), _FillValue=f4(-999), units=units)


def _quantities(file: h5py.File, band: int | None) -> None:
    """Write time, bands, calibration and quality."""
    since = "seconds since 2000-01-01 12:00:00"
    variable(
        file, "t", np.float64(0), long_name="J2000 epoch mid-point between the start and end image scan in seconds",
        standard_name="time", units=since, axis="T", bounds="time_bounds",
    )  # fmt: skip
    variable(
        file, "time_bounds", np.zeros(2), dimensions=["number_of_time_bounds"],
        long_name="Scan start and end times in seconds since epoch (2000-01-01 12:00:00)",
    )  # fmt: skip
    suffixes = {band: ""} if band is not None else {number: f"_C{number:02}" for number in range(1, 17)}
    for number, suffix in suffixes.items():
        variable(
            file, f"band_id{suffix}", np.array([number], "i1"), dimensions=["band"], long_name="ABI band number",
            standard_name="sensor_band_identifier", units="1",
        )  # fmt: skip
        variable(
            file, f"band_wavelength{suffix}", np.array([_WAVELENGTHS[number - 1]], "<f4"), dimensions=["band"],
            long_name="ABI band central wavelength", standard_name="sensor_band_central_radiation_wavelength",
            units="um",
        )  # fmt: skip
    for name, units in (
        ("esun", "W m-2 um-1"), ("kappa0", "(W m-2 um-1)-1"), ("planck_fk1", "W m-1"), ("planck_fk2", "K"),
        ("planck_bc1", "K"), ("planck_bc2", "1"), ("earth_sun_distance_anomaly_in_AU", "ua"),
    ):  # fmt: skip
        variable(file, name, np.float32(-999), _FillValue=f4(-999), units=units)
    for name in ("valid_pixel_count", "missing_pixel_count", "saturated_pixel_count", "undersaturated_pixel_count"):
        variable(file, name, np.int32(-1), _FillValue=np.array([-1], "<i4"), units="count")
    variable(
        file, "percent_uncorrectable_L0_errors", np.float32(0), _FillValue=f4(-999),
        long_name="percent data lost due to uncorrectable L0 errors", valid_range=np.array([0, 1], "<f4"),
        units="percent",
    )  # fmt: skip


def _wrapped(longitude: float) -> float:
    return (longitude + 180) % 360 - 180
