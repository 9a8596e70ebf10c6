"""Items of gridded datasets say where each cell lies, and what its values are, as GDAL finds it in the real objects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster_tests.catalog.real_objects import items_of_real_objects

GRIDDED = {"goes-abi", "gfs", "hrrr", "mrms", "ocean"}
"""Datasets that have grids, and real objects."""
CONTRACTS = ContractRegistry.load()


@cache
def items(folder: Path) -> dict[str, dict[str, Any]]:
    """The Item of every real object that has a grid, by its path below the folder of buckets."""
    every = items_of_real_objects(CONTRACTS, folder)
    found = {path: item for path, item in every if item["properties"]["kfm:dataset"] in GRIDDED}
    assert {item["collection"] for item in found.values()} == GRIDDED
    return found


def images(file: Path, item: dict[str, Any]) -> Iterator[tuple[dict[str, Any] | None, Any]]:
    """Each band of an Item, None where it names none, with GDAL's dataset of it."""
    bands = item["assets"]["data"].get("bands")
    if not bands or file.suffix == ".gz":
        path = f"/vsigzip/{file}" if file.suffix == ".gz" else str(file)
        with rasterio.open(path) as dataset:
            yield (bands or [None])[0], dataset
        return
    variables = [name for name in item["properties"]["cube:variables"] if not name.startswith("DQF")]
    assert len(variables) == len(bands)
    for band, name in zip(bands, variables, strict=True):
        with rasterio.open(f'NETCDF:"{file}":{name}') as dataset:
            yield band, dataset


@pytest.mark.clause("OPR-16", "OPR-21")
def test_the_grid_of_an_item_is_gdal_s(shared_data: Path) -> None:
    folder = shared_data / "objects"
    for path, item in items(folder).items():
        properties = item["properties"]
        width, _, west, _, height, north = properties["proj:transform"]
        rows, columns = properties["proj:shape"]
        for _, dataset in images(folder / path, item):
            assert dataset.shape == (rows, columns), path
            found = dataset.transform
            # GDAL computes its own from the axes; a hundredth of a cell is less than any resampling shows.
            assert found[:6] == pytest.approx((width, 0, west, 0, height, north), abs=abs(width) / 100), path
        assert properties["proj:bbox"] == pytest.approx(
            [west, north + rows * height, west + columns * width, north], abs=abs(width) / 1000
        )
        assert "proj:code" in properties
        crs = pyproj.CRS.from_wkt(properties["proj:wkt2"])
        assert crs.is_geographic == (abs(width) < 1), path


@pytest.mark.clause("OPR-21")
def test_dimensions_run_from_centre_to_centre(shared_data: Path) -> None:
    for path, item in items(shared_data / "objects").items():
        properties = item["properties"]
        west, south, east, north = properties["proj:bbox"]
        axes = {one["axis"]: one for one in properties["cube:dimensions"].values() if one["type"] == "spatial"}
        for axis, low, high, count in (
            ("x", west, east, properties["proj:shape"][1]),
            ("y", south, north, properties["proj:shape"][0]),
        ):
            half = (high - low) / count / 2
            assert axes[axis]["extent"] == pytest.approx([low + half, high - half], abs=half / 100), path
            assert abs(axes[axis]["step"]) == pytest.approx(2 * half), path
            # Degrees of EPSG:4326 are what an axis without a reference system has.
            assert axes[axis].get("reference_system", "EPSG:4326") in {
                properties["proj:wkt2"], properties["proj:code"]
            }  # fmt: skip
        for name, variable in properties.get("cube:variables", {}).items():
            assert set(variable["dimensions"]) <= properties["cube:dimensions"].keys(), name


@pytest.mark.clause("OPR-21")
def test_the_values_of_a_band_are_gdal_s(shared_data: Path) -> None:
    folder, compared = shared_data / "objects", 0
    for path, item in items(folder).items():
        for band, dataset in images(folder / path, item):
            if band is None:
                continue
            if "classification:classes" in band:
                assert_special_values(band, dataset, path)
                compared += 1
                continue
            assert band["data_type"] == dataset.dtypes[0], (path, band)
            assert band.get("nodata") == dataset.nodatavals[0], (path, band)
            assert band.get("unit") == dataset.units[0], (path, band)
            assert (band.get("raster:scale", 1.0), band.get("raster:offset", 0.0)) == (
                dataset.scales[0], dataset.offsets[0]
            ), (path, band)  # fmt: skip
            compared += 1
    assert compared >= 25


def assert_special_values(band: dict[str, Any], dataset: Any, path: str) -> None:
    """Hold a band of MRMS against GDAL's table (two products have a wrong column there) and the lowest pixels."""
    if dataset.tags(1)["GRIB_UNIT"] != "[-99]":
        assert dataset.tags(1)["GRIB_UNIT"] == f"[{band['unit']}]", path
    assert dataset.tags(1)["GRIB_ELEMENT"].partition(",")[0] == band["name"]
    lowest = {value for value in np.unique(dataset.read(1)) if value < -50}
    assert lowest <= {one["value"] for one in band["classification:classes"]}, path
