"""The GOES ABI reader and samples: products, agreement with keys, hostile bytes, navigation."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shapely.geometry import shape

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.readers import geostationary
from kfm_dagster.readers.base import HeaderMetadata, ReadError
from kfm_dagster.readers.geostationary import FixedGrid
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import (
    Reading,
    allocating_at_most,
    attribute,
    deleted,
    header_of,
    replaced,
    rewritten,
)

START = datetime(2025, 12, 3, 5, 1, 17, 600_000, UTC)
READING = Reading("goes-abi")
GRAMMAR, read, refusal = READING.grammar, READING.read, READING.refusal
EAST = FixedGrid(
    longitude_of_origin=-75.0,
    perspective_point_height=35786023.0,
    semi_major_axis=6378137.0,
    semi_minor_axis=6356752.31414,
)


def sample(product: str = "ABI-L1b-RadC", *, satellite: int = 19, band: int | None = 13) -> tuple[str, bytes]:
    return make_goes_abi(product=product, start=START, satellite=satellite, band=band)


def of_product(product: str, key: str, content: bytes, *, without: tuple[str, ...] = ()) -> tuple[str, bytes]:
    """Return a sample and its key as those of another product, without the variables `without`."""
    other = re.sub(r"ABI-L2-M?CMIP(?=[FCM])", product, key)

    def change(file: h5py.File) -> None:
        file.attrs["dataset_name"] = np.bytes_(other.rpartition("/")[2])
        for name in [name for name in file if without and name.startswith(without)]:
            del file[name]

    return other, rewritten(content, change)


def in_degrees(product: str, imagery: str, *, band: int | None = None) -> tuple[str, bytes]:
    """Return a product on latitudes and longitudes, without the fixed grid."""
    of_imagery = sample(imagery, satellite=18, band=band)
    key, content = of_product(product, *of_imagery, without=("goes_imager_projection", "x", "y"))

    def change(file: h5py.File) -> None:
        file["goes_lat_lon_projection"] = np.int32(-2147483647)
        for name in ("lat", "lon"):
            file[name] = np.zeros(7, "f4")

    return key, rewritten(content, change)


@pytest.mark.parametrize("scene", ["F", "C", "M1", "M2"])
def test_a_product_without_a_channel_has_a_band_for_each_image(scene: str) -> None:
    of_imagery = sample(f"ABI-L2-MCMIP{scene}", band=None)
    imagery = read(*of_imagery)
    bands = [
        {name: value for name, value in band.items() if not name.startswith("eo:")} | {"name": f"CMI_{band['name']}"}
        for band in imagery.properties["bands"]
    ]
    assert len(bands) == 16
    products = ("ABI-L2-ACM", "ABI-L2-LST2KM", "ABI-L2-RRQPE", "ABI-L2-BRF")
    for product, without in itertools.product(products, ((), ("band_id", "band_wavelength"))):
        key, content = of_product(product, *of_imagery, without=without)
        assert f"/OR_{product}{scene}-M6_G19_" in key
        header = read(key, content)
        assert header.properties["goes:product"] == product + scene[0]
        assert header.properties == {**imagery.properties, "goes:product": product + scene[0], "bands": bands}
        assert header.geometry == imagery.geometry


def test_an_image_is_a_variable_with_a_value_for_each_pixel() -> None:
    """This rule is for products other than imagery; for imagery the reader takes the channels' variables."""

    def change(file: h5py.File) -> None:
        shape = file["CMI_C01"].shape
        for name in ("DQF_Overall", "PQI", "Phase", "Z"):
            file[name] = h5py.Empty("i1") if name == "Z" else np.zeros(shape, "u1")
        file["Profile"] = np.zeros((*shape, 2), "u1")
        file["Turned"] = np.zeros(shape[::-1], "u1")

    key, content = sample("ABI-L2-MCMIPC", band=None)
    of_imagery = read(key, rewritten(content, change)).properties["bands"]
    assert [band["name"] for band in of_imagery] == [f"C{band:02}" for band in range(1, 17)]
    key, other = of_product("ABI-L2-ACTP", key, content, without=("CMI", "DQF", "band_id", "band_wavelength"))
    with h5py.File(io.BytesIO(content)) as file:
        shape_of = file["CMI_C01"].shape

    def alone(file: h5py.File) -> None:
        file["CMI_C01"] = np.zeros(shape_of, "u1")
        change(file)
        file.move("CMI_C01", "Type")

    assert read(key, rewritten(other, alone)).properties["bands"] == [
        {"name": "Phase", "data_type": "uint8"},
        {"name": "Type", "data_type": "uint8"},
    ]
    assert "bands" not in read(key, other).properties


