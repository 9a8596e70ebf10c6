"""What the validators refuse, that they fetch nothing, and what a Collection says when there is too much to list."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import pytest

from kfm_dagster.catalog import validation
from kfm_dagster.catalog.documents import MAX_SUMMARY_VALUES, collection_document
from kfm_dagster.catalog.index import Extent
from kfm_dagster.catalog.validation import MAX_REASONS, REASON_LIMIT, validate_document, validate_item
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster_tests.catalog.envelopes import candidates, goes


@pytest.fixture
def item(contracts: ContractRegistry) -> dict[str, Any]:
    (candidate,) = candidates(contracts, [goes()])
    return copy.deepcopy(dict(candidate.item))


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
    # what a schema cannot say
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
        lacking = {**item, "properties": {key: one for key, one in item["properties"].items() if key != name}}
        assert any(name in text for text in validate_item(lacking)), name


@pytest.mark.clause("OPR-08")
def test_what_is_no_stac_document_is_refused_and_no_schema_is_fetched(item: dict[str, Any]) -> None:
    for document in [{}, {"type": "Feature"}, {"type": "Catalog"}, {"type": "Nothing"}]:
        assert validate_document(document) != []
        assert validate_item(document) != []
    with pytest.raises(jsonschema_rs.ValidationError, match="Retrieval is disabled"):
        validation._compile({"$ref": "https://schemas.stacspec.org/v9.9.9/nothing.json"}, None)
    # A prefix of an unknown dataset needs no code.
    item["properties"] |= {"buoy:station": "46042", "buoy:depths": [1.0, 2.5]}
    assert validate_item(item) == []


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
