"""Items from envelopes: golden Items, grids compared with GDAL's, refused Items."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import orjson
import pyproj
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.catalog import validation
from kfm_dagster.catalog.assets import EXTENSIONS
from kfm_dagster.catalog.documents import MAX_SUMMARY_VALUES, collection_document
from kfm_dagster.catalog.index import Extent
from kfm_dagster.catalog.item import build_item, canonical, content_sha256
from kfm_dagster.catalog.validation import MAX_REASONS, REASON_LIMIT, validate_document, validate_item
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, MetadataIssue, Severity
from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster_tests.catalog.envelopes import MD5, candidates, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.catalog.real_objects import items_of_real_objects
from kfm_dagster_tests.factories import JSON, staged, with_section

GOLDEN = Path(__file__).parent / "golden"


def item_of(contracts: ContractRegistry, envelope: Envelope) -> dict[str, Any]:
    (candidate,) = candidates(contracts, [envelope])
    return dict(candidate.item)


@pytest.mark.clause("OPR-08")
def test_a_candidate_keeps_the_json_objects_of_its_item_only_as_bytes(contracts: ContractRegistry) -> None:
    """The variables of an HRRR Item have 20 kB as text and 80 kB as Python objects."""
    variables = {"VIL": {"type": "data", "dimensions": ["y", "x"]}}
    (candidate,) = candidates(contracts, [goes(**{"cube:variables": variables})])
    properties = candidate.item["properties"]
    assert properties["cube:variables"] == variables
    assert candidate.properties == {name: value for name, value in properties.items() if type(value) is not dict}
    assert candidate.item["bbox"] == candidate.bbox


def built(contract: DatasetContract, envelope: Envelope, object_uri: str | None = None) -> dict[str, Any]:
    """Return an envelope's Item under a contract, optionally with another object address."""
    match = KeyGrammarReader(contract).match(envelope.key)
    moved = envelope.evolve(object_uri=object_uri or envelope.object_uri)
    return build_item(moved, contract=contract, match=match, run_state=None)


@pytest.mark.clause("OPR-08")
@pytest.mark.parametrize("envelope", [goes(), hrrr(), nexrad()], ids=lambda envelope: envelope.dataset)
def test_the_item_of_each_dataset_equals_its_golden_item(contracts: ContractRegistry, envelope: Envelope) -> None:
    item = item_of(contracts, envelope)
    assert item == json.loads((GOLDEN / f"{envelope.dataset}.json").read_text(encoding="utf-8"))
    assert validate_item(item) == []


@pytest.mark.clause("OPR-05")
def test_findings_of_a_suspect_unit_are_visible_in_its_item(contracts: ContractRegistry) -> None:
    suspect = Issue(
        code=IntegrityIssue.UNEXPECTED_CONTENT_TYPE, severity=Severity.SUSPECT, message="text/plain, " + "x" * 1000
    )
    finding = Issue(code=MetadataIssue.SIDECAR_MISSING, severity=Severity.SUSPECT, message="no .idx")
    envelope = with_metadata(hrrr(), status=CheckStatus.SUSPECT, issues=(finding,)).evolve(
        integrity=Integrity(status=CheckStatus.SUSPECT, issues=(suspect,))
    )
    item = item_of(contracts, envelope)
    assert item["properties"]["kfm:integrity"] == "suspect"
    assert [(issue["operator"], issue["code"]) for issue in item["properties"]["kfm:issues"]] == [
        ("integrity_check", "unexpected_content_type"),
        ("metadata_extract", "sidecar_missing"),
    ]
    assert len(item["properties"]["kfm:issues"][0]["message"]) == 300
    assert validate_item(item) == []
    assert "kfm:issues" not in item_of(contracts, hrrr())["properties"]


def test_only_a_single_part_etag_is_a_checksum(contracts: ContractRegistry) -> None:
    for etag, checksum in [(MD5, "d50110" + MD5), (f"{MD5}-12", None), (MD5.upper(), None), ("", None)]:
        item = item_of(contracts, goes(version=etag))
        assert item["assets"]["data"].get("file:checksum") == checksum


def test_only_extensions_in_use_are_declared(contracts: ContractRegistry) -> None:
    full = item_of(contracts, goes())
    assert full["stac_extensions"] == [*contracts["goes-abi"].stac.extensions, *EXTENSIONS]
    bare = with_metadata(goes(), stac_properties={"datetime": "2025-12-03T00:00:00Z", "platform": "goes-19"})
    declared = [uri.split("/")[3] for uri in item_of(contracts, bare)["stac_extensions"]]
    assert declared == ["file", "alternate-assets", "storage", "xarray-assets"]


