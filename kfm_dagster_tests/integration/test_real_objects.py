"""Real objects and every dataset's samples through the chain, against independent readers."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pystac
import pytest

from docs_site.datasets import with_overview
from kfm_dagster.catalog.validation import validate_document, validate_item
from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.formats import format_of
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.display import footprint_map
from kfm_dagster.demo.families import FAMILIES, write_families
from kfm_dagster.demo.feed import StoredAs
from kfm_dagster.demo.sample_day import SAMPLE_DAY, sample_objects
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.catalog.official import OfficialSchemas
from kfm_dagster_tests.catalog.trees import assert_consistent, walk
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import good, open_pipeline, partitions_of, put, run_chain
from kfm_dagster_tests.readers.truth.comparison import real_objects
from kfm_dagster_tests.transactions import own_tx

EXPECTED = {
    "cfs": 1, "gfs": 5, "goes-abi": 16, "goes-glm": 9, "hrrr": 5, "mrms": 5, "naqfc": 1, "nclimgrid-daily": 3,
    "nclimgrid-monthly": 2, "ndfd": 3, "nexrad-l2": 9, "nwm-retrospective": 3, "ocean": 1, "sea-ice-cdr": 1,
    "sea-ice-cdr-monthly": 1, "ghcnd": 3, "ghcnh": 3, "surface-obs": 1,
}  # fmt: skip
"""Objects of the supported datasets in the folder of real data."""
IN_PIECES = "nexrad-l2-chunks"
"""A dataset whose objects share an Item; `test_nexrad_chunks.py` tests it."""
MICRODEGREE = 1e-6
"""Items have coordinates with six decimals."""
TIMES = ("start_datetime", "end_datetime", "datetime")
Items = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def ingested(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline that ingested every real object of the supported datasets, one run a day."""
    root = shared_data / "objects"
    pipeline = open_pipeline(tmp_path_factory.mktemp("real"), root)
    for number, (dataset, partition) in enumerate(days_of(root, pipeline.registry)):
        run_chain(pipeline, dataset, partition, f"run-{number}")
    yield pipeline
    pipeline.close()


def days_of(root: Path, registry: ContractRegistry) -> dict[tuple[str, str], list[str]]:
    """Return the objects that have an Item of their own, by dataset and day."""
    return {name: uris for name, uris in partitions_of(root, registry).items() if name[0] != IN_PIECES}


@pytest.fixture(scope="module")
def catalog(ingested: Pipeline) -> Path:
    return Path(ingested.settings.catalog)


@pytest.fixture(scope="module")
def items(catalog: Path) -> Items:
    return traces.items(catalog)


