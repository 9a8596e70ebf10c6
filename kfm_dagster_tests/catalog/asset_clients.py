"""Compare Items with clients that open their assets: the code blocks of `docs/stac.md`, and `kfm.open`.

Belongs here: comparing an Item with its format's clients. Does not belong here: the server (`test_opening.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.request import urlopen

import numpy as np
import pyproj
import pystac
import pytest
import rasterio
from numpy import ma
from rasterio.crs import CRS

import kfm_dagster as kfm
from kfm_dagster.errors import ConfigurationError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "stac.md").read_text(encoding="utf-8")


def block(word: str) -> str:
    """Return the page's code block that contains a word."""
    (code_block,) = [code for code in re.findall(r"(?s)```python\n(.*?)```", PAGE) if word in code]
    return code_block


def run(word: str, item: pystac.Item, **variables: Any) -> dict[str, Any]:
    """Run the block that contains a word, after the function blocks; return its variables."""
    scope = {"item": item, "asset": item.assets["data"], **variables}
    for code in (block("def opened"), block("def of_field"), block(word)):
        exec(code, scope)
    return scope


def blocks_run() -> set[str]:
    """Return the code blocks that this module and `test_opening.py` run."""
    modules = (Path(__file__), Path(__file__).with_name("test_opening.py"))
    calls = (re.findall(r"""\brun\(\s*["']([^"']+)["']""", path.read_text(encoding="utf-8")) for path in modules)
    return {block(word) for word in ("def opened", "def of_field", *chain.from_iterable(calls))}


def opened(item: pystac.Item, **more: Any) -> Any:
    return run("def opened", item)["opened"](item.assets["data"], **more)


def grib(item: pystac.Item) -> None:
    properties = item.properties
    bands = run("rasterio.open(address(asset))", item)["bands"]
    assert [bands.count, bands.height, bands.width] == [properties["grib:message-count"], *properties["proj:shape"]]
    # The Item of a Gaussian grid has no transform. GDAL assumes evenly spaced rows, and does not locate NCEP's 32769.
    located = "proj:transform" in properties and properties["grib:grid-template"] != 32769
    assert list(bands.transform)[:6] == (pytest.approx(properties["proj:transform"], abs=1e-3) if located else ANY)
    band_data = opened(item)["band_data"]
    assert band_data.shape == (properties["grib:message-count"], *properties["proj:shape"])
    corner = bands.read(1, window=((0, 9), (0, 9)), masked=True).filled(float("nan"))
    assert band_data[0, :9, :9].values == pytest.approx(corner, nan_ok=True)
    layers = item.assets["data"].extra_fields.get("grib:layers", {})
    if layers or bands.count == 1:
        first = min(layers, key=lambda name: layers[name]["start_byte"], default=None)
        if located:
            one_field(item, first, corner)
        opened_alone(item, first)


def one_field(item: pystac.Item, name: str | None, corner: Any) -> None:
    """Read the first field by each client that reads single fields; stackstac warps it."""
    grid = run("rioxarray.open_rasterio", item, NAME=name)["grid"]
    assert grid.shape == (1, *item.properties["proj:shape"])
    assert grid[0, :9, :9].values == pytest.approx(corner, nan_ok=True)
    scene = run("odc.stac.load([of_field", item, NAME=name)["scene"]["data"]
    assert scene.shape == grid.shape
    # MRMS declares its nodata; for models GDAL knows it.
    assert "nodata" in scene.attrs or "bands" not in item.assets["data"].extra_fields
    assert (float(scene.min()), float(scene.max())) == pytest.approx((float(grid.min()), float(grid.max())), rel=1e-6)
    west, _, east, _ = item.bbox or ()
    # The middle of the grid, which is not the middle of the Item's box if the grid is around a pole.
    west, south, east, north = item.properties["proj:bbox"]
    crs = pyproj.CRS.from_wkt(item.properties["proj:wkt2"])
    to_degrees = pyproj.Transformer.from_crs(crs, crs.source_crs or crs, always_xy=True)
    x, y = map(round, to_degrees.transform((west + east) / 2, (south + north) / 2))
    stack = run("stackstac.stack", item, NAME=name, BOUNDS=(x - 5, y - 2, x + 5, y + 2))["stack"].compute()
    assert stack.shape == (1, 1, 40, 100)
    assert grid.min() <= stack.min() <= stack.max() <= grid.max()


def opened_alone(item: pystac.Item, name: str | None) -> None:
    """Check that `kfm.open` reads a field as stored, with the Item's grid, time and unit."""
    field = kfm.open(item, field=name)
    with rasterio.Env(GRIB_NORMALIZE_UNITS="NO"):
        stored = run("rasterio.open(address(asset))", item)["bands"].read(1, masked=True).filled(float("nan"))
    if item.properties["grib:grid-template"] == 32769:
        stored = stored[::-1]
        assert field.rio.crs.to_proj4() == CRS.from_wkt(item.properties["proj:wkt2"]).to_proj4()
    np.testing.assert_allclose(field.values, stored, rtol=1e-6)  # approx takes minutes for a field of MRMS
    if transform := item.properties.get("proj:transform"):
        centre = [pytest.approx(transform[at] + transform[step] / 2, abs=1e-3) for at, step in ((2, 0), (5, 4))]
        assert [field.x[0], field.y[0]] == centre
    else:
        gaussian_rows(item, field)
    assert str(field.valid_time.values)[:19] == f"{item.datetime:%Y-%m-%dT%H:%M:%S}"
    if described := item.properties.get("cube:variables", {}).get(field.name, {}):
        assert field.attrs["units"] == described["unit"]