def test_a_product_in_degrees_has_the_footprint_that_it_states() -> None:
    for product, imagery, band in (
        ("ABI-L2-DSR", "ABI-L2-MCMIPC", None),
        ("ABI-L2-RSR", "ABI-L2-MCMIPF", None),
        ("ABI-L2-DMW", "ABI-L2-CMIPM1", 14),
    ):
        header = read(*in_degrees(product, imagery, band=band))
        west, south, east, north = header.properties["goes:extent"]
        assert bounding_box(header.geometry) == pytest.approx((west, south, east, north), abs=1e-6)
        assert (header.geometry["type"] == "MultiPolygon") == (west > east)
        assert shape(header.geometry).area == pytest.approx((east - west) % 360 * (north - south), rel=1e-6)
        assert [entry["name"] for entry in header.properties.get("bands", ())] == ([f"C{band}"] if band else [])
        assert not [name for name in header.properties if name.startswith("proj:")]
        assert header.findings == ()


def test_a_product_in_degrees_without_its_extent_or_with_another_band_is_refused() -> None:
    key, content = in_degrees("ABI-L2-DSR", "ABI-L2-MCMIPC")
    for value in (np.float32(-999), np.float32(np.nan)):
        nowhere = rewritten(content, attribute("geospatial_westbound_longitude", value, EXTENT))
        assert refusal(key, nowhere) is MetadataIssue.MISSING_GEOLOCATION
    flat = rewritten(content, attribute("geospatial_northbound_latitude", np.float32(14.57134), EXTENT))
    assert refusal(key, flat) is MetadataIssue.INVALID_GEOMETRY
    key, content = in_degrees("ABI-L2-DMW", "ABI-L2-CMIPC", band=8)
    other = rewritten(content, replaced("band_id", data=np.array([9], "i1")))
    assert refusal(key, other) is MetadataIssue.INCOMPLETE_PRODUCT_METADATA


def test_a_coarse_grid_at_the_limb_has_a_larger_tolerance_for_its_extent() -> None:
    """Seen from the Earth's centre, the outermost centres of 10 km pixels are three degrees within the limb."""
    key, content = sample("ABI-L2-MCMIPF", band=None)

    def change(file: h5py.File) -> None:
        file[EXTENT].attrs["geospatial_northbound_latitude"] = np.float32(78.3)

    def coarser(file: h5py.File) -> None:
        change(file)
        for name, sign in (("x", 1), ("y", -1)):
            replaced(name, data=np.arange(1086, dtype="i2"))(file)
            file[name].attrs["scale_factor"] = np.array([sign * 280e-6], "f4")
            file[name].attrs["add_offset"] = np.array([sign * (-0.15204 + 140e-6)], "f4")

    assert [code for code, _ in read(key, rewritten(content, change)).findings] == [MetadataIssue.INVALID_GEOMETRY]
    header = read(key, rewritten(content, coarser))
    assert header.properties["proj:shape"] == [1086, 1086]
    assert header.findings == ()


def test_every_folder_listed_by_a_backfill_has_keys_of_the_contract(contracts: ContractRegistry) -> None:
    prefixes = GRAMMAR.contract.storage.day_prefixes(START.date())
    products = {prefix.partition("/")[0] for prefix in prefixes}
    assert len(products) == len(prefixes) >= 80
    for product in products:
        for region in ("1", "2") if product.endswith("M") else ("",):
            channel = "C08" if re.search("Rad|-CMIP|DMW", product) else ""
            name = f"OR_{product}{region}-M6{channel}_G19_s20253370501176_e20253370503549_c20253370504000.nc"
            route = contracts.route(bucket="noaa-goes19", key=f"{product}/2025/337/05/{name}")
            assert (route.kind, route.contract) == (KeyKind.DATA, GRAMMAR.contract), name


