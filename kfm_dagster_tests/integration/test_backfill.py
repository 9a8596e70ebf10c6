"""Backfills ingest missing and failed units and do not change succeeded units, also after crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope, Lane
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.samples.isd import isd_samples
from kfm_dagster.demo.samples.oisst import oisst_samples
from kfm_dagster.errors import ContractError, RefusedError
from kfm_dagster.followers.geoparquet.search import SearchCriteria, search
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest import discovery
from kfm_dagster.ingest.discovery import DayListing, MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import parse_listed
from kfm_dagster.recovery.backfill.days import AdvanceReport, Backfills
from kfm_dagster.recovery.backfill.progress import (
    Backfill,
    BackfillError,
    DayProgress,
    DayState,
    day_progress,
    days_left_out,
    find_backfill,
    listed_backfills,
)
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.recovery.replay.selection import selection_from
from kfm_dagster.settings import Environment
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.objects import ListedObject
from kfm_dagster.storage.publisher import open_publisher
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    DAY,
    assert_conserved,
    good,
    node,
    put,
    step,
)
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.moments import DeathError
from kfm_dagster_tests.transactions import own_tx

WHY = Decision(actor="ada", reason="outage of 2 April", change_ref="CHG-1")
CHUNK, OBJECTS, LIMIT = 20, 48, 5
"""Objects per chunk of a listing; objects of the day, in three chunks; units that a run claims at most."""
BEGINS = date(1991, 6, 1)
"""The first day of DATASET (storage.first_day)."""


@pytest.fixture
def followed() -> str:
    return f"{DATASET} hrrr ocean surface-obs"


def start(pipeline: Pipeline, first: date = DAY, last: date = DAY, *datasets: str) -> Backfill:
    return Backfills(pipeline).start(datasets=datasets or (DATASET,), first_day=first, last_day=last, decision=WHY)


def objects_of_a_day(number: int) -> Iterator[ListedObject]:
    """Yield objects of a listing, one volume a second; they have no content."""
    for index in range(number):
        start = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC) + timedelta(seconds=index)
        yield ListedObject(
            uri=f"s3://unidata-nexrad-level2/{start:%Y/%m/%d}/KTLX/KTLX{start:%Y%m%d_%H%M%S}_V06",
            size=1000 + index,
            etag=f"{index:032x}",
            last_modified=start + timedelta(minutes=5),
        )


def list_the_day(pipeline: Pipeline, run_id: str, *, backfill_id: str | None = None, limit: int = LIMIT) -> StageBatch:
    """Run the first node of a listing run."""
    account = None
    if backfill_id is not None:
        account = DayListing(clock=pipeline.clock, backfill_id=backfill_id, dataset=DATASET, day=DAY.isoformat())
    listing = node(pipeline, MessageParse, run_id, source=Source.LISTING, limit=limit, lane=Lane.BULK, account=account)
    return step(pipeline, listing)


def the_day(pipeline: Pipeline, backfill: Backfill) -> DayProgress:
    [day] = day_progress(pipeline.database, backfill.backfill_id)
    return day


def counts(day: DayProgress) -> tuple[int, int, int, int]:
    return (day.listed, day.created, day.requeued, day.known)


def versions(pipeline: Pipeline) -> dict[str, int]:
    return {record.wal_id: record.version for record in own_tx(pipeline.ledger).find(limit=10 * OBJECTS)}


@pytest.fixture
def bucket(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fill a bucket with OBJECTS objects; return a list of how many were listed when a chunk was recorded."""
    listed = [0]
    entered: list[int] = []

    def list_day(contract: DatasetContract, day: date, **_: Any) -> Iterator[ListedObject]:
        listed[0] = 0
        for entry in objects_of_a_day(OBJECTS):
            listed[0] += 1
            yield entry

    ensure = pipeline.ledger.ensure

    def watching(units: Any, *, tx: Any, **more: Any) -> Any:
        entered.append(listed[0])
        return ensure(units, tx=tx, **more)

    monkeypatch.setattr(discovery, "LISTING_CHUNK", CHUNK)
    monkeypatch.setattr(pipeline.objects, "list_day", list_day)
    monkeypatch.setattr(pipeline.ledger, "ensure", watching)
    return entered