@pytest.mark.clause("OPR-21")
def test_a_key_with_unsafe_characters_gives_a_valid_href(contracts: ContractRegistry) -> None:
    envelope = goes()
    item = built(contracts["goes-abi"], envelope, "s3://bucket/a b/YEAR=2020/00:15 é%+.nc")
    assert item["assets"]["data"]["href"] == "s3://bucket/a%20b/YEAR=2020/00:15%20%C3%A9%25+.nc"
    assert {name: where["href"] for name, where in item["assets"]["data"]["alternate"].items()} == {
        # S3 decodes + in a URL as a space.
        "https": "https://bucket.s3.us-east-1.amazonaws.com/a%20b/YEAR=2020/00:15%20%C3%A9%25%2B.nc",
        "gcs": "https://storage.googleapis.com/gcp-public-data-goes-19/a%20b/YEAR=2020/00:15%20%C3%A9%25%2B.nc",
        "azure": "https://goeseuwest.blob.core.windows.net/bucket/a%20b/YEAR=2020/00:15%20%C3%A9%25%2B.nc",
    }
    assert validate_item(orjson.loads(canonical(item))) == []
    assert item_of(contracts, envelope)["assets"]["data"]["href"] == envelope.object_uri
    # No certificate covers the host name of a bucket with dots, so the bucket is in the path.
    dotted = built(contracts["goes-abi"], envelope, "s3://a.b/c.nc")
    assert dotted["assets"]["data"]["alternate"]["https"]["href"] == "https://s3.us-east-1.amazonaws.com/a.b/c.nc"


@pytest.mark.clause("OPR-21")
def test_restricted_objects_have_no_public_address(contracts: ContractRegistry) -> None:
    contract = contracts["hrrr"]
    closed = with_section(contract, "governance", access="restricted")
    item = built(closed, hrrr())
    for asset in item["assets"].values():
        assert asset["href"].startswith("s3://")
        assert not {"alternate", "alternate:name", "xarray:storage_options"} & asset.keys()
    assert item["properties"]["storage:schemes"]["aws"]["bucket"] == "noaa-hrrr-bdp-pds"
    assert validate_item(orjson.loads(canonical(item))) == []


def test_links_run_state_and_time_stamps_do_not_change_the_content_hash(contracts: ContractRegistry) -> None:
    item = item_of(contracts, goes())
    properties = {**item["properties"], "kfm:run_state": {"dataset_id": "x", "run_id": "y"}, "updated": "later"}
    assert content_sha256({**item, "properties": properties, "links": []}) == content_sha256(item)
    for changed in (
        {**item, "properties": {**item["properties"], "platform": "goes-18"}},
        {**item, "assets": {}},
        {**item, "geometry": None},
    ):
        assert content_sha256(changed) != content_sha256(item)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.randoms(use_true_random=False))