def test_samples_have_the_properties_of_their_product() -> None:
    for product, band, satellite, slot, image_type, meters, region in (
        ("ABI-L1b-RadF", 2, 19, "GOES-East", "FULL DISK", 500, None),
        ("ABI-L1b-RadC", 7, 18, "GOES-West", "CONUS", 2000, None),
        ("ABI-L2-CMIPM1", 3, 16, "GOES-East", "MESOSCALE", 1000, 1),
        ("ABI-L2-MCMIPM2", None, 17, "GOES-West", "MESOSCALE", 2000, 2),
        ("ABI-L2-MCMIPF", None, 18, "GOES-West", "FULL DISK", 2000, None),
    ):
        key, content = sample(product, satellite=satellite, band=band)
        header = read(key, content)
        assert header.start == header.datetime == START
        assert header.findings == ()
        assert header.properties["goes:orbital-slot"] == slot
        assert header.properties["goes:image-type"] == image_type
        assert header.properties["gsd"] == meters
        assert header.properties.get("goes:mesoscale-region") == region
        assert len(header.properties["bands"]) == (16 if band is None else 1)
        assert len(content) < 100_000
        json.dumps(header.properties, allow_nan=False)


def test_bands_have_their_common_names_and_satellites_their_designators() -> None:
    bands = read(*sample("ABI-L2-MCMIPC", band=None)).properties["bands"]
    assert [band.get("eo:common_name") for band in bands] == [
        "blue", "red", "nir08", "cirrus", "swir16", "swir22", *[None] * 7, "lwir11", "lwir12", None
    ]  # fmt: skip
    satellites = [read(*sample(satellite=number)).properties for number in (16, 17, 18, 19)]
    assert [(item["platform"], item["sat:platform_international_designator"]) for item in satellites] == [
        ("goes-16", "2016-071A"), ("goes-17", "2018-022A"), ("goes-18", "2022-021A"), ("goes-19", "2024-119A")
    ]  # fmt: skip