@pytest.mark.clause("DAG-05", "WAL-04")
def test_a_busy_day_is_recorded_in_chunks_and_known_units_are_unchanged(pipeline: Pipeline, bucket: list[int]) -> None:
    known_units = [parse_listed(pipeline.registry.grammars[DATASET], listed) for listed in objects_of_a_day(30)]
    units = [unit for unit in known_units if unit is not None]
    own_tx(pipeline.ledger).ensure(units)
    claimed = own_tx(pipeline.ledger).claim(dataset=DATASET, partition=DAY.isoformat(), run_id="earlier", limit=20)
    done, bad = claimed[:10], claimed[10:]
    own_tx(pipeline.ledger).settle([*map(finished, done), *map(failed, bad)], run_id="earlier")
    waiting = {unit.wal_id for unit in units} - {unit.wal_id for unit in claimed}
    before = versions(pipeline)
    bucket.clear()

    backfill = start(pipeline)
    [request] = Backfills(pipeline).advance(listing=(), limit=1).requests
    assert (request.day, request.datasets) == (DAY.isoformat(), (DATASET,))
    batch = list_the_day(pipeline, "first", backfill_id=backfill.backfill_id)

    assert bucket == [CHUNK, 2 * CHUNK, OBJECTS]  # the listing is never more than a chunk ahead of the ledger
    day = the_day(pipeline, backfill)
    assert (day.state, *counts(day)) == (DayState.LISTED, OBJECTS, OBJECTS - 30, 10, 20)
    assert len(batch.envelopes) == LIMIT  # further runs claim the other units
    records = {record.wal_id: record for record in own_tx(pipeline.ledger).find(limit=10 * OBJECTS)}
    assert Counter(record.lane for record in records.values()) == {Lane.BULK: OBJECTS - 20, Lane.LIVE: 20}
    assert {records[unit.wal_id].version - before[unit.wal_id] for unit in done} == {0}
    assert {records[wal_id].version - before[wal_id] for wal_id in waiting} == {0}
    assert {(records[unit.wal_id].replay_reason, records[unit.wal_id].lane) for unit in bad} == {
        ("backfill", Lane.BULK)
    }
    assert {unit.lane for unit in batch.envelopes} == {Lane.BULK}

    # Repeating the backfill lists the day again and changes nothing.
    after = versions(pipeline)
    again = start(pipeline)
    pipeline.settings = pipeline.settings.model_copy(update={"max_in_flight_units": 10 * OBJECTS})
    Backfills(pipeline).advance(listing=(), limit=1)
    list_the_day(pipeline, "second", backfill_id=again.backfill_id, limit=1)
    assert counts(the_day(pipeline, again)) == (OBJECTS, 0, 0, OBJECTS)
    changed = {wal_id for wal_id, version in versions(pipeline).items() if version != after[wal_id]}
    assert len(changed) == 1  # the unit that the run claimed


@pytest.mark.clause("DAG-05", "DAG-10")
def test_a_killed_listing_restarts_and_counts_each_object_once(
    pipeline: Pipeline, bucket: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill = start(pipeline)
    Backfills(pipeline).advance(listing=(), limit=1)

    def dies(*_: object, **__: object) -> Iterator[ListedObject]:
        yield from objects_of_a_day(CHUNK + 9)
        raise DeathError

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.objects, "list_day", dies)
        with pytest.raises(DeathError):
            list_the_day(pipeline, "dies", backfill_id=backfill.backfill_id)
    assert_conserved(pipeline)
    in_flight = pipeline.ledger.in_flight(today=pipeline.clock().date())
    assert (the_day(pipeline, backfill).state, in_flight) == (DayState.REQUESTED, CHUNK)

    pipeline.clock.forward(3600)
    [request] = Backfills(pipeline).advance(listing=(), limit=1).requests
    assert request.run_key.endswith("/2")
    list_the_day(pipeline, "second", backfill_id=backfill.backfill_id)
    day = the_day(pipeline, backfill)
    assert (day.state, *counts(day)) == (DayState.LISTED, OBJECTS, OBJECTS, 0, 0)
    assert {record.attempts for record in own_tx(pipeline.ledger).find(limit=10 * OBJECTS)} == {0, 1}


def ask(pipeline: Pipeline, *, listing: Any = (), limit: int = 1, later: float = 0) -> AdvanceReport:
    pipeline.clock.forward(later)
    return Backfills(pipeline).advance(listing=listing, limit=limit)


def days(report: AdvanceReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(request.day, request.datasets) for request in report.requests]


