"""Items of stations through the chain: a Point, no geometry where no report names a place, and a map of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.defs.display import footprint_picture
from kfm_dagster.demo.samples.isd import isd_samples
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import good, put, run_chain


@pytest.mark.clause("OPR-08", "OPR-14", "OPR-17")
def test_a_station_is_a_point_and_one_whose_place_nobody_knows_has_none(
    make_pipeline: Callable[..., Pipeline], objects: Path
) -> None:
    first, (bucket, key, lost), last = isd_samples(date(2025, 1, 3), 3)
    lines = [line[:28] + b"+99999+999999" + line[41:] for line in gzip.decompress(lost).splitlines(keepends=True)]
    put(objects, [good(*first), good(bucket, key, gzip.compress(b"".join(lines))), good(*last)])
    pipeline, drawn = make_pipeline(), []

    def draw(batch: StageBatch) -> None:
        if batch.state.dataset_id.endswith(".metadata_extract"):
            drawn.append(footprint_picture(batch.envelopes))

    run_chain(pipeline, "surface-obs", "2025-01-01", "run", seen=draw)
    assert {record.status for record in traces.records(pipeline).values()} == {Status.SUCCEEDED}
    items = traces.items(Path(pipeline.settings.catalog))
    assert [validate_item(item) for item in items.values()] == [[], [], []]
    placeless = items.pop(f"s3://{bucket}/{key}")
    assert (placeless["geometry"], "bbox" in placeless) == (None, False)
    assert [issue["code"] for issue in placeless["properties"]["kfm:issues"]] == ["missing_geolocation"]
    for item in items.values():
        longitude, latitude = item["geometry"]["coordinates"]
        assert (item["geometry"]["type"], item["bbox"]) == ("Point", [longitude, latitude, longitude, latitude])
        assert "kfm:issues" not in item["properties"]
    [picture] = drawn
    assert picture is not None
    assert "Footprints: 2; distinct outlines: 2; drawn: 2." in picture
    tree = traces.catalog_tree(Path(pipeline.settings.catalog))
    [extent] = tree["surface-obs/collection.json"]["extent"]["spatial"]["bbox"]
    longitudes = [item["geometry"]["coordinates"][0] for item in items.values()]
    assert (extent[0], extent[2]) == (min(longitudes), max(longitudes))
