"""Samples of every dataset that ships, through the whole chain: valid Items that pystac opens, and their footprints."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pystac
import pytest

from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.display import footprint_map
from kfm_dagster.demo.families import FAMILIES, write_families
from kfm_dagster.demo.feed import StoredAs
from kfm_dagster.demo.sample_day import SAMPLE_DAY, sample_objects
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import open_pipeline, partitions_of, run_chain
from kfm_dagster_tests.transactions import own_tx

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURES = DOCS / "images" / "footprints"
SAMPLE_DAY_S = {"goes-abi", "hrrr", "nexrad-l2"}
SHARED = {"nexrad-l2-chunks": "nexrad-l2"}
"""Datasets whose Items are of another's Collection."""


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline that has ingested the samples of every dataset, a run for each dataset and day."""
    root = tmp_path_factory.mktemp("objects")
    write_families(root, SAMPLE_DAY)
    for one in sample_objects():
        if one.delivery is StoredAs.WHOLE:
            path = root / one.bucket / one.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(one.content)
    pipeline = open_pipeline(tmp_path_factory.mktemp("home"), root)
    for number, (dataset, partition) in enumerate(partitions_of(root, pipeline.registry)):
        run_chain(pipeline, dataset, partition, f"run-{number}")
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def items(ingested: Pipeline) -> dict[str, list[dict[str, Any]]]:
    """Items by dataset, which is that of their data's address."""
    found: dict[str, list[dict[str, Any]]] = {}
    for uri, item in traces.catalog_items(ingested).items():
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        route = ingested.registry.route(bucket=bucket, key=key)
        found.setdefault(route.contract.id, []).append(item)
    return found


@pytest.mark.clause("OPR-14")
def test_samples_of_every_dataset_become_valid_items(
    ingested: Pipeline, items: dict[str, list[dict[str, Any]]]
) -> None:
    assert FAMILIES.keys() | SAMPLE_DAY_S == set(ingested.registry.contracts)
    counts = own_tx(ingested.ledger).counts()
    for dataset in FAMILIES.keys() | SAMPLE_DAY_S:
        assert {status for status, count in counts[dataset].items() if count} == {Status.SUCCEEDED}, dataset
    assert set(items) == set(counts)
    for name, found in items.items():
        for item in found:
            assert item["collection"] == SHARED.get(name, name)
            assert validate_item(item) == []
            assert pystac.Item.from_dict(item).assets["data"].href.startswith("s3://")


def picture(found: list[dict[str, Any]]) -> str:
    """The map of the footprints, as SVG."""
    [encoded] = re.findall(r"base64,([A-Za-z0-9+/=]+)", footprint_map([item["geometry"] for item in found]))
    return base64.b64decode(encoded).decode() + "\n"


@pytest.mark.clause("OPR-14")
def test_each_dataset_has_its_picture_and_its_line_in_the_documents(
    items: dict[str, list[dict[str, Any]]], contracts: ContractRegistry
) -> None:
    if os.environ.get("DRAW_FOOTPRINTS"):
        PICTURES.mkdir(parents=True, exist_ok=True)
        for name, found in items.items():
            (PICTURES / f"{name}.svg").write_text(picture(found), encoding="utf-8")
    drawn = {path.stem: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert drawn == {name: picture(found) for name, found in items.items()}, "DRAW_FOOTPRINTS=1 draws them"
    page = (DOCS / "datasets.md").read_text(encoding="utf-8")
    for contract in contracts:
        assert f"| `{contract.id}` | {', '.join(f'`{bucket}`' for bucket in contract.storage.buckets)} |" in page
    for name in items:
        assert f"(images/footprints/{name}.svg)" in page
