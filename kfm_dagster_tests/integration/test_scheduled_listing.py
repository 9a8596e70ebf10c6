"""A listing starts once per interval despite crashes, and finds overwritten objects."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.demo.samples.isd import isd_samples
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.backfill.days import ACTOR, Backfills
from kfm_dagster.recovery.backfill.progress import BackfillError, DayState, day_progress, find_backfill
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster_tests.databases import BOTH_DATABASES
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import Clock, CrashError, good, put
from kfm_dagster_tests.integration.face import Face, requested_datasets
from kfm_dagster_tests.integration.test_backfill import list_empty_day
from kfm_dagster_tests.transactions import own_tx

DATASET = "surface-obs"
WHY = Decision(actor="ada", reason="wrong stations", change_ref="INC-8")
JUNE = datetime(2025, 6, 10, 5, tzinfo=UTC)
DAY_SECONDS = 86_400


@pytest.fixture
def followed() -> str:
    return f"{DATASET} hrrr"


def scheduled(pipeline: Pipeline, at: datetime) -> Clock:
    """Enable scheduled listings, and return the pipeline's new clock, which shows `at`."""
    pipeline.settings = pipeline.settings.model_copy(update={"scheduled_listings": True})
    pipeline.registry = pipeline.registry.only([DATASET, "hrrr"])
    clock = pipeline.clock = Clock(at)
    return clock


def begin_due(pipeline: Pipeline) -> tuple[str, ...]:
    """Start the listings that are due now."""
    return Backfills(pipeline).begin_due()


def listed(pipeline: Pipeline, backfill_id: str) -> None:
    """Let a backfill list its empty days and end."""
    for request in Backfills(pipeline).advance(listing=(), limit=9).requests:
        list_empty_day(pipeline, request.backfill_id, DATASET, request.day)
    Backfills(pipeline).advance(listing=(), limit=9)
    assert find_backfill(pipeline.database, backfill_id).state is ReplayState.FINISHED


def of_days(pipeline: Pipeline, begun: tuple[str, ...]) -> list[str]:
    return sorted(day.day.isoformat() for backfill_id in begun for day in day_progress(pipeline.database, backfill_id))


@pytest.mark.clause("DAG-05", "OPR-14")
def test_a_listing_starts_once_per_interval_and_waits_for_the_previous_one(pipeline: Pipeline) -> None:
    clock = scheduled(pipeline, JUNE)
    [first] = begin_due(pipeline)
    assert of_days(pipeline, (first,)) == ["2025-01-01"]
    assert begin_due(pipeline) == ()
    clock.forward(19 * 3600 - 1)
    assert begin_due(pipeline) == ()
    # A new interval, but the previous listing has not ended.
    clock.forward(1)
    assert begin_due(pipeline) == ()
    listed(pipeline, first)
    [second] = begin_due(pipeline)
    assert second != first
    listed(pipeline, second)
    # A listing that ended is not restarted in its interval, nor when the clock is set back.
    assert begin_due(pipeline) == ()
    clock.forward(-DAY_SECONDS)
    assert begin_due(pipeline) == ()
    # Missed intervals are not made up for.
    clock.forward(9 * DAY_SECONDS)
    assert len(begin_due(pipeline)) == 1

    backfill = find_backfill(pipeline.database, first)
    assert (backfill.run.decision.actor, backfill.run.decision.reason) == (
        ACTOR,
        f"storage.scheduled_listing of {DATASET}",
    )
    entries = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.REPLAY_STARTED)
    assert {entry.details["replay_run_id"] for entry in entries} >= {first, second}


@pytest.mark.clause("DAG-05")
def test_in_january_the_previous_year_is_listed_too(pipeline: Pipeline) -> None:
    clock = scheduled(pipeline, datetime(2024, 1, 31, tzinfo=UTC))
    assert of_days(pipeline, begin_due(pipeline)) == ["2023-01-01", "2024-01-01"]
    clock.forward(31 * DAY_SECONDS)
    assert begin_due(pipeline) == ()  # January's listings are still running
    clock.now = datetime(2025, 2, 1, tzinfo=UTC)
    assert of_days(pipeline, begin_due(pipeline)) == ["2025-01-01"]


@pytest.mark.clause("BEY-18")
def test_a_retired_dataset_is_listed_until_its_last_day_is_older_than_the_listed_days(pipeline: Pipeline) -> None:
    contract = pipeline.registry[DATASET]
    end = datetime.combine(contract.metadata.retired.since, time(), UTC)
    clock = scheduled(pipeline, end + timedelta(days=contract.storage.scheduled_listing.days_back))
    assert begin_due(pipeline) == ()
    clock.forward(-1)
    assert of_days(pipeline, begin_due(pipeline)) == ["2025-01-01"]


@pytest.mark.clause("DAG-05", "DAG-10")
@BOTH_DATABASES
def test_concurrent_processes_start_only_one_listing(make_pipeline: Callable[..., Pipeline], database_url: str) -> None:
    several = [make_pipeline(home=f"home-{number}", url=database_url) for number in range(4)]
    for pipeline in several:
        scheduled(pipeline, JUNE)
    with ThreadPoolExecutor(len(several)) as threads:
        begun = [listing for listings in threads.map(begin_due, several) for listing in listings]
    assert len(begun) == 1
    assert len(day_progress(several[0].database, begun[0])) == 1


