"""Catalog documents: what a Collection says when there is too much to list."""

from __future__ import annotations

from typing import Any

from kfm_dagster.catalog.documents import MAX_SUMMARY_VALUES, collection_document
from kfm_dagster.catalog.index import Extent
from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.contracts.loader import ContractRegistry

EXTENT = Extent(bbox=(-120.0, 10.0, -60.0, 50.0), start="2025-12-03T00:00:00Z", end="2025-12-03T01:00:00Z")


def test_summaries_are_complete_or_a_range_or_absent(contracts: ContractRegistry) -> None:
    summaries: dict[str, tuple[list[Any], Any]] = {
        "listed in order": (["b", "a"], ["a", "b"]),
        "numbers before text": ([3, "a", 1.5], [1.5, 3, "a"]),
        "a range": (list(range(MAX_SUMMARY_VALUES + 1)), {"minimum": 0, "maximum": MAX_SUMMARY_VALUES}),
        "neither listable nor a range": (["x", *range(MAX_SUMMARY_VALUES)], None),
    }
    for what, (values, summary) in summaries.items():
        found = collection_document(
            contracts["goes-abi"], extent=EXTENT, summaries={"goes:product": values}, years=["2025"]
        )
        assert found.get("summaries", {}).get("goes:product") == summary, what
        assert validate_document(found) == [], what
    # It declares the extensions of its summaries.
    orbit = {"sat:orbit_state": ["geostationary"]}
    declared = collection_document(contracts["goes-abi"], extent=EXTENT, summaries=orbit, years=[])["stac_extensions"]
    assert declared == ["https://stac-extensions.github.io/sat/v1.2.0/schema.json"]