@pytest.mark.clause("DAG-05")
def test_days_are_requested_in_order_each_for_all_datasets_together(pipeline: Pipeline) -> None:
    backfill = start(pipeline, date(2025, 2, 27), date(2025, 3, 1), "hrrr", DATASET)
    requested = []
    listing: set[tuple[str, str]] = set()
    for _ in range(3):
        [request] = ask(pipeline, listing=listing).requests
        requested.append((request.day, request.datasets))
        listing = {(backfill.backfill_id, request.day)}
        assert ask(pipeline, listing=listing, later=3600).requests == ()
        for dataset in request.datasets:
            list_empty_day(pipeline, backfill.backfill_id, dataset, request.day)
        listing = set()
    assert requested == [(day, ("hrrr", DATASET)) for day in ("2025-02-27", "2025-02-28", "2025-03-01")]
    assert find_backfill(pipeline.database, backfill.backfill_id).state is ReplayState.RUNNING
    ask(pipeline)
    assert find_backfill(pipeline.database, backfill.backfill_id).state is ReplayState.FINISHED
    assert ask(pipeline).reason == "no backfill is running"


def list_empty_day(pipeline: Pipeline, backfill_id: str, dataset: str, day: str) -> None:
    """List a day without objects."""
    with pipeline.database.transaction() as tx:
        key = {"backfill_id": backfill_id, "dataset": dataset, "day": day}
        assert tx.run("backfill.open_listing", key).one_or_none() is not None
        tx.run("backfill.close_listing", key, at="2026-01-01T00:00:00.000000Z", left_out="{}")


@pytest.mark.clause("BEY-14", "DAG-05")
def test_no_further_day_is_listed_while_bulk_units_use_up_their_share(pipeline: Pipeline) -> None:
    pipeline.settings = pipeline.settings.model_copy(update={"max_in_flight_units": 20})
    units = [
        unit for listed in objects_of_a_day(11) if (unit := parse_listed(pipeline.registry.grammars[DATASET], listed))
    ]
    start(pipeline, DAY, DAY + timedelta(days=9))
    own_tx(pipeline.ledger).ensure(units[:1])  # live work does not count
    own_tx(pipeline.ledger).ensure(units[1:10], lane=Lane.BULK)
    assert [len(ask(pipeline, limit=3).requests) for _ in range(4)] == [1, 1, 1, 0]
    own_tx(pipeline.ledger).ensure(units[10:], lane=Lane.BULK)
    report = ask(pipeline, limit=9)
    assert report.requests == ()
    assert report.reason == "10 bulk units are in flight, KFM_LIVE_SHARE allows 10; the next day is listed later"


@pytest.mark.clause("DAG-05")
def test_the_day_of_a_lost_run_is_requested_again_after_growing_pauses_before_further_days(pipeline: Pipeline) -> None:
    backfill = start(pipeline, DAY, DAY + timedelta(days=1))
    keys = [*(request.run_key for request in ask(pipeline).requests)]
    for pause in (10, 20, 40, 80, 160, 320, 600, 600):
        assert ask(pipeline, later=pause - 1).requests == ()
        assert ask(pipeline, listing={(backfill.backfill_id, DAY.isoformat())}, later=1).requests == ()
        keys += [request.run_key for request in ask(pipeline).requests]
    assert [key.rsplit("/", 3)[1::2] for key in keys] == [[DAY.isoformat(), str(number)] for number in range(1, 10)]


@pytest.mark.clause("DAG-05")
def test_no_day_is_requested_while_the_limit_of_listings_is_reached(pipeline: Pipeline) -> None:
    backfills = [start(pipeline)]
    assert len(ask(pipeline).requests) == 1
    listing = {(backfills[0].backfill_id, DAY.isoformat())}
    assert ask(pipeline, listing=listing, limit=2, later=3600).requests == ()
    backfills += [start(pipeline) for _ in range(3)]
    listing = {(backfill.backfill_id, "2025-01-01") for backfill in backfills[:2]}
    assert ask(pipeline, listing=listing, limit=1).requests == ()