@pytest.mark.clause("DAG-05", "DAG-10")
def test_the_start_of_a_listing_is_atomic_if_its_process_is_killed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled(pipeline, JUNE)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger.log, "record", Mock(side_effect=CrashError))
        with pytest.raises(CrashError):
            begin_due(pipeline)
    [backfill_id] = begin_due(pipeline)
    # If the process dies after it has started the listing, the next process requests the listing's run.
    [request] = Backfills(pipeline).advance(listing=(), limit=1).requests
    assert (request.backfill_id, request.day, request.datasets) == (backfill_id, "2025-01-01", (DATASET,))


@pytest.mark.clause("DAG-05", "WAL-10")
def test_a_listing_is_not_started_if_it_is_off_cancelled_or_replaced_by_a_person_s_backfill(pipeline: Pipeline) -> None:
    clock = scheduled(pipeline, JUNE)
    # Backfills of another dataset or day do not replace the listing.
    for dataset, day in (("hrrr", date(2025, 1, 1)), (DATASET, date(2024, 1, 1))):
        Backfills(pipeline).start(datasets=[dataset], first_day=day, last_day=day, decision=WHY)
    pipeline.ledger.switches.engage(DATASET, WHY)
    assert begin_due(pipeline) == ()
    pipeline.ledger.switches.release(DATASET, WHY)
    pipeline.settings = pipeline.settings.model_copy(update={"scheduled_listings": False})
    assert begin_due(pipeline) == ()
    scheduled(pipeline, JUNE)
    [backfill_id] = begin_due(pipeline)
    ReplayEngine(pipeline=pipeline).stop(backfill_id, WHY)
    assert begin_due(pipeline) == ()
    pipeline.clock = clock
    clock.forward(DAY_SECONDS)
    # A person's backfill of the day replaces the listing.
    Backfills(pipeline).start(datasets=[DATASET], first_day=date(2025, 1, 1), last_day=date(2025, 1, 1), decision=WHY)
    assert begin_due(pipeline) == ()


@pytest.mark.clause("DAG-05")
def test_a_backfill_lists_only_days_that_objects_belong_to(pipeline: Pipeline) -> None:
    def backfill(first: date, last: date) -> list[str]:
        begun = Backfills(pipeline).start(datasets=[DATASET], first_day=first, last_day=last, decision=WHY)
        return of_days(pipeline, (begun.backfill_id,))

    assert backfill(date(2023, 7, 1), date(2025, 1, 1)) == ["2024-01-01", "2025-01-01"]
    with pytest.raises(BackfillError, match=f"{DATASET} has no object of these days") as refused:
        backfill(date(2025, 3, 1), date(2025, 4, 1))
    assert str(refused.value.expected).startswith("days that include 2025-01-01")


@pytest.mark.clause("DAG-05", "OPR-14", "BEY-14")
def test_scheduled_listings_run_and_an_overwritten_object_gives_a_new_version_of_its_item(
    face: Face, objects: Path
) -> None:
    pipeline = face.pipeline
    clock = scheduled(pipeline, JUNE)
    rewrite(objects, JUNE.date() - timedelta(days=1))
    assert work(face) == [("2025-01-01", DATASET)]
    first, items = traces.records(pipeline), traces.catalog_items(pipeline)
    assert {record.status for record in first.values()} == {Status.SUCCEEDED}
    assert {record.lane for record in first.values()} == {Lane.BULK}
    assert sorted(item["id"] for item in items.values()) == [f"A0000{number}-0000{number}-2025" for number in range(3)]
    assert {item["geometry"]["type"] for item in items.values()} == {"Point"}
    assert {item["properties"]["start_datetime"] for item in items.values()} == {"2025-01-01T00:00:00.000000Z"}

    # Without changes, the listing finds only known objects.
    clock.forward(DAY_SECONDS)
    assert work(face) == [("2025-01-01", DATASET)]
    assert traces.records(pipeline) == first
    assert traces.catalog_items(pipeline) == items

    # One station's object is overwritten.
    rewrite(objects, JUNE.date(), stations=1)
    clock.forward(DAY_SECONDS)
    assert work(face) == [("2025-01-01", DATASET)]
    assert len(own_tx(pipeline.ledger).find(limit=100)) == 4
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 3}
    after = traces.catalog_items(pipeline)
    assert [uri for uri in items if after[uri] != items[uri]] == ["s3://noaa-isd-pds/data/2025/A00000-00000-2025.gz"]
    changed, before = (by_href["s3://noaa-isd-pds/data/2025/A00000-00000-2025.gz"] for by_href in (after, items))
    assert changed["properties"]["isd:records"] == before["properties"]["isd:records"] + 4
    assert changed["properties"]["end_datetime"] == "2025-06-10T18:00:00.000000Z"


def rewrite(objects: Path, until: date, *, stations: int = 3) -> None:
    put(objects, [good(*sample) for sample in isd_samples(until, stations)])


def work(face: Face) -> list[tuple[str, str]]:
    """Launch the backfill sensor's requests until all is listed; return days and datasets."""
    requests = face.work("nodd_due")
    for request in requests:
        assert (request.tags["kfm/lane"], request.tags["kfm/source"]) == ("bulk", "listing")
        config = {"source": "LISTING", "lane": "BULK", "backfill_id": request.tags["kfm/backfill"]}
        assert [op["config"] for op in request.run_config["ops"].values()] == [config] * len(request.run_config["ops"])
    progress = [day_progress(face.pipeline.database, backfill) for backfill in _backfills(face)]
    assert {day.state for days in progress for day in days} == {DayState.LISTED}
    return [(str(request.partition_key), ",".join(requested_datasets(request))) for request in requests]


def _backfills(face: Face) -> list[str]:
    with face.pipeline.database.snapshot() as view:
        return [row.replay_run_id for row in view.run("replay.runs", limit=10, backfills=True)]
