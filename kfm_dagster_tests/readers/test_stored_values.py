"""Fields of a band from a NetCDF variable's attributes: types, fill values, units and packing."""

from __future__ import annotations

import math

import pytest

from kfm_dagster.readers.stored_values import PROPERTIES, band_fields


@pytest.mark.clause("OPR-21")
def test_a_band_says_what_its_values_are() -> None:
    for data_type, attributes, expected in (
        # GOES-R: 16-bit integers that are unsigned, as netCDF4 and GDAL show them.
        ("int16", {"_Unsigned": "true", "_FillValue": -1.0}, {"data_type": "uint16", "nodata": 65535}),
        ("int16", {"_Unsigned": "true", "_FillValue": 1023.0}, {"data_type": "uint16", "nodata": 1023}),
        ("int16", {"_Unsigned": "false", "_FillValue": -1.0}, {"data_type": "int16", "nodata": -1}),
        ("int8", {"_Unsigned": "true", "_FillValue": -1.0}, {"data_type": "uint8", "nodata": 255}),
        # An attribute that says what the type does.
        ("uint8", {"_Unsigned": "true", "_FillValue": 255.0}, {"data_type": "uint8", "nodata": 255}),
        ("float32", {"_Unsigned": "true", "_FillValue": -9.0}, {"data_type": "float32", "nodata": -9.0}),
        ("float64", {"_FillValue": math.nan}, {"data_type": "float64", "nodata": "nan"}),
        ("float64", {"_FillValue": math.inf}, {"data_type": "float64", "nodata": "inf"}),
        ("float64", {"_FillValue": -math.inf}, {"data_type": "float64", "nodata": "-inf"}),
        # CF 2.5.1: the fill value goes before a missing value.
        ("int16", {"missing_value": -999}, {"data_type": "int16", "nodata": -999}),
        ("int16", {"missing_value": -999, "_FillValue": 0}, {"data_type": "int16", "nodata": 0}),
        ("int16", {"missing_value": [1, 2]}, {"data_type": "int16"}),
        # CF 8.1; what is no number packs nothing.
        (
            "int16",
            {"scale_factor": 0.5, "add_offset": -2.0},
            {"data_type": "int16", "raster:scale": 0.5, "raster:offset": -2.0},
        ),
        ("int16", {"scale_factor": math.nan, "add_offset": math.inf}, {"data_type": "int16"}),
        ("int16", {"scale_factor": "0.5"}, {"data_type": "int16"}),
        ("float32", {"units": " W m-2 sr-1 um-1 "}, {"data_type": "float32", "unit": "W m-2 sr-1 um-1"}),
        ("float32", {"units": "1"}, {"data_type": "float32", "unit": "1"}),
        ("float32", {"units": "u" * 500}, {"data_type": "float32", "unit": "u" * 500}),
        ("float32", {"units": "u" * 501}, {"data_type": "float32"}),
        ("float32", {"units": "K\n"}, {"data_type": "float32", "unit": "K"}),
        ("float32", {"units": "K\x00K"}, {"data_type": "float32"}),
        ("float32", {"units": 1}, {"data_type": "float32"}),
        (None, {"_FillValue": 0, "units": "K"}, {"unit": "K"}),
    ):
        found = band_fields(data_type, attributes)
        assert found == expected
        assert [type(value) for value in found.values()] == [type(expected[name]) for name in found]
        assert found.keys() <= PROPERTIES
