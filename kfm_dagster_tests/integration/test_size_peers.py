"""An object whose size is far from its recent peers': suspect, for the same reason whenever it is looked at again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_comparison import compare_run
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, announce, good, put, run_chain, take
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-04", "WAL-06")

BUCKET = "noaa-hrrr-bdp-pds"
KEY, CONTENT, INDEX = make_hrrr(run=datetime.combine(DAY, time(6), UTC), lead=7)
PERSON = Decision(actor="person", reason="once more", change_ref="CHG-1")


def announce_peers(pipeline: Pipeline, hours: range, *, size: int) -> None:
    """Announce objects of the same lead of runs of the day before; what becomes of them is nobody's business here."""
    events = []
    for hour in hours:
        run = datetime.combine(DAY - timedelta(days=1), time(hour), UTC)
        key = f"hrrr.{run:%Y%m%d}/conus/hrrr.t{run:%H}z.wrfsfcf07.grib2"
        etag = hashlib.md5(f"{size} {key}".encode()).hexdigest()
        events.append(ObjectEvent(bucket=BUCKET, key=key, size=size, etag=etag, event_time=run))
    take(pipeline, announce(events, registry=pipeline.registry))


def ingest(pipeline: Pipeline, objects: Path) -> str:
    data = good(BUCKET, KEY, CONTENT)
    put(objects, [data, good(BUCKET, f"{KEY}.idx", INDEX.encode())])
    take(pipeline, announce([data.event()], registry=pipeline.registry))
    run_chain(pipeline, "hrrr", DAY.isoformat(), "first", Source.LEDGER)
    (item,) = traces.items(Path(pipeline.settings.catalog)).values()
    return str(item["properties"]["kfm:wal_id"])


def issues(pipeline: Pipeline) -> list[Mapping[str, Any]]:
    (item,) = traces.items(Path(pipeline.settings.catalog)).values()
    return list(item["properties"].get("kfm:issues", ()))


def statuses(pipeline: Pipeline, wal_id: str) -> tuple[Any, ...]:
    record = own_tx(pipeline.ledger).get(wal_id)
    assert record is not None
    return (record.status, record.integrity_status, record.metadata_status, record.provenance_status)


def test_a_small_object_is_suspect_and_stays_so_for_the_same_reason(pipeline: Pipeline, objects: Path) -> None:
    size = len(CONTENT)
    announce_peers(pipeline, range(8), size=2 * size)
    unit = ingest(pipeline, objects)
    (issue,) = issues(pipeline)
    assert (issue["code"], issue["severity"]) == ("size_unlike_peers", "suspect")
    usual = f"the middle half of 8 peers has {2 * size} to {2 * size}"
    assert issue["message"] == f"{size} bytes, expected {-(-4 * size // 3)} to {3 * size}: {usual}"
    assert statuses(pipeline, unit) == (Status.SUCCEEDED, "suspect", "ok", "ok")
    before = traces.items(Path(pipeline.settings.catalog))

    # By now it would be like its peers; what it was admitted with says otherwise, and that is what counts.
    announce_peers(pipeline, range(8, 24), size=size)
    found = list(compare_run(pipeline, dataset="hrrr", run_id="first"))
    assert found
    assert not [one for one in found if one.keys_differing or one.results_differing]
    version = own_tx(pipeline.ledger).history(unit)[-1].version  # type: ignore[arg-type]
    own_tx(pipeline.ledger).override(
        {unit: version},  # type: ignore[dict-item]
        from_status=Status.SUCCEEDED,
        action=GovernanceAction.REPEAT,
        decision=PERSON,
    )
    run_chain(pipeline, "hrrr", DAY.isoformat(), "second", Source.LEDGER)
    assert statuses(pipeline, unit) == (Status.SUCCEEDED, "suspect", "ok", "ok")
    assert traces.items(Path(pipeline.settings.catalog)) == before
    assert pipeline.ledger.mismatches(limit=10) == []