@pytest.mark.clause("DAG-05")
def test_a_backfill_ends_when_no_bulk_unit_of_its_days_is_pending(pipeline: Pipeline) -> None:
    backfill, ledger = start(pipeline), pipeline.ledger
    [unit, live, later] = [
        envelope(number, time_range_start=datetime.combine(DAY + timedelta(days=number // 2), time(6, number), UTC))
        for number in range(3)
    ]
    other_unit = envelope(
        3, dataset="hrrr", object_uri="s3://noaa-hrrr-bdp-pds/a.grib2", time_range_start=unit.event_time
    )
    own_tx(ledger).ensure([unit, later, other_unit], lane=Lane.BULK)
    own_tx(ledger).ensure([live])

    def worked(end: Callable[[Envelope], Envelope]) -> None:
        claimed = own_tx(ledger).claim(
            dataset=DATASET, partition=DAY.isoformat(), run_id="run", limit=1, wal_ids=[unit.wal_id]
        )
        assert is_over() is False
        own_tx(ledger).settle([end(unit) for unit in claimed], run_id="run")

    def is_over() -> bool:
        ask(pipeline)
        return find_backfill(pipeline.database, backfill.backfill_id).state is ReplayState.FINISHED

    assert ask(pipeline).requests != ()
    list_empty_day(pipeline, backfill.backfill_id, DATASET, DAY.isoformat())
    assert is_over() is False
    worked(failed)
    assert is_over() is False
    own_tx(ledger).requeue([unit.wal_id])
    worked(finished)
    unlisted = start(pipeline, DAY - timedelta(days=9), DAY - timedelta(days=9))
    assert is_over() is True
    assert find_backfill(pipeline.database, unlisted.backfill_id).state is ReplayState.RUNNING


def test_pending_in_progress_and_failed_units_of_a_day_count_as_open() -> None:
    units = {Status.PENDING: 1, Status.IN_PROGRESS: 2, Status.FAILED: 4, Status.SUCCEEDED: 8, Status.QUARANTINED: 16}
    day = DayProgress(
        dataset=DATASET, day=DAY, state=DayState.LISTED, requests=1, listed=9, created=0, requeued=0, units=units
    )
    assert day.open_units == 7


@pytest.mark.clause("DAG-05")
def test_backfills_take_turns(pipeline: Pipeline) -> None:
    first = start(pipeline, DAY, DAY + timedelta(days=30))
    turns = []
    listing: set[tuple[str, str]] = set()
    for number in range(5):
        if number == 1:
            second = start(pipeline, DAY, DAY + timedelta(days=1), "hrrr")
        [request] = ask(pipeline, listing=listing, limit=len(listing) + 1, later=1).requests
        listing.add((request.backfill_id, request.day))
        turns.append(request.backfill_id)
    first_id, second_id = first.backfill_id, second.backfill_id
    assert turns == [first_id, second_id, first_id, second_id, first_id]


@pytest.mark.clause("WAL-10", "DAG-05")
def test_a_switched_off_dataset_waits_while_other_datasets_of_the_backfill_continue(pipeline: Pipeline) -> None:
    backfill = start(pipeline, DAY, DAY, "hrrr", DATASET)
    pipeline.ledger.switches.engage("hrrr", WHY)
    with pytest.raises(RefusedError, match=r"hrrr is switched off.*next: kfm resume hrrr"):
        start(pipeline, DAY, DAY, DATASET, "hrrr")
    assert days(ask(pipeline)) == [(DAY.isoformat(), (DATASET,))]
    list_empty_day(pipeline, backfill.backfill_id, DATASET, DAY.isoformat())
    report = ask(pipeline)
    assert (report.requests, "hrrr is switched off" in report.reason) == ((), True)
    pipeline.ledger.switches.release("hrrr", WHY)
    assert days(ask(pipeline)) == [(DAY.isoformat(), ("hrrr",))]


@pytest.mark.clause("DAG-05", "SEC-02")
def test_a_cancelled_backfill_lists_nothing_more(pipeline: Pipeline, bucket: list[int]) -> None:
    backfill = start(pipeline, DAY, DAY + timedelta(days=1))
    assert len(ask(pipeline).requests) == 1
    list_day = pipeline.objects.list_day

    def listing(contract: DatasetContract, day: date, **_: Any) -> Iterator[ListedObject]:
        for number, listed in enumerate(list_day(contract, day)):
            if number == CHUNK:
                # The first chunk is recorded; the backfill is cancelled before the next transaction.
                ReplayEngine(pipeline=pipeline).stop(backfill.backfill_id, WHY)
            yield listed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.objects, "list_day", listing)
        list_the_day(pipeline, "run", backfill_id=backfill.backfill_id)
    assert len(bucket) == 2  # the recorded chunk, and the chunk in progress when the backfill was cancelled
    progress = day_progress(pipeline.database, backfill.backfill_id)
    assert [day.state for day in progress] == [DayState.REQUESTED, DayState.WAITING]
    assert ask(pipeline, later=3600).requests == ()
    list_the_day(pipeline, "late", backfill_id=backfill.backfill_id)
    assert len(bucket) == 2
    engine = ReplayEngine(pipeline=pipeline)
    with pytest.raises(RefusedError, match="in another state"):
        engine.stop(backfill.backfill_id, WHY)
    logged = {action: own_tx(pipeline.ledger.log).entries(action=action) for action in GovernanceAction}
    for action in (GovernanceAction.REPLAY_STARTED, GovernanceAction.REPLAY_STOPPED):
        [entry] = logged[action]
        assert (entry.actor, entry.reason, entry.change_ref, entry.dataset) == ("ada", WHY.reason, "CHG-1", DATASET)
        assert entry.details["replay_run_id"] == backfill.backfill_id
    engine.resume(backfill.backfill_id, WHY)
    assert len(ask(pipeline).requests) == 1


@pytest.mark.clause("DAG-05")
def test_a_backfill_is_not_counted_or_advanced_as_a_replay(pipeline: Pipeline) -> None:
    backfill, engine = start(pipeline), ReplayEngine(pipeline=pipeline)
    assert (engine.advance_all(), engine.newest()) == ([], [])
    assert engine.advance(backfill.backfill_id).state is ReplayState.RUNNING
    replay = selection_from(Environment.DEV, "the test", wal_ids=["00000000-0000-8000-8000-000000000000"])
    started = engine.start(replay, WHY).replay_run_id
    with pytest.raises(BackfillError):
        find_backfill(pipeline.database, started)
    with pipeline.database.snapshot() as view:
        assert len(view.run("stages.replays_since", since=datetime(2020, 1, 1, tzinfo=UTC)).all()) == 1
        assert (view.run("backfill.running").scalar_one(), listed_backfills(pipeline.database)) == (1, [])


@pytest.mark.clause("DAG-05")
def test_an_impossible_backfill_is_refused_and_nothing_is_recorded(pipeline: Pipeline) -> None:
    for first, last, datasets, error in [
        (DAY, DAY - timedelta(days=1), (DATASET,), BackfillError),
        (BEGINS - timedelta(days=9), BEGINS - timedelta(days=1), (DATASET,), BackfillError),
        (BEGINS - timedelta(days=1), BEGINS - timedelta(days=1), (DATASET, "ocean"), BackfillError),
        (DAY, date(2026, 1, 2), (DATASET,), BackfillError),  # the clock shows 2026-01-01
        (DAY, DAY, ("no-such",), ContractError),
        (DAY, DAY, (), BackfillError),
    ]:
        with pytest.raises(error):
            Backfills(pipeline).start(datasets=datasets, first_day=first, last_day=last, decision=WHY)
    assert own_tx(pipeline.ledger.log).entries() == []
    assert ask(pipeline).reason == "no backfill is running"
    assert start(pipeline, DAY, date(2026, 1, 1)).run.selection.days == (DAY, date(2026, 1, 1))


@pytest.mark.clause("DAG-12")
def test_only_a_backfill_of_earlier_days_extends_the_partition_window(pipeline: Pipeline) -> None:
    start(pipeline)
    assert pipeline.window.first_day() == date(2025, 1, 1)
    early = start(pipeline, BEGINS - timedelta(days=9), BEGINS + timedelta(days=1), DATASET, "ocean")
    assert pipeline.window.first_day() == BEGINS - timedelta(days=9)
    left_out = days_left_out(pipeline.registry, early.datasets, early.run.selection.days[0])
    assert (early.days[DayState.WAITING], list(left_out)) == (2 + 11, [DATASET])
    with pytest.raises(ContractError):
        start(pipeline, BEGINS, BEGINS, "no-such")
    start(pipeline)
    assert pipeline.window.first_day() == BEGINS - timedelta(days=9)


@pytest.mark.clause("DAG-12")
def test_a_day_is_listed_only_after_it_has_a_dagster_partition(pipeline: Pipeline) -> None:
    backfill = start(pipeline, BEGINS, BEGINS)
    report = Backfills(pipeline).advance(listing=(), limit=1, known=lambda day: day >= "2025-01-01")
    assert report.requests == ()
    assert report.reason.startswith(f"the code location does not know {BEGINS} yet: reload it")
    assert {(day.state, day.requests) for day in day_progress(pipeline.database, backfill.backfill_id)} == {
        (DayState.WAITING, 0)
    }
    [request] = Backfills(pipeline).advance(listing=(), limit=1).requests
    assert request.day == BEGINS.isoformat()


@pytest.mark.clause("DAG-12")
def test_a_day_without_a_partition_does_not_delay_other_backfills(pipeline: Pipeline) -> None:
    start(pipeline, BEGINS, BEGINS)
    Backfills(pipeline).advance(listing=(), limit=1)
    start(pipeline)
    [request] = Backfills(pipeline).advance(listing=(), limit=1, known=lambda day: day >= "2025-01-01").requests
    assert request.day == DAY.isoformat()


@pytest.mark.clause("OPR-27", "DAG-05", "DAG-12")
@pytest.mark.parametrize(
    ("dataset", "samples", "begins", "neighbour"),
    [
        ("ocean", oisst_samples, date(1981, 9, 1), "data/v2.1/avhrr/198109/oisst-avhrr-v02r01.19810901.nc.md5"),
        ("surface-obs", isd_samples, date(1901, 1, 1), "data/1901/README.txt"),
    ],
)
def test_a_backfill_ingests_the_first_objects_of_an_archive(
    face: Face,
    objects: Path,
    monkeypatch: pytest.MonkeyPatch,
    dataset: str,
    samples: Any,
    begins: date,
    neighbour: str,
) -> None:
    monkeypatch.setenv("KFM_GEOPARQUET", "true")
    bucket = face.pipeline.registry[dataset].storage.buckets[0]
    objects_made = [good(bucket, key, content) for _, key, content in samples(begins, 2)]
    put(objects, [*objects_made, good(bucket, neighbour, b"a neighbour")])
    backfill = start(face.pipeline, begins - timedelta(days=1), begins, dataset)
    reloaded = Face(instance=face.instance, pipeline=face.pipeline)
    drain(reloaded, "nodd_due")
    drain(reloaded, "nodd_ledger")
    records = traces.records(face.pipeline)
    assert {uri: (record.status, record.partition_key) for uri, record in records.items()} == dict.fromkeys(
        (item.uri for item in objects_made), (Status.SUCCEEDED, begins.isoformat())
    )
    [day] = day_progress(face.pipeline.database, backfill.backfill_id)
    assert (day.listed, day.left_out) == (2, {"key_grammar_mismatch": {"keys": 1, "first": neighbour}})
    publisher = open_publisher(face.pipeline.settings.catalog)
    [(_, table)] = search(publisher, [dataset], SearchCriteria(end=datetime(1990, 1, 1, tzinfo=UTC)))
    assert table.num_rows == len({record.stac_item_id for record in records.values()})


@pytest.mark.clause("OPR-27")
def test_a_finished_listing_counts_objects_without_a_unit_by_reason(pipeline: Pipeline) -> None:
    """Keys: one that the contract ignores (`_MDM`), two with an impossible hour, one without a time."""
    folder = f"{DAY:%Y/%m/%d}/KTLX/KTLX{DAY:%Y%m%d}"
    names = ("_120000_V06", "_120000_V06_MDM", "_250000_V06", "_260000_V06", ".txt")
    put(pipeline.settings.object_root, [good("unidata-nexrad-level2", folder + name, b"x") for name in names])
    backfill = start(pipeline)
    ask(pipeline)
    list_the_day(pipeline, "run", backfill_id=backfill.backfill_id)
    assert the_day(pipeline, backfill).left_out == {
        "invalid_time_range": {"keys": 2, "first": folder + "_250000_V06"},
        "key_grammar_mismatch": {"keys": 1, "first": folder + ".txt"},
        "known_neighbour": {"keys": 1, "first": folder + "_120000_V06_MDM"},
    }


def drain(face: Face, sensor: str) -> None:
    """Execute a sensor's requests until two ticks have none; check that listings are bulk work."""
    for request in face.work(sensor, quiet=2):
        if sensor == "nodd_due" and request.job_name == "ingest":
            assert (request.tags["kfm/lane"], request.tags["kfm/source"]) == ("bulk", "listing")
