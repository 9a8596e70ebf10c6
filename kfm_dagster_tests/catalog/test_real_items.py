"""Items of real NODD objects, from their own headers, against core, profile and official extension schemas."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.operators.stac_register import may_register, stac_register
from kfm_dagster_tests.catalog.official import OfficialSchemas
from kfm_dagster_tests.catalog.real_objects import extracted


@pytest.mark.clause("OPR-08")
def test_items_of_real_objects_are_valid(contracts: ContractRegistry, shared_data: Path) -> None:
    official = OfficialSchemas(shared_data / "schemas/stac-extensions")
    seen: set[str] = set()
    for path in sorted(path for path in (shared_data / "objects").rglob("*") if path.is_file()):
        bucket, key = path.relative_to(shared_data / "objects").as_posix().split("/", 1)
        route = contracts.route(bucket=bucket, key=key)
        if route.kind is not KeyKind.DATA or route.contract is None:
            continue
        envelope = extracted(contracts, route.contract.id, path, f"s3://{bucket}/{key}")
        if not may_register(envelope):
            continue
        candidate = stac_register(envelope, contract=route.contract, grammar=contracts.grammars[route.contract.id])
        assert validate_item(candidate.item) == [], path
        assert official.errors(candidate.item) == [], path
        seen.add(route.contract.id)
    assert {"goes-abi", "hrrr", "nexrad-l2"} <= seen