def gaussian_rows(item: pystac.Item, field: Any) -> None:
    """Check that each row has its latitude by ecCodes, from north to south."""
    import eccodes

    with urlopen(item.assets["data"].extra_fields["alternate"]["https"]["href"]) as answer:
        handle = eccodes.codes_new_from_message(answer.read())
    rows = eccodes.codes_get_array(handle, "distinctLatitudes")
    eccodes.codes_release(handle)
    assert field.y.values == pytest.approx(rows, abs=1e-6)
    dimension = item.properties["cube:dimensions"]["y"]
    assert (dimension["extent"], dimension["step"]) == (
        [pytest.approx(rows[-1], abs=1e-3), pytest.approx(rows[0], abs=1e-3)],
        None,
    )


def goes_abi(item: pystac.Item) -> None:
    properties = item.properties
    dataset = opened(item)
    assert str(dataset.attrs["platform_ID"]) == f"G{properties['platform'].removeprefix('goes-')}"
    loaded = run("subdatasets", item)
    name = loaded["image"].rpartition(":")[2]
    assert list(dataset[name].shape) == properties["proj:shape"]
    assert kfm.open(item, field=name).identical(dataset[name])
    scene = loaded["scene"]
    assert [scene.sizes["y"], scene.sizes["x"]] == properties["proj:shape"]
    step, _, west = properties["proj:transform"][:3]
    assert float(scene["x"][0]) == pytest.approx(west + step / 2)
    with rasterio.open(loaded["image"]) as image:
        pixels = image.read(1, masked=True)
    valid = ~ma.getmaskarray(pixels)
    assert (scene["data"][0].values[valid] == pixels.data[valid]).all()


def goes_glm(item: pystac.Item) -> None:
    dataset = kfm.open(item)
    for single, many in (("event", "events"), ("group", "groups"), ("flash", "flashes")):
        assert dataset.sizes[f"number_of_{many}"] == item.properties[f"glm:{single}-count"] > 0


def ocean(item: pystac.Item) -> None:
    sizes = variables(item).sizes
    assert [sizes["lat"], sizes["lon"]] == item.properties["proj:shape"]


def variables(item: pystac.Item) -> Any:
    dataset = opened(item)
    assert kfm.open(item).identical(dataset)
    assert item.properties["cube:variables"].keys() <= set(dataset.variables)
    return dataset


def volume(item: pystac.Item) -> None:
    is_at_its_site(opened(item), item)
    chunks(item)


def chunks(item: pystac.Item) -> None:
    tree = kfm.open(item)
    is_at_its_site(tree.to_dataset().merge(tree["sweep_0"].to_dataset()), item)


def is_at_its_site(sweep: Any, item: pystac.Item) -> None:
    assert "DBZH" in sweep
    for name in ("latitude", "longitude"):
        assert float(sweep[name]) == pytest.approx(item.properties[f"nexrad:{name}"], abs=1e-4)


def nids(item: pystac.Item) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(item.assets["data"].href)):
        kfm.open(item)
    product = run("Level3File", item)["product"]
    assert product.prod_desc.prod_code == item.properties["nexrad:product-code"]
    assert product.siteID == item.properties["nexrad:awips-id"][3:]
    assert product.lat == pytest.approx(item.properties["nexrad:latitude"])
    for band in item.assets["data"].extra_fields.get("bands", ()):
        assert (
            getattr(product.map_data, "units", band["unit"]).replace("m/s", "m s-1").replace("inches", "in")
            == band["unit"]
        )


def station(item: pystac.Item) -> None:
    reports = kfm.open(item)
    assert len(reports) == item.properties["isd:records"]
    assert reports["air_temperature"].between(-60, 60).any()
    assert reports["sea_level_pressure"].dropna().between(870, 1090).all()
    assert reports["time"].iloc[0] == item.common_metadata.start_datetime


def rows(item: pystac.Item) -> None:
    table, properties = kfm.open(item), item.properties
    assert len(table) == properties["ghcn:rows"]
    times = table["time"].dropna()
    extent = properties["cube:dimensions"]["time"]["extent"]
    assert [times.min(), times.max()] == [datetime.fromisoformat(moment) for moment in extent]
    read = run("ghcn:csv", item)["rows"]
    if "ghcn:columns" in properties:
        assert list(read.columns) == properties["ghcn:columns"]
        assert set(table["ELEMENT"]) == properties["cube:variables"].keys()
        # Values are stored in tenths.
        assert table["value"].tolist() == pytest.approx((read["DATA_VALUE"] / 10).tolist())
    else:
        variables = properties["cube:variables"]
        assert variables.keys() <= set(read.columns) <= set(table.columns)
        assert all(table[name].notna().any() for name in variables)
        assert table["temperature"].dropna().between(-60, 60).all()


CLIENTS: Mapping[str, Callable[[pystac.Item], object]] = {
    **dict.fromkeys(
        ("cfs", "gefs", "gfs", "hrrr", "mrms", "naqfc", "nbm", "ndfd", "rap", "refs", "rrfs", "rtma", "urma"), grib
    ),
    "goes-abi": goes_abi,
    "goes-glm": goes_glm,
    "nexrad-l2": volume,
    "nexrad-l2-chunks": chunks,
    "nexrad-l3": nids,
    "ocean": ocean,
    **dict.fromkeys(
        (
            "nclimgrid-daily",
            "nclimgrid-monthly",
            "nwm",
            "nwm-retrospective",
            "ofs",
            "rtofs",
            "sea-ice-cdr",
            "sea-ice-cdr-monthly",
        ),
        variables,
    ),
    **dict.fromkeys(("ghcnd", "ghcnh"), rows),
    "surface-obs": station,
}