def with_reference(
    items: Items, reference: Mapping[str, Any]
) -> list[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Return Item, properties and reference entry of every real object."""
    return [
        (item, item["properties"], reference["objects/" + uri.removeprefix("s3://")]) for uri, item in items.items()
    ]


@pytest.mark.clause("BEY-03")
def test_every_real_object_succeeds(ingested: Pipeline, items: Items, shared_data: Path) -> None:
    expected = {uri for uris in days_of(shared_data / "objects", ingested.registry).values() for uri in uris}
    records = traces.records(ingested)
    assert set(records) == expected == set(items)
    assert {uri: record.last_error_code for uri, record in records.items() if record.status != "succeeded"} == {}
    counts = {dataset: by_status[Status.SUCCEEDED] for dataset, by_status in own_tx(ingested.ledger).counts().items()}
    assert counts == EXPECTED
    assert {record.attempts for record in records.values()} == {1}


@pytest.mark.clause("OPR-06", "OPR-14", "OPR-15", "OPR-16", "OPR-24")
def test_an_item_has_the_values_of_its_reader(items: Items, shared_data: Path, reference: dict[str, Any]) -> None:
    """Check Items against our readers, which `readers/test_truth.py` checks independently."""
    objects = {real.path: real for real in real_objects(shared_data, reference)}
    for item, properties, entry in with_reference(items, reference):
        header = objects[entry["path"]].read(BytesSource(objects[entry["path"]].content))
        expected = orjson.loads(orjson.dumps(dict(header.properties), option=orjson.OPT_SERIALIZE_NUMPY))
        assert item["assets"]["data"].get("bands") == expected.pop("bands", None), entry["path"]
        assert {name: properties.get(name) for name in expected} == expected, entry["path"]
        times = [datetime.fromisoformat(properties.get(name, properties["datetime"])) for name in TIMES]
        assert times == [header.start, header.end, header.datetime], entry["path"]
        if header.geometry:
            assert item["bbox"] == pytest.approx(bounding_box(header.geometry), abs=MICRODEGREE), entry["path"]
        else:
            assert (item["geometry"], item.get("bbox")) == (None, None), entry["path"]


@pytest.mark.clause("OPR-06")
def test_each_format_lists_every_property_that_its_readers_give(items: Items, contracts: ContractRegistry) -> None:
    for item in items.values():
        contract = next(contract for contract in contracts if contract.stac.collection == item["collection"])
        form = format_of(contract.metadata_extract.reader)
        of_item = {name for name in item["properties"] if not name.startswith("kfm:")} - {"license", "storage:schemes"}
        assert {name for name in of_item if not form.gives(name)} == set()
        assert not form.gives("colour")
        assert not form.gives("goes:colour")


@pytest.mark.clause("OPR-06", "OPR-05")
def test_the_data_asset_names_the_object_its_size_and_its_checksum(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference):
        asset = item["assets"]["data"]
        assert asset["file:size"] == entry["size"]
        # Multihash of an MD5: code 0xd5 as a varint, 16 bytes.
        assert asset["file:checksum"] == "d50110" + entry["md5"]
        issues = [issue["code"] for issue in properties.get("kfm:issues", [])]
        # Only two objects of cfs, gfs and hrrr have an index; the Items of their other objects are marked suspect.
        # An object of NDFD states its length in a first line; the object of wave heights has no such line.
        unindexed = properties["kfm:dataset"] in {"cfs", "gfs", "hrrr"} and "index" not in item["assets"]
        of_unknown_length = properties["kfm:dataset"] == "naqfc" or item["id"] == "ndfd.oceanic.001-003.waveh"
        expected = [MetadataIssue.SIDECAR_MISSING] * unindexed + [
            MetadataIssue.COMPLETENESS_UNCHECKED
        ] * of_unknown_length
        # GHCN-Daily has no coordinates, and one station's file of GHCNh ends with an incomplete row.
        expected += [MetadataIssue.COMPLETENESS_UNCHECKED] * ("USW00013967" in entry["path"])
        expected += [MetadataIssue.MISSING_GEOLOCATION] * (properties["kfm:dataset"] == "ghcnd")
        assert issues == expected


@pytest.mark.clause("OPR-08")
def test_every_document_is_valid_by_the_schemas_of_core_extensions_and_profile(
    catalog: Path, shared_data: Path, items: Items
) -> None:
    official = OfficialSchemas(shared_data / "schemas" / "stac-extensions")
    assert_consistent(catalog)
    for name, document in walk(catalog).items():
        assert official.errors(document) == [], name
        reasons = validate_item(document) if document["type"] == "Feature" else validate_document(document)
        assert reasons == [], name
    assert official.checked >= {"projection", "file", "processing", "sat", "eo", "forecast"}
    boxes = [item["bbox"] for item in items.values() if "bbox" in item]
    assert sum(west > east for west, _, east, _ in boxes) == 6, "GOES-West and waves over the antimeridian"


DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURES = DOCS / "images" / "footprints"
SAMPLE_DAY_S = {"goes-abi", "hrrr", "nexrad-l2"}
SHARED = {"nexrad-l2-chunks": "nexrad-l2", "sea-ice-cdr-monthly": "sea-ice-cdr"}
"""Datasets whose Items are in another dataset's Collection."""


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline after ingesting the samples of every dataset, one run for each dataset and day."""
    root = tmp_path_factory.mktemp("objects")
    write_families(root, SAMPLE_DAY)
    put(
        root,
        [
            good(sample.bucket, sample.key, sample.content)
            for sample in sample_objects()
            if sample.delivery is StoredAs.WHOLE
        ],
    )
    pipeline = open_pipeline(tmp_path_factory.mktemp("home"), root)
    for number, (dataset, partition) in enumerate(partitions_of(root, pipeline.registry)):
        run_chain(pipeline, dataset, partition, f"run-{number}")
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def samples(sampled: Pipeline) -> dict[str, list[dict[str, Any]]]:
    """Return Items by dataset; the URI of an Item's data determines the dataset."""
    items_by_dataset: dict[str, list[dict[str, Any]]] = {}
    for uri, item in traces.catalog_items(sampled).items():
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        route = sampled.registry.route(bucket=bucket, key=key)
        items_by_dataset.setdefault(route.contract.id, []).append(item)
    return items_by_dataset


@pytest.mark.clause("OPR-14")
def test_samples_of_every_dataset_become_valid_items(
    sampled: Pipeline, samples: dict[str, list[dict[str, Any]]]
) -> None:
    assert FAMILIES.keys() | SAMPLE_DAY_S == set(sampled.registry.contracts)
    counts = own_tx(sampled.ledger).counts()
    for dataset in FAMILIES.keys() | SAMPLE_DAY_S:
        assert {status for status, count in counts[dataset].items() if count} == {Status.SUCCEEDED}, dataset
    assert set(samples) == set(counts)
    for name, members in samples.items():
        for item in members:
            assert item["collection"] == SHARED.get(name, name)
            assert validate_item(item) == []
            assert pystac.Item.from_dict(item).assets["data"].href.startswith("s3://")


def picture(members: list[dict[str, Any]]) -> str:
    """Return the map of the footprints as SVG."""
    [encoded] = re.findall(
        r"base64,([A-Za-z0-9+/=]+)", footprint_map([item["geometry"] for item in members if item["geometry"]])
    )
    return base64.b64decode(encoded).decode() + "\n"


@pytest.mark.clause("OPR-14")
def test_the_documents_have_a_picture_and_a_line_for_each_dataset(
    samples: dict[str, list[dict[str, Any]]], contracts: ContractRegistry
) -> None:
    if os.environ.get("DRAW_FOOTPRINTS"):
        PICTURES.mkdir(parents=True, exist_ok=True)
        for name, members in samples.items():
            (PICTURES / f"{name}.svg").write_text(picture(members), encoding="utf-8")
    drawn = {path.stem: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert drawn == {name: picture(members) for name, members in samples.items()}, "DRAW_FOOTPRINTS=1 draws them"
    page = (DOCS / "datasets.md").read_text(encoding="utf-8")
    assert with_overview(page, contracts) == page, "python -m docs_site.datasets writes the table"
    for name in samples:
        assert f"(images/footprints/{name}.svg)" in page
