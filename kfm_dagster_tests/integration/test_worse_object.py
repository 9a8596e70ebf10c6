"""A version of an object that is worse than the one before it: quarantined, the Item stays, an alert says so."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, announce, good, put, run_chain, take
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("OPR-20")

BEGIN = datetime.combine(DAY, time(6), UTC)
GOOD = {
    "goes-abi": ("noaa-goes19", *make_goes_abi(product="ABI-L1b-RadC", start=BEGIN, satellite=19, band=13)),
    "hrrr": ("noaa-hrrr-bdp-pds", *make_hrrr(run=BEGIN, lead=7)[:2]),
    "nexrad-l2": ("unidata-nexrad-level2", *make_nexrad_level2(site="KICT", start=BEGIN)),
}


def ingest(pipeline: Pipeline, objects: Path, dataset: str, content: bytes, *, hour: int) -> None:
    """Store a version of the dataset's object, announce it, and run what is pending."""
    bucket, key, _ = GOOD[dataset]
    put(objects, [good(bucket, key, content)])
    event = ObjectEvent(
        bucket=bucket,
        key=key,
        size=len(content),
        etag=hashlib.md5(content).hexdigest(),
        event_time=datetime(2025, 4, 3, hour, tzinfo=UTC),
    )
    take(pipeline, announce([event], registry=pipeline.registry))
    run_chain(pipeline, dataset, DAY.isoformat(), f"run-{hour}", Source.LEDGER)


def firing(pipeline: Pipeline) -> list[tuple[str, str, str]]:
    evaluator = pipeline.alert_evaluator()
    evaluator.evaluate()
    return [
        (one.subject, one.place, one.run_id or "")
        for one in evaluator.store.listed()
        if one.rule == AlertRule.WORSE_OBJECT
    ]


@pytest.mark.parametrize("dataset", GOOD)
def test_a_cut_version_is_quarantined_and_the_item_of_the_whole_one_stays_until_another_is_whole(
    pipeline: Pipeline, objects: Path, dataset: str
) -> None:
    whole = GOOD[dataset][2]
    ingest(pipeline, objects, dataset, whole, hour=1)
    catalog = Path(pipeline.settings.catalog)
    before = trees.walk(catalog)
    assert firing(pipeline) == []

    ingest(pipeline, objects, dataset, whole[:-50], hour=2)
    assert trees.walk(catalog) == before
    unit = next(iter(traces.records(pipeline).values())).wal_id
    first, second = own_tx(pipeline.ledger).versions(unit)
    assert (first.status, second.status) == (Status.SUCCEEDED, Status.QUARANTINED)
    record = own_tx(pipeline.ledger).get(second.wal_id)
    assert (record.attempts, record.last_error_code) == (1, "truncated_object")
    assert firing(pipeline) == [(dataset, "truncated_object", "run-2")]
    if dataset == "hrrr":
        again = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
        ingest(pipeline, objects, dataset, again, hour=3)
        assert firing(pipeline) == []
        (item,) = traces.items(catalog).values()
        assert item["assets"]["data"]["file:checksum"] == "d50110" + hashlib.md5(again).hexdigest()


def test_a_bad_object_without_a_good_item_is_no_such_alert(pipeline: Pipeline, objects: Path) -> None:
    ingest(pipeline, objects, "hrrr", GOOD["hrrr"][2][:-50], hour=1)
    assert {record.status for record in traces.records(pipeline).values()} == {Status.QUARANTINED}
    assert firing(pipeline) == []
