"""Through the whole chain: a late older event never overwrites a newer Item, and a quarantined unit is left alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    announce,
    good,
    missing,
    open_pipeline,
    put,
    run_chain,
    take,
    volumes,
    work_until_done,
)

PARTITION = DAY.isoformat()


@pytest.fixture
def restarted(tmp_path: Path, objects: Path, database_url: str) -> Iterator[Callable[[], Pipeline]]:
    """The same deployment, opened by another process each time."""
    opened: list[Pipeline] = []

    def again() -> Pipeline:
        pipeline = open_pipeline(tmp_path / "home", objects, url=database_url)
        opened.append(pipeline)
        return pipeline

    yield again
    for pipeline in opened:
        pipeline.close()


def versions(count: int, *, of: StoredObject | None = None) -> list[StoredObject]:
    """One key, written over and over: each version is sound, with a number of its own (header, bytes 9 to 11)."""
    first = of or volumes(1)[0]
    head, tail = first.announced[:9], first.announced[12:]
    return [good(first.bucket, first.key, head + b"%03d" % (900 + number) + tail) for number in range(count)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing(ObjectEvent):
    """The event of the n-th writing: told by a sequencer against the events' times, or by their times alone."""

    number: int
    sequenced: bool

    @property
    def sequencer(self) -> str:
        return f"00{self.number}"

    def record(self) -> dict[str, Any]:
        found = super().record()
        if not self.sequenced:
            del found["s3"]["object"]["sequencer"]
        return found


def event_of(item: StoredObject, number: int, *, sequenced: bool = True) -> Writing:
    when = datetime(2025, 4, 3, 9 - number if sequenced else number, tzinfo=UTC)
    return Writing(**dataclasses.asdict(item.event(event_time=when)), number=number, sequenced=sequenced)


def shown(pipeline: Pipeline) -> dict[str, str | None]:
    """Version that each Item is of, by object."""
    found = traces.items(Path(pipeline.settings.catalog))
    records = {uri: pipeline.ledger.get(item["properties"]["kfm:wal_id"]) for uri, item in found.items()}
    return {uri: record.object_version for uri, record in records.items() if record}


def fates(pipeline: Pipeline) -> Counter[Status]:
    """How many versions have each status."""
    return Counter(record.status for record in pipeline.ledger.find())


@pytest.mark.clause("BEY-01", "WAL-04")
@pytest.mark.parametrize("sequenced", [True, False], ids=["sequencer", "event time"])
@pytest.mark.parametrize("worked", ["after each arrival", "at the end"])
def test_whatever_order_events_arrive_in_the_item_is_the_newest_version(
    sequenced: bool, worked: str, restarted: Callable[[], Pipeline], objects: Path
) -> None:
    """All events come late: the newest version stands in the bucket when the first one arrives."""
    pipeline = restarted()
    orders = dict(zip(volumes(6), itertools.permutations(range(3)), strict=True))
    written = {first: versions(3, of=first) for first in orders}
    put(objects, [written[first][-1] for first in orders])
    for place in range(3):
        for first, order in orders.items():
            event = event_of(written[first][order[place]], order[place], sequenced=sequenced)
            take(pipeline, announce([event], registry=pipeline.registry))
        if worked == "after each arrival":
            run_chain(pipeline, "nexrad-l2", PARTITION, f"run-{place}", Source.LEDGER)
    work_until_done(pipeline)
    status = {(record.object_uri, record.object_version): record.status.value for record in pipeline.ledger.find()}
    for first, order in orders.items():
        found = [status[first.uri, item.event().etag] for item in written[first]]
        assert found == ["quarantined", "quarantined", "succeeded"], order
    assert shown(pipeline) == {first.uri: written[first][-1].event().etag for first in orders}


@pytest.mark.clause("BEY-01", "WAL-04")
def test_a_late_older_event_changes_no_newer_item_though_its_object_can_be_read_again(
    restarted: Callable[[], Pipeline], objects: Path
) -> None:
    old, new = versions(2)
    pipeline = restarted()
    put(objects, [new])
    take(pipeline, announce([event_of(new, 1)], registry=pipeline.registry))
    work_until_done(pipeline)
    before = traces.catalog_tree(Path(pipeline.settings.catalog))
    # The bucket was put back to the old version, and its first event comes a second time, late.
    put(objects, [old])
    pipeline = restarted()
    report = take(pipeline, announce([event_of(old, 0)], registry=pipeline.registry))
    assert report.created == 1
    work_until_done(pipeline)
    assert traces.catalog_tree(Path(pipeline.settings.catalog)) == before
    assert fates(pipeline) == {Status.SUCCEEDED: 1, Status.QUARANTINED: 1}
    [stale] = pipeline.ledger.find(status=Status.QUARANTINED)
    assert (stale.last_error_code, stale.attempts) == ("stale_event", 0)


@pytest.mark.clause("WSM-14", "WSM-10", "BEY-06")
def test_a_quarantined_unit_is_left_alone_by_everything_that_works_by_itself(
    restarted: Callable[[], Pipeline], objects: Path
) -> None:
    item = missing(volumes(1)[0])
    pipeline = restarted()
    message = announce([item.event()], registry=pipeline.registry)
    take(pipeline, message)
    work_until_done(pipeline)
    [record] = pipeline.ledger.find()
    assert (record.status, record.last_error_code) == (Status.QUARANTINED, IntegrityIssue.MISSING_OBJECT)
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock).find(CaseState.OPEN)
    # It is there now, and everything that could notice runs once more.
    put(objects, [volumes(1)[0]])
    pipeline = restarted()
    for delivery in (2, 3):
        take(pipeline, dataclasses.replace(message, receipt_handle=f"again-{delivery}", receive_count=delivery))
    run_chain(pipeline, "nexrad-l2", PARTITION, "backfill", Source.LISTING)
    pipeline.ledger.release_lost(run_ids=[record.ingest_run_id])
    work_until_done(pipeline)
    assert EvidenceCollector.of(pipeline).collect() == 0
    after = {one.object_version: one for one in pipeline.ledger.find()}
    assert after[record.object_version] == record
    assert QuarantineCases(pipeline.database, clock=pipeline.clock).find(CaseState.OPEN) == cases
    # The message is acknowledged: there is nothing that it could still bring about.
    assert pipeline.deliveries.due_for_deletion(limit=10) == []
