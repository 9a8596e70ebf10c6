"""Items of real NODD objects, from their own headers, against core, profile and official extension schemas."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster_tests.catalog.official import OfficialSchemas
from kfm_dagster_tests.catalog.real_objects import items_of_real_objects


@pytest.mark.clause("OPR-08")
def test_items_of_real_objects_are_valid(contracts: ContractRegistry, shared_data: Path) -> None:
    official = OfficialSchemas(shared_data / "schemas/stac-extensions")
    seen = set()
    for path, item in items_of_real_objects(contracts, shared_data / "objects"):
        assert validate_item(item) == [], path
        assert official.errors(item) == [], path
        seen.add(item["properties"]["kfm:dataset"])
    assert {"goes-abi", "hrrr", "nexrad-l2"} <= seen
