"""A sidecar completes the Item of its object once, whichever of the two is announced first."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.ingest.nodes import MetadataExtract, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.reports import ObjectVersion
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    CrashError,
    Failpoint,
    announce,
    deliver,
    good,
    notify,
    put,
    raw_message,
    run_chain,
    take,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("OPR-18")

BUCKET = "noaa-hrrr-bdp-pds"
KEY, CONTENT, INDEX = make_hrrr(run=datetime.combine(DAY, time(6), UTC), lead=7)
DATA = good(BUCKET, KEY, CONTENT)
SIDECAR = good(BUCKET, f"{KEY}.idx", INDEX.encode())


def item_of(pipeline: Pipeline) -> dict[str, Any]:
    (item,) = traces.catalog_items(pipeline).values()
    return item


def run(pipeline: Pipeline, run_id: str, **options: Any) -> None:
    run_chain(pipeline, "hrrr", DAY.isoformat(), run_id, Source.LEDGER, **options)


def versions(pipeline: Pipeline) -> list[ObjectVersion]:
    record = next(iter(traces.records(pipeline).values()))
    return own_tx(pipeline.ledger).versions(record.wal_id)


def assert_complete(item: dict[str, Any]) -> None:
    assert item["assets"]["index"]["href"] == f"{DATA.uri}.idx"
    assert item["properties"]["grib:variables"]
    assert "kfm:issues" not in item["properties"]


def ingest_without_sidecar(pipeline: Pipeline) -> dict[str, Any]:
    deliver(pipeline, DATA)
    run(pipeline, "first")
    item = item_of(pipeline)
    assert [issue["code"] for issue in item["properties"]["kfm:issues"]] == ["sidecar_missing"]
    assert "index" not in item["assets"]
    return item


def test_a_late_sidecar_completes_the_item_and_the_unit_stays_succeeded(pipeline: Pipeline) -> None:
    before = ingest_without_sidecar(pipeline)
    unit = before["properties"]["kfm:wal_id"]
    history = own_tx(pipeline.ledger).history(unit)

    report = deliver(pipeline, SIDECAR)
    assert (report.completions, report.created) == (1, 0)
    (waiting,) = pipeline.ledger.pending_by_partition()
    assert (waiting.dataset, waiting.units, waiting.lane) == ("hrrr", 1, Lane.BULK)
    run(pipeline, "second")

    item = item_of(pipeline)
    assert_complete(item)
    assert item["id"] == before["id"]
    assert item["assets"]["data"]["file:checksum"] == before["assets"]["data"]["file:checksum"]
    # The unit is unchanged; the completion has a record of its own.
    assert own_tx(pipeline.ledger).history(unit) == history
    completion = item["properties"]["kfm:wal_id"]
    assert {version.wal_id: (version.status, version.superseded_by) for version in versions(pipeline)} == {
        unit: (Status.SUCCEEDED, None),
        completion: (Status.SUCCEEDED, None),
    }
    record = own_tx(pipeline.ledger).get(completion)
    assert (record.stac_status, record.metadata_status, record.integrity_status) == ("updated", "ok", "ok")
    assert record.object_version == f"{DATA.event().etag} .idx={SIDECAR.event().etag}"
    assert [entry.to_status for entry in own_tx(pipeline.ledger).history(completion)] == [
        "pending",
        "in_progress",
        "succeeded",
    ]
    # Lineage has the unit and the completion once each, and no governance decision is recorded.
    published = traces.events(Path(pipeline.settings.lineage))
    traces.assert_once(published)
    assert sum(kind == "COMPLETE" for kind, *_ in published) == 2
    assert [link.state for link in pipeline.lineage.links_of(completion)] == ["published", "published"]
    assert own_tx(pipeline.ledger.log).entries(limit=10) == []


@pytest.mark.clause("BEY-04")
def test_an_index_of_an_earlier_revision_is_suspect_until_it_is_overwritten(pipeline: Pipeline, objects: Path) -> None:
    put(objects, [DATA])
    put(objects, [SIDECAR], written=datetime.now(UTC) - timedelta(days=1))
    notify(pipeline, DATA, SIDECAR)
    run(pipeline, "first")
    before = item_of(pipeline)
    assert [issue["code"] for issue in before["properties"]["kfm:issues"]] == ["sidecar_outdated"]
    record = own_tx(pipeline.ledger).get(before["properties"]["kfm:wal_id"])
    assert (record.status, record.metadata_status) == (Status.SUCCEEDED, "suspect")

    assert deliver(pipeline, SIDECAR, name="written again").completions == 1
    run(pipeline, "second")
    assert_complete(item_of(pipeline))


def test_the_order_of_announcements_changes_nothing(pipeline: Pipeline, objects: Path) -> None:
    put(objects, [DATA, SIDECAR])
    assert notify(pipeline, SIDECAR).completions == 0
    assert notify(pipeline, DATA, SIDECAR).completions == 0
    assert notify(pipeline, SIDECAR, name="while it waits").completions == 0
    run(pipeline, "first")
    assert_complete(item_of(pipeline))
    assert notify(pipeline, SIDECAR, name="of a complete Item").completions == 0
    assert len(versions(pipeline)) == 1


def test_the_removal_of_a_sidecar_gives_no_completion_and_repeated_announcements_give_one(
    pipeline: Pipeline, objects: Path
) -> None:
    ingest_without_sidecar(pipeline)
    message = announce([SIDECAR.event()], registry=pipeline.registry)
    removed = message.body.replace("ObjectCreated:Put", "ObjectRemoved:Delete")
    assert removed != message.body
    assert take(pipeline, raw_message(removed, name="removed")).completions == 0
    assert pipeline.ledger.pending_by_partition() == []
    put(objects, [SIDECAR])
    assert [notify(pipeline, SIDECAR, name=name).completions for name in ("one", "two")] == [1, 0]
    rewritten = good(BUCKET, SIDECAR.key, SIDECAR.announced + b"\n")
    assert notify(pipeline, rewritten, name="rewritten while it waits").completions == 0
    run(pipeline, "second")
    after = item_of(pipeline)
    assert_complete(after)
    assert notify(pipeline, SIDECAR, name="three").completions == 0
    assert notify(pipeline, rewritten, name="rewritten").completions == 0
    work_until_done(pipeline)
    assert item_of(pipeline) == after
    assert len(versions(pipeline)) == 2


def test_a_sidecar_that_arrives_while_its_object_is_read_completes_the_item(pipeline: Pipeline) -> None:
    deliver(pipeline, DATA)
    with pytest.raises(CrashError):
        run(pipeline, "first", dies_at=Failpoint(operator=MetadataExtract.operator, point="committed"))
    assert deliver(pipeline, SIDECAR).completions == 1
    run(pipeline, "first")
    assert "index" not in item_of(pipeline)["assets"]
    run(pipeline, "second")
    assert_complete(item_of(pipeline))


def test_a_sidecar_of_another_object_does_not_change_the_item(pipeline: Pipeline) -> None:
    before = ingest_without_sidecar(pipeline)
    other_run = make_hrrr(run=datetime.combine(DAY, time(7), UTC), lead=7)[2]
    wrong = good(BUCKET, SIDECAR.key, other_run.encode())
    assert deliver(pipeline, wrong).completions == 1
    work_until_done(pipeline)
    assert item_of(pipeline) == before
    assert sorted(version.status for version in versions(pipeline)) == [Status.QUARANTINED, Status.SUCCEEDED]
    # The object's own sidecar.
    assert deliver(pipeline, SIDECAR).completions == 1
    work_until_done(pipeline)
    assert_complete(item_of(pipeline))


def test_a_newer_version_of_the_object_supersedes_a_pending_completion(pipeline: Pipeline) -> None:
    ingest_without_sidecar(pipeline)
    deliver(pipeline, SIDECAR)
    later = datetime(2025, 4, 4, tzinfo=UTC)
    notify(pipeline, good(BUCKET, KEY, CONTENT + b"later"), event_time=later)
    assert sorted(version.status for version in versions(pipeline)) == [
        Status.PENDING,
        Status.QUARANTINED,
        Status.SUCCEEDED,
    ]