def test_content_that_contradicts_its_key_is_refused() -> None:
    key, content = sample()
    for part, other, code in (
        ("_G19_", "_G18_", MetadataIssue.PLATFORM_MISMATCH),
        ("_s20253370501176", "_s20253370501196", MetadataIssue.TIME_MISMATCH),
        ("_e20253370503549", "_e20253370503569", MetadataIssue.TIME_MISMATCH),
        ("C13_", "C14_", MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        ("-M6", "-M3", MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        ("RadC", "RadF", MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        ("ABI-L1b-Rad", "ABI-L2-CMIP", MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
    ):
        assert part in key
        assert refusal(key.replace(part, other), content) is code
    # A start within a second of the content's, or a later creation time, is accepted.
    near = {**GRAMMAR.match(key).groups, "start": "20253370501185"}
    assert header_of("goes-abi", content, key=key, groups=near).start == START
    assert read(key[: key.rindex("_c")] + "_c20253370600000.nc", content).start == START


def _external(file: h5py.File) -> None:
    del file["goes_imager_projection"]
    file["goes_imager_projection"] = h5py.ExternalLink("/etc/passwd", "/")


@pytest.mark.clause("OPR-07")
def test_impossible_headers_are_refused_with_a_code() -> None:
    key, content = sample()
    for change, code in (
        (deleted("goes_imager_projection"), MetadataIssue.MISSING_GEOLOCATION),
        (deleted("x"), MetadataIssue.MISSING_GEOLOCATION),
        (deleted("band_id"), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (deleted("band_wavelength"), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (replaced("band_wavelength", data=np.array([np.nan], "f4")), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (replaced("band_wavelength", data=np.array([1e-6], "f4")), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (replaced("y", shape=(0,), dtype="i2"), MetadataIssue.MISSING_GEOLOCATION),
        (replaced("y", shape=(1 << 40,), dtype="i2", chunks=(1024,)), MetadataIssue.MISSING_GEOLOCATION),
        (replaced("x", data=np.zeros((50, 50), "i2")), MetadataIssue.MISSING_GEOLOCATION),
        (replaced("x", data=np.zeros(2500, "i2")), MetadataIssue.MISSING_GEOLOCATION),
        (replaced("x", shape=(2500,), dtype="i2"), MetadataIssue.MISSING_GEOLOCATION),
        (replaced("x", data=np.zeros(2500, "c16")), MetadataIssue.UNREADABLE_FORMAT),
        (replaced("x", data=np.arange(2500, dtype="i2"), chunks=(99,), compression="lzf"),
         MetadataIssue.UNREADABLE_FORMAT),
        (attribute("scale_factor", np.array([1e300]), "x"), MetadataIssue.MISSING_GEOLOCATION),
        (attribute("scale_factor", np.array([np.nan], "f4"), "x"), MetadataIssue.MISSING_GEOLOCATION),
        (attribute("scale_factor", np.zeros(3), "x"), MetadataIssue.UNREADABLE_FORMAT),
        (attribute("scale_factor", np.bytes_(b"1"), "x"), MetadataIssue.UNREADABLE_FORMAT),
        (attribute("add_offset", np.array([0.19], "f4"), "x"), MetadataIssue.MISSING_GEOLOCATION),
        (attribute("perspective_point_height", np.array([0.0]), "goes_imager_projection"),
         MetadataIssue.MISSING_GEOLOCATION),
        (attribute("semi_minor_axis", np.array([np.inf]), "goes_imager_projection"), MetadataIssue.MISSING_GEOLOCATION),
        (attribute("sweep_angle_axis", np.bytes_(b"y"), "goes_imager_projection"), MetadataIssue.MISSING_GEOLOCATION),
        (attribute("time_coverage_start", np.bytes_(b"yesterday")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("time_coverage_start", np.bytes_(b"2025-12-03T05:01:17.6")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("time_coverage_start", np.bytes_(b"0001-01-01T00:00:00+14:00")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("time_coverage_end", np.bytes_(b"2025-12-03T05:00:00.0Z")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("time_coverage_start", h5py.Empty("S1")), MetadataIssue.INVALID_TIME_RANGE),
        (attribute("platform_ID", np.bytes_(b"\xff\xfe\xfd")), MetadataIssue.UNREADABLE_FORMAT),
        (attribute("scene_id", np.bytes_(b"Full Disk")), MetadataIssue.INCOMPLETE_PRODUCT_METADATA),
        (attribute("platform_ID", np.int32(19)), MetadataIssue.UNREADABLE_FORMAT),
        (attribute("orbital_slot", np.bytes_(b"x" * 60_000)), MetadataIssue.RESOURCE_LIMIT),
        (_external, MetadataIssue.UNREADABLE_FORMAT),
    ):  # fmt: skip
        assert refusal(key, rewritten(content, change)) is code


def test_a_wrong_or_missing_extent_is_a_finding_and_does_not_change_the_footprint() -> None:
    key, content = sample()
    right = read(key, content)
    wrong = read(key, rewritten(content, attribute("geospatial_westbound_longitude", np.float32(10.000002), EXTENT)))
    missing = read(key, rewritten(content, attribute("geospatial_westbound_longitude", np.float32(-999), EXTENT)))
    assert [code for code, _ in wrong.findings] == [MetadataIssue.INVALID_GEOMETRY]
    assert [code for code, _ in missing.findings] == [MetadataIssue.MISSING_GEOLOCATION]
    assert wrong.geometry == missing.geometry == right.geometry
    assert wrong.properties["goes:extent"][0] == 10.000002
    assert "goes:extent" not in missing.properties
    # A fill value as the percentage of errors is omitted.
    filled = rewritten(content, replaced("percent_uncorrectable_L0_errors", data=np.float32(-999)))
    assert "goes:percent-uncorrectable-l0-errors" not in read(key, filled).properties


EXTENT = "geospatial_lat_lon_extent"


@pytest.mark.clause("OPR-07")
def test_a_decompression_bomb_takes_bounded_memory() -> None:
    key, content = sample()
    bomb = rewritten(content, replaced("x", data=np.zeros(1 << 16, "i2"), chunks=(1 << 16,), compression="gzip"))
    with h5py.File(io.BytesIO(bomb)) as file:
        stored = file["x"].id.get_chunk_info(0)
    packed = zlib.compress(bytes(1 << 28), 9)
    forged = bytearray(bomb) + packed
    entry = bytes(forged).index(
        stored.size.to_bytes(4, "little") + bytes(4) + bytes(16) + stored.byte_offset.to_bytes(8, "little")
    )
    forged[entry : entry + 4] = len(packed).to_bytes(4, "little")
    forged[entry + 24 : entry + 32] = len(bomb).to_bytes(8, "little")
    # The end of the file, as the superblock states it.
    forged[40:48] = len(forged).to_bytes(8, "little")
    with allocating_at_most(8_000_000):
        refusal(key, bytes(forged))


def test_threads_do_not_wait_for_each_other_s_requests() -> None:
    """Each thread's first request waits for all threads; a lock around requests would deadlock."""
    threads = 8
    together = threading.Barrier(threads, timeout=30)
    key, content = sample("ABI-L2-MCMIPC", band=None)

    class Waiting(BytesSource):
        def read(self, start: int, length: int) -> bytes:
            together.wait()
            return super().read(start, length)

    def read_by_thread(_: int) -> HeaderMetadata:
        return read(key, Waiting(content))

    with ThreadPoolExecutor(threads) as pool:
        headers = list(pool.map(read_by_thread, range(threads)))
    assert all(header == headers[0] for header in headers)


def test_navigation_equals_the_users_guide() -> None:
    # PUG volume 3, 5.1.2.8.1.
    x, y = (axis.ravel() for axis in np.meshgrid(np.linspace(-0.1, 0.1, 9), np.linspace(-0.1, 0.1, 9)))
    _, height, major, minor = EAST
    distance, ratio = height + major, (major / minor) ** 2
    a = np.sin(x) ** 2 + np.cos(x) ** 2 * (np.cos(y) ** 2 + ratio * np.sin(y) ** 2)
    b = -2 * distance * np.cos(x) * np.cos(y)
    sight = (-b - np.sqrt(b * b - 4 * a * (distance**2 - major**2))) / (2 * a)
    s_x, s_y = sight * np.cos(x) * np.cos(y), -sight * np.sin(x)
    latitudes = np.degrees(np.arctan(ratio * sight * np.cos(x) * np.sin(y) / np.hypot(distance - s_x, s_y)))
    for longitude in (-137.0, -75.0, 0.0, 140.7):
        actual = geostationary.navigate(EAST._replace(longitude_of_origin=longitude), x, y)
        np.testing.assert_allclose(actual[0], longitude - np.degrees(np.arctan2(s_y, distance - s_x)), atol=1e-9)
        np.testing.assert_allclose(actual[1], latitudes, atol=1e-9)


def test_the_footprint_of_an_image_beyond_the_limb_ends_at_the_limb() -> None:
    def footprint(west: float, east: float, south: float, north: float) -> Any:
        return geostationary.footprint(EAST, (west, south, east, north))

    corner, crossing = footprint(0.12, 0.148, 0.06, 0.088)
    assert crossing is None
    assert shape(corner).is_valid
    disk, _ = footprint(-0.16, 0.16, -0.16, 0.16)
    assert shape(disk).buffer(0.5).contains(shape(corner))
    # An image without any part of the Earth has no footprint.
    assert footprint(0.14, 0.148, 0.14, 0.148) is None


@settings(max_examples=50)
@given(st.floats(-180, 180), st.floats(-0.15, 0.15), st.floats(-0.15, 0.15), st.floats(0.001, 0.1))
def test_every_footprint_is_valid_counterclockwise_and_on_the_globe(
    longitude: float, x: float, y: float, size: float
) -> None:
    grid = EAST._replace(longitude_of_origin=longitude)
    try:
        footprint = geostationary.footprint(grid, (x, y, x + size, y + size))
    except ReadError:
        # The part between limb and corner can be so small that it has no area.
        assume(False)
    assume(footprint is not None)
    outline = shape(footprint[0])
    assert outline.is_valid
    assert all(part.exterior.is_ccw for part in getattr(outline, "geoms", [outline]))
    west, south, east, north = outline.bounds
    assert -180 <= west <= east <= 180
    assert -90 <= south <= north <= 90