def test_canonical_bytes_depend_on_content_and_not_on_order(value: dict[str, Any], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    content = canonical({name: value[name] for name in names})
    assert content == canonical(value)
    assert canonical(json.loads(content)) == content


@pytest.fixture
def item(contracts: ContractRegistry) -> dict[str, Any]:
    return copy.deepcopy(item_of(contracts, goes()))


WRONG: list[tuple[tuple[str, ...], Any, str]] = [
    # STAC core
    (("stac_version",), "1.0.0", "stac_version"),
    (("properties", "datetime"), "2025-12-03T00:00:00", "datetime"),
    (("properties", "datetime"), "2025-12-03T25:00:00Z", "datetime"),
    (("geometry",), {"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]}, "geometry"),
    (("assets", "data", "href"), "s3://bucket/a b", "href"),
    (("assets", "data", "roles"), "data", "roles"),
    (("collection",), None, "collection"),
    # extension fields
    (("properties", "proj:shape"), [1500.5, 2500], "proj:shape"),
    (("properties", "proj:transform"), [1.0, 2.0], "proj:transform"),
    (("properties", "proj:epsg"), 4326, "proj:epsg"),
    (("properties", "sat:orbit_state"), "geo-stationary", "sat:orbit_state"),
    (("properties", "forecast:horizon"), "6 h", "forecast:horizon"),
    (("properties", "processing:level"), 1, "processing:level"),
    (("assets", "data", "file:size"), -1, "file:size"),
    (("assets", "data", "file:checksum"), "xyz", "file:checksum"),
    (("assets", "data", "bands"), [{"eo:center_wavelength": 0}], "eo:center_wavelength"),
    # profile
    (("properties", "kfm:wal_id"), "not-a-uuid", "kfm:wal_id"),
    (("properties", "kfm:unheard_of"), 1, "kfm:unheard_of"),
    (("properties", "goes:percent-uncorrectable"), None, "goes:percent-uncorrectable"),
    (("bbox",), [-190.0, 0.0, 0.0, 10.0], "bbox"),
    (("bbox",), [0.0, 20.0, 1.0, 10.0], "bbox"),
    (("id",), "../../evil", "id"),
    (("id",), "catalog", "id"),
    (("id",), "page-0001", "id"),
    (("id",), "x" * 201, "id"),
    (("links",), [{"rel": "self", "href": "https://example.com/x.json"}], "links"),
    # rules beyond the schema
    (("properties", "end_datetime"), "2025-12-02T00:00:00Z", "after end_datetime"),
    (("properties", "datetime"), "2016-12-31T23:59:60Z", "second must be in"),
]


@pytest.mark.clause("OPR-08")
def test_a_wrong_item_is_refused_with_its_reason(item: dict[str, Any]) -> None:
    assert validate_item(item) == []
    for path, value, reason in WRONG:
        wrong = target = copy.deepcopy(item)
        for name in path[:-1]:
            target = target[name]
        target[path[-1]] = value
        reasons = validate_item(wrong)
        assert any(reason in text for text in reasons), (path, value, reasons)
        assert len(reasons) <= MAX_REASONS
        assert all(len(text) <= REASON_LIMIT for text in reasons)
    for name in ("kfm:wal_id", "kfm:dataset", "datetime"):
        lacking = {**item, "properties": {key: value for key, value in item["properties"].items() if key != name}}
        assert any(name in text for text in validate_item(lacking)), name


@pytest.mark.clause("OPR-08")
def test_a_document_that_is_not_stac_is_refused_and_no_schema_is_fetched(item: dict[str, Any]) -> None:
    for document in [{}, {"type": "Feature"}, {"type": "Catalog"}, {"type": "Nothing"}]:
        assert validate_document(document) != []
        assert validate_item(document) != []
    with pytest.raises(jsonschema_rs.ValidationError, match="Retrieval is disabled"):
        validation._compile({"$ref": "https://schemas.stacspec.org/v9.9.9/nothing.json"}, None)
    # Properties with the prefix of an unknown dataset need no code.
    item["properties"] |= {"buoy:station": "46042", "buoy:depths": [1.0, 2.5]}
    assert validate_item(item) == []


EXTENT = Extent(bbox=(-120.0, 10.0, -60.0, 50.0), start="2025-12-03T00:00:00Z", end="2025-12-03T01:00:00Z")


def test_a_summary_lists_all_values_or_is_a_range_or_is_absent(contracts: ContractRegistry) -> None:
    summaries: dict[str, tuple[list[Any], Any]] = {
        "listed in order": (["b", "a"], ["a", "b"]),
        "numbers before text": ([3, "a", 1.5], [1.5, 3, "a"]),
        "a range": (list(range(MAX_SUMMARY_VALUES + 1)), {"minimum": 0, "maximum": MAX_SUMMARY_VALUES}),
        "neither listable nor a range": (["x", *range(MAX_SUMMARY_VALUES)], None),
    }
    for case, (values, summary) in summaries.items():
        collection = collection_document(
            contracts["goes-abi"], extent=EXTENT, summaries={"goes:product": values}, years=["2025"]
        )
        assert collection.get("summaries", {}).get("goes:product") == summary, case
        assert validate_document(collection) == [], case
    # The Collection declares the extensions of its summaries.
    orbit = {"sat:orbit_state": ["geostationary"]}
    declared = collection_document(contracts["goes-abi"], extent=EXTENT, summaries=orbit, years=[])["stac_extensions"]
    assert declared == ["https://stac-extensions.github.io/sat/v1.2.0/schema.json"]


@pytest.mark.clause("BEY-18")
def test_a_collection_has_its_dataset_s_status_and_a_link_to_its_successor(contracts: ContractRegistry) -> None:
    uri = "https://stac-extensions.github.io/version/v1.2.0/schema.json"
    old = staged(contracts["gfs"], "retired", since="2026-11-03", successor="hrrr")
    registry = ContractRegistry.of([old, contracts["hrrr"], staged(contracts["gefs"], "preliminary")])
    for dataset, member, links, notice in (
        (
            "gfs",
            "deprecated",
            [("successor-version", "../hrrr/collection.json")],
            " Retired since 2026-11-03: It ended.",
        ),
        ("gefs", "experimental", [], " Preliminary: its producer still changes it."),
        ("hrrr", None, [("predecessor-version", "../gfs/collection.json")], ""),
    ):
        contract = registry[dataset]
        collection = collection_document(
            contract, extent=EXTENT, summaries={}, years=["2025"], versions=registry.versions(contract)
        )
        assert collection["kfm:status"] == contract.metadata.status
        assert [name for name in ("deprecated", "experimental") if collection.get(name)] == ([member] if member else [])
        related = [link for link in collection["links"] if link["rel"].endswith("-version")]
        assert [(link["rel"], link["href"]) for link in related] == links
        assert collection["stac_extensions"] == [uri], dataset
        assert collection["description"] == contract.metadata.description + notice
        assert validate_document(collection) == []
        if member:
            assert validate_document({**collection, "stac_extensions": []})
    assert registry.only(["gfs"]).versions(old) == []
    governed = with_section(contracts["hrrr"], "governance", indigenous_data_flag=True)
    assert ContractRegistry.of([old, governed]).versions(old) == []


GRIDDED = {"goes-abi", "gfs", "hrrr", "mrms", "ocean"}
"""Datasets with grids and real objects."""
CONTRACTS = ContractRegistry.load()


@cache
def items(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the Items of real objects with evenly spaced rows, by path."""
    items_by_path = {
        path: item
        for path, item in items_of_real_objects(CONTRACTS, folder, GRIDDED)
        if "grib:gaussian-parallels" not in item["properties"]
    }
    assert {item["collection"] for item in items_by_path.values()} == GRIDDED
    return items_by_path


def images(file: Path, item: dict[str, Any]) -> Iterator[tuple[dict[str, Any] | None, Any]]:
    """Yield each band of an Item (None if the Item lists no band) with GDAL's dataset."""
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
def test_the_grid_of_an_item_equals_the_grid_of_gdal(shared_data: Path) -> None:
    folder = shared_data / "objects"
    for path, item in items(folder).items():
        properties = item["properties"]
        width, _, west, _, height, north = properties["proj:transform"]
        rows, columns = properties["proj:shape"]
        for _, dataset in images(folder / path, item):
            assert dataset.shape == (rows, columns), path
            transform = dataset.transform
            # GDAL computes its transform from the axes; a hundredth of a cell does not matter in any resampling.
            assert transform[:6] == pytest.approx((width, 0, west, 0, height, north), abs=abs(width) / 100), path
        assert properties["proj:bbox"] == pytest.approx(
            [west, north + rows * height, west + columns * width, north], abs=abs(width) / 1000
        )
        assert "proj:code" in properties
        crs = pyproj.CRS.from_wkt(properties["proj:wkt2"])
        assert crs.is_geographic == (abs(width) < 1), path


@pytest.mark.clause("OPR-21")
def test_dimensions_run_from_the_centre_of_the_first_cell_to_that_of_the_last_cell(shared_data: Path) -> None:
    for path, item in items(shared_data / "objects").items():
        properties = item["properties"]
        west, south, east, north = properties["proj:bbox"]
        axes = {axis["axis"]: axis for axis in properties["cube:dimensions"].values() if axis["type"] == "spatial"}
        for axis, low, high, count in (
            ("x", west, east, properties["proj:shape"][1]),
            ("y", south, north, properties["proj:shape"][0]),
        ):
            half = (high - low) / count / 2
            assert axes[axis]["extent"] == pytest.approx([low + half, high - half], abs=half / 100), path
            assert abs(axes[axis]["step"]) == pytest.approx(2 * half), path
            # An axis without a reference system has degrees of EPSG:4326.
            assert axes[axis].get("reference_system", "EPSG:4326") in {
                properties["proj:wkt2"], properties["proj:code"]
            }  # fmt: skip
        for name, variable in properties.get("cube:variables", {}).items():
            assert set(variable["dimensions"]) <= properties["cube:dimensions"].keys(), name


@pytest.mark.clause("OPR-21")
def test_the_values_of_a_band_equal_those_of_gdal(shared_data: Path) -> None:
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
    """Compare a band of MRMS with GDAL's table (wrong for two products); check that the lowest pixels are flags."""
    if dataset.tags(1)["GRIB_UNIT"] != "[-99]":
        assert dataset.tags(1)["GRIB_UNIT"] == f"[{band['unit']}]", path
    assert dataset.tags(1)["GRIB_ELEMENT"].partition(",")[0] == band["name"]
    pixels, flags = dataset.read(1), [flag["value"] for flag in band["classification:classes"]]
    assert np.isin(pixels[pixels < -50], flags).all(), path
