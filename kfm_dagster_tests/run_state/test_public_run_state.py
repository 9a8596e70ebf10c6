"""Public run-state in Items, events and PROV documents names no governed dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from kfm_dagster.catalog.item import build_item
from kfm_dagster.contracts.identity import pseudonym
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.lineage.unit import LineageUnit
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.envelopes import goes, run_state
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.lineage.units import RUN_ID, ingest_run, registered, with_stac

FACET = Path(__file__).resolve().parents[2] / "docs" / "spec" / "kfm-run-state-facet.schema.json"
OPEN = {"sensitivity": "none", "indigenous_data_flag": False}
GOVERNED = [{"sensitivity": "restricted"}, {"indigenous_data_flag": True}]
MASKED = "governed-752b4a88"
"""With the first 8 digits of `printf goes-abi | sha256sum`."""


def contract_with(contracts: ContractRegistry, governance: dict[str, Any]) -> DatasetContract:
    """Return the GOES contract with this governance, and a Collection of another name."""
    return with_section(with_section(contracts["goes-abi"], "governance", **governance), "stac", collection="scans")


def item_of(contracts: ContractRegistry, contract: DatasetContract) -> dict[str, Any]:
    """Return the Item of a scan, as stac-register builds it."""
    match = contracts.grammars["goes-abi"].match(goes().key)
    return build_item(goes(), contract=contract, match=match, run_state=run_state("goes-abi"))


def lineage_of(database: Database, contract: DatasetContract, folder: Path) -> dict[str, str]:
    """Return the lineage files of one scan, by their path below the lineage root."""
    envelope = with_stac(registered(), collection_id="scans", item_href="scans/2025/2025-12-03/scan-0.json")
    lineage = Lineage(database, str(folder / "lineage"))
    lineage.emit([LineageUnit.of(envelope)], run=ingest_run(), contract=contract, fence=open_fence)
    files = [path for path in (folder / "lineage").rglob("*") if path.is_file()]
    return {path.relative_to(folder / "lineage").as_posix(): path.read_text(encoding="utf-8") for path in files}


@pytest.mark.one_database
@pytest.mark.clause("RSP-09", "RSP-13")
@pytest.mark.parametrize(
    ("governance", "name"), [(OPEN, "goes-abi"), *((governance, MASKED) for governance in GOVERNED)]
)
def test_items_facets_and_prov_have_run_and_node_without_a_governed_dataset_s_name(
    database: Database, contracts: ContractRegistry, tmp_path: Path, governance: dict[str, Any], name: str
) -> None:
    contract, node = contract_with(contracts, governance), f"{name}.stac_register"
    item, files = item_of(contracts, contract), lineage_of(database, contract, tmp_path)
    assert item["properties"]["kfm:run_state"] == run_state("goes-abi") | {"dataset_id": node}
    for path, text in {"item": orjson.dumps(item).decode(), **files}.items():
        assert name in path + text
        assert ("goes-abi" in path + text) is (name == "goes-abi")

    [events] = [text for name, text in files.items() if name.endswith(".ndjson")]
    facet = json.loads(events.splitlines()[1])["run"]["facets"]["kfmRunState"]
    schema = json.loads(FACET.read_text(encoding="utf-8"))
    assert facet["_schemaURL"] == schema["$id"]
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(facet)
    assert (facet["dataset_id"], facet["run_id"], facet["outcome"]) == (node, RUN_ID, "success")

    [document] = [text for name, text in files.items() if name.endswith(".jsonld")]
    nodes = json.loads(document)["@graph"]
    assert [item["kfm:run_id"] for item in nodes if "Activity" in item["type"]] == [RUN_ID]
    assert [item["kfm:dataset_id"] for item in nodes if "kfm:StacItem" in item["type"]] == [node]
    assert all("kfm:run_id" not in item for item in nodes if "Entity" in item["type"])


@pytest.mark.clause("RSP-13")
def test_a_pseudonym_is_stable_unique_and_only_for_governed_datasets(contracts: ContractRegistry) -> None:
    assert pseudonym("goes-abi") == MASKED
    assert len({pseudonym(contract.id) for contract in contracts}) == len(list(contracts))
    assert all(contract.public_id == contract.id for contract in contracts if not contract.governed)
