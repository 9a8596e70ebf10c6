"""Sample OISST analyses: small NetCDF-4 files with true keys and headers.

Names, types, packing and axes are those of NCEI's Daily Optimum Interpolation Sea Surface Temperature, version 2.1. No
chunk of a field is written, so that every cell is the fill value and a file has 27 KB.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

import h5py
import numpy as np

from kfm_dagster.demo.samples.netcdf4 import Attributes, annotate, attach, axis, f4

BUCKET = "noaa-cdr-sea-surface-temp-optimum-interpolation-pds"
FIRST_DAY = date(1981, 9, 1)
"""First day of the record."""
ROWS, COLUMNS, STEP = 720, 1440, 0.25

_EPOCH = datetime(1978, 1, 1, 12, tzinfo=UTC)
_DIMENSIONS = ("time", "zlev", "lat", "lon")
_FIELDS = (
    # name, long name, units, valid range in hundredths
    ("sst", "Daily sea surface temperature", "Celsius", (-300, 4500)),
    ("anom", "Daily sea surface temperature anomalies", "Celsius", (-1200, 1200)),
    ("err", "Estimated error standard deviation of analysed_sst", "Celsius", (0, 1000)),
    ("ice", "Sea ice concentration", "%", (0, 100)),
)
_FINAL_AFTER = timedelta(days=15, hours=9, minutes=14)
_PRELIMINARY_AFTER = timedelta(days=1, hours=9, minutes=14)
"""Time from the day's start to the file's creation: 1 day of latency, and 2 weeks more for the final file."""


def make_oisst(day: date, *, preliminary: bool = False) -> tuple[str, bytes]:
    """Make the analysis of a day: its key and its content, a pure function of the arguments.

    Raises ValueError for a day before the record.
    """
    if day < FIRST_DAY:
        raise ValueError(f"OISST begins on {FIRST_DAY}, no analysis of {day} exists")
    name = f"oisst-avhrr-v02r01.{day:%Y%m%d}{'_preliminary' if preliminary else ''}.nc"
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="earliest") as file:
        annotate(file, _global_attributes(day, name, preliminary=preliminary))
        _axes(file, day)
        _fields(file)
    return f"data/v2.1/avhrr/{day:%Y%m}/{name}", buffer.getvalue()


def oisst_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of the first `count` objects of a UTC day.

    A day has two objects, the preliminary and the final. Raises ValueError for a greater `count`.
    """
    if not 0 <= count <= 2:
        raise ValueError(f"a day has 2 objects, {count} requested")
    for preliminary in (True, False)[:count]:
        key, content = make_oisst(day, preliminary=preliminary)
        yield BUCKET, key, content


def _global_attributes(day: date, name: str, *, preliminary: bool) -> Attributes:
    created = datetime.combine(day, time(), UTC) + (_PRELIMINARY_AFTER if preliminary else _FINAL_AFTER)
    return {
        "title": "NOAA/NCEI 1/4 Degree Daily Optimum Interpolation Sea Surface Temperature (OISST) Analysis, "
        f"Version 2.1 - {'Interim' if preliminary else 'Final'}",
        "source": "ICOADS, NCEP_GTS, GSFC_ICE, NCEP_ICE, Pathfinder_AVHRR, Navy_AVHRR, NOAA_ACSP",
        "id": name,
        "naming_authority": "gov.noaa.ncei",
        "summary": "Sample with the header of a real analysis and no temperature.",
        "cdm_data_type": "Grid",
        "date_modified": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "date_created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "product_version": "Version v02r01",
        "institution": "NOAA/National Centers for Environmental Information",
        "creator_url": "https://www.ncei.noaa.gov/",
        "creator_email": "oisst-help@noaa.gov",
        "keywords": "Earth Science > Oceans > Ocean Temperature > Sea Surface Temperature",
        "platform": "Ships, buoys, Argo floats, MetOp-A, MetOp-B",
        "instrument": "Earth Remote Sensing Instruments > Passive Remote Sensing > Spectrometers/Radiometers > "
        "Imaging Spectrometers/Radiometers > AVHRR > Advanced Very High Resolution Radiometer",
        "standard_name_vocabulary": "CF Standard Name Table (v40, 25 January 2017)",
        "geospatial_lat_min": f4(-90),
        "geospatial_lat_max": f4(90),
        "geospatial_lon_min": f4(0),
        "geospatial_lon_max": f4(360),
        "geospatial_lat_units": "degrees_north",
        "geospatial_lat_resolution": f4(STEP),
        "geospatial_lon_units": "degrees_east",
        "geospatial_lon_resolution": f4(STEP),
        "time_coverage_start": f"{day:%Y-%m-%d}T00:00:00Z",
        "time_coverage_end": f"{day:%Y-%m-%d}T23:59:59Z",
        "metadata_link": "https://doi.org/10.25921/RE9P-PT57",
        "ncei_template_version": "NCEI_NetCDF_Grid_Template_v2.0",
        "sensor": "Thermometer, AVHRR",
        "Conventions": "CF-1.6, ACDD-1.3",
        "processing_level": "NOAA Level 4",
    }


def _axes(file: h5py.File, day: date) -> None:
    noon = datetime.combine(day, time(12), UTC)
    latitudes = -90 + STEP * (np.arange(ROWS) + 0.5)
    longitudes = STEP * (np.arange(COLUMNS) + 0.5)
    grids = [f"Uniform grid from {values[0]} to {values[-1]} by {STEP}" for values in (latitudes, longitudes)]
    attributes = {"long_name": "Center time of the day", "units": f"days since {_EPOCH:%Y-%m-%d %H:%M:%S}"}
    axis(file, "time", f4((noon - _EPOCH).days), 0, attributes, maxshape=(None,), chunks=(1,), compression="gzip")
    for number, (name, values, long_name, units) in enumerate(
        (
            ("zlev", [0.0], "Sea surface height", {"units": "meters", "positive": "down", "actual_range": "0, 0"}),
            ("lat", latitudes, "Latitude", {"units": "degrees_north", "grids": grids[0]}),
            ("lon", longitudes, "Longitude", {"units": "degrees_east", "grids": grids[1]}),
        ),
        start=1,
    ):
        axis(file, name, np.asarray(values, "<f4"), number, {"long_name": long_name, **units})


def _fields(file: h5py.File) -> None:
    """Declare the fields, packed as 16-bit integers."""
    shape = (1, 1, ROWS, COLUMNS)
    for name, long_name, units, valid in _FIELDS:
        field = file.create_dataset(
            name, shape=shape, maxshape=(None, *shape[1:]), dtype="<i2", chunks=shape, compression="gzip",
            compression_opts=4, shuffle=True, fillvalue=-999,
        )  # fmt: skip
        attach(file, field, _DIMENSIONS)
        low, high = (np.array([value], "<i2") for value in valid)
        annotate(
            field,
            {
                "long_name": long_name,
                "units": units,
                "_FillValue": np.array([-999], "<i2"),
                "add_offset": f4(0),
                "scale_factor": f4(0.01),
                "valid_min": low,
                "valid_max": high,
            },
        )
