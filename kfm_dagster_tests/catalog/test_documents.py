"""Catalog documents: what a Collection says when there is too much to list."""

from __future__ import annotations

from typing import Any

import pytest

from kfm_dagster.catalog.documents import MAX_SUMMARY_VALUES, collection_document
from kfm_dagster.catalog.index import Extent
from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.contracts.loader import ContractRegistry

EXTENT = Extent(bbox=(-120.0, 10.0, -60.0, 50.0), start="2025-12-03T00:00:00Z", end="2025-12-03T01:00:00Z")


@pytest.mark.parametrize(
    ("values", "summary"),
    [
        pytest.param(["b", "a"], ["a", "b"], id="listed in order"),
        pytest.param([3, "a", 1.5], [1.5, 3, "a"], id="numbers before text"),
        pytest.param(list(range(MAX_SUMMARY_VALUES + 1)), {"minimum": 0, "maximum": MAX_SUMMARY_VALUES}, id="range"),
        pytest.param(["x", *range(MAX_SUMMARY_VALUES)], None, id="neither listable nor a range"),
    ],
)
def test_summaries_are_complete_or_a_range_or_absent(
    contracts: ContractRegistry, values: list[Any], summary: Any
) -> None:
    found = collection_document(
        contracts["goes-abi"], extent=EXTENT, summaries={"goes:product": values}, years=["2025"]
    )
    assert found.get("summaries", {}).get("goes:product") == summary
    assert validate_document(found) == []
    # It declares the extensions of its summaries.
    orbit = {"sat:orbit_state": ["geostationary"]}
    declared = collection_document(contracts["goes-abi"], extent=EXTENT, summaries=orbit, years=[])["stac_extensions"]
    assert declared == ["https://stac-extensions.github.io/sat/v1.2.0/schema.json"]
