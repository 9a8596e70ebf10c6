"""The partition window, and the runs planned for pending units."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.identity import DayWindow
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo import run as demo
from kfm_dagster.demo.feed import Feed, FolderReport
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.plan import ActiveRuns, LaneKey, PlannedRun, lane_limits, of_known_days, plan_runs, why_unknown
from kfm_dagster.ingest.window import DEFAULT_DAYS, PartitionWindow, stored_first_day
from kfm_dagster.ledger.reports import PendingPartition
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import make_bench
from kfm_dagster_tests.transactions import own_tx

NOW = datetime(2025, 12, 3, 12, tzinfo=UTC)
FIRST = date(2025, 1, 1)
DOWN = "postgresql+psycopg2://kfm@127.0.0.1:1/kfm"


@pytest.fixture(autouse=True)
def _no_first_day_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KFM_FIRST_DAY", raising=False)


def window(database: Database, **settings: object) -> PartitionWindow:
    return PartitionWindow(database=database, settings=Settings.load(**settings), clock=lambda: NOW)


@pytest.mark.clause("DAG-12")
def test_the_first_day_is_set_once_and_does_not_move_with_time(database: Database) -> None:
    window(database).make()
    later = PartitionWindow(database=database, settings=Settings(first_day=FIRST), clock=lambda: NOW + DEFAULT_DAYS)
    later.make()
    assert later.first_day() == NOW.date() - DEFAULT_DAYS


@pytest.mark.clause("DAG-12")
@pytest.mark.parametrize(
    ("set_to", "first"), [(FIRST, FIRST), (NOW.date(), NOW.date()), (date(2099, 1, 1), NOW.date()), (None, None)]
)
def test_the_first_day_is_the_configured_one_but_never_in_the_future(
    database: Database, set_to: date | None, first: date | None
) -> None:
    initial = window(database, first_day=set_to)
    initial.make()
    assert initial.first_day() == (first or NOW.date() - DEFAULT_DAYS)


@pytest.mark.clause("OPR-27", "DAG-12")
def test_partitions_begin_no_earlier_than_the_first_dataset(home: Path, contracts: ContractRegistry) -> None:
    first = min(contract.storage.first_day for contract in contracts)
    with closing(Pipeline.open(Settings.load(first_day=first))) as pipeline:
        assert pipeline.window.first_day() == first == date(1901, 1, 1)
    with pytest.raises(ConfigurationError, match=f"KFM_FIRST_DAY .*{first}"):
        Pipeline.open(Settings.load(first_day=first - timedelta(days=1)))


@pytest.mark.clause("DAG-12")
def test_an_earlier_day_extends_the_window_and_a_later_day_does_not(database: Database) -> None:
    initial = window(database, first_day=FIRST)
    for day, lowered in ((FIRST, False), (FIRST + timedelta(days=1), False), (FIRST - timedelta(days=1), True)):
        assert own_tx(initial).lower(day, actor="ada", reason="x") is lowered
    assert initial.first_day() == FIRST - timedelta(days=1)


@pytest.mark.clause("DAG-12", "BEY-03")
@pytest.mark.parametrize(
    ("day", "first"),
    [(date(1901, 1, 1), date(1901, 1, 1)), (date(2025, 6, 1), FIRST)],
)
def test_a_new_window_includes_existing_units(
    database: Database, contracts: ContractRegistry, day: date, first: date
) -> None:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    own_tx(make_bench(database, contracts).ledger).ensure([envelope(1, time_range_start=start, time_range_end=start)])
    initial = window(database, first_day=FIRST)
    initial.make()
    assert initial.first_day() == first


@pytest.mark.clause("DAG-12")
def test_the_window_extends_from_its_first_day_to_two_days_ahead() -> None:
    window = DayWindow(first=FIRST, today=NOW.date())
    for day, sent_at, held in (
        (FIRST, NOW, True),
        (FIRST - timedelta(days=1), NOW, False),
        (NOW.date() + timedelta(days=2), NOW, True),
        (NOW.date() + timedelta(days=3), NOW, False),
        (NOW.date() + timedelta(days=2), None, True),
        (NOW.date() + timedelta(days=3), None, False),
        (NOW.date() + timedelta(days=2), NOW - timedelta(days=9), True),
        # If this machine's clock is behind, the time of sending counts: no message is sent in the future.
        (date(2027, 5, 3), datetime(2027, 5, 1, tzinfo=UTC), True),
        (date(2027, 5, 4), datetime(2027, 5, 1, tzinfo=UTC), False),
        (date.min, datetime.min.replace(tzinfo=UTC), False),
        (date.max, datetime.max.replace(tzinfo=UTC), True),
    ):
        assert window.holds(day, sent_at=sent_at) is held, (day, sent_at)


@pytest.mark.clause("DAG-12")
def test_days_without_a_dagster_partition_are_counted_and_not_planned() -> None:
    pending = [
        PendingPartition(dataset=dataset, partition=day, lane=Lane.LIVE, units=units)
        for dataset, day, units in (("a", "1990-12-31", 2), ("b", "1990-12-31", 3), ("a", "2025-12-03", 1))
    ]
    of_known, of_unknown = of_known_days(pending, lambda day: day >= "2025-01-01")
    assert [entry.partition for entry in of_known] == ["2025-12-03"]
    assert of_unknown == {"1990-12-31": 5}


@pytest.mark.clause("DAG-12")
def test_the_message_on_unknown_days_names_the_remedy() -> None:
    cases: list[tuple[dict[str, int], str]] = [
        ({}, ""),
        ({"1990-12-31": 5}, "5 units of 1990-12-31 on hold: the code location was loaded before"),
        (
            {"1990-12-31": 5, "1991-01-02": 1},
            "6 units of 2 days from 1990-12-31 to 1991-01-02 on hold: the code location",
        ),
        ({"2025-12-04": 2}, "2 units of 2025-12-04 on hold until the day begins"),
        ({"1990-12-31": 1, "2025-12-04": 2}, "reload it; 2 units of 2025-12-04 on hold until the day begins"),
    ]
    for unknown, expected in cases:
        shown = why_unknown(unknown, today="2025-12-03")
        assert expected in shown
        assert bool(shown) == bool(expected)


@pytest.mark.clause("DAG-12")
def test_reading_the_first_day_neither_creates_nor_needs_a_database(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert stored_first_day(Settings.load(), clock=lambda: NOW) == NOW.date() - DEFAULT_DAYS
    assert not home.exists()
    with caplog.at_level(logging.WARNING):
        assert stored_first_day(Settings.load(wal_dsn=DOWN), clock=lambda: NOW) == NOW.date() - DEFAULT_DAYS
    assert "127.0.0.1:1" in caplog.text


@pytest.mark.clause("DAG-12")
@pytest.mark.parametrize(
    ("oldest", "first"),
    [(date(1901, 1, 1), date(1901, 1, 1)), (None, FIRST), (date(2025, 6, 1), FIRST)],
)
def test_the_demo_s_window_begins_with_its_oldest_object(
    home: Path, monkeypatch: pytest.MonkeyPatch, oldest: date | None, first: date
) -> None:
    published = FolderReport(objects={}, sidecars=0, skipped={"a": "b"}, first_day=oldest)
    monkeypatch.setattr(Feed, "from_folder", lambda self, folder: published)
    with closing(Pipeline.open(Settings.load(first_day=FIRST))) as pipeline:
        assert demo.feed_demo(pipeline, object.__new__(Feed), home).skipped == {"a": "b"}
        assert pipeline.window.first_day() == first


DAY = "2025-04-02"

Pending = Mapping[tuple[str, str], int]


def counter(runs: Mapping[str, int] | None, lane: Lane) -> Counter[LaneKey]:
    return Counter({(partition, lane): number for partition, number in (runs or {}).items()})


def plan(
    pending: Pending,
    *,
    bulk: Pending | None = None,
    active: Mapping[str, int] | None = None,
    coming: Mapping[str, int] | None = None,
    active_bulk: Mapping[str, int] | None = None,
    limits: Mapping[Lane, int | None] | None = None,
    most: int = 10,
    salt: str = "0",
) -> list[PlannedRun]:
    """Plan runs for pending live and bulk units by (dataset, partition)."""
    coming_runs = counter(coming, Lane.LIVE)
    return plan_runs(
        [
            PendingPartition(dataset=dataset, partition=partition, lane=lane, units=units)
            for lane, counts in ((Lane.LIVE, pending), (Lane.BULK, bulk or {}))
            for (dataset, partition), units in counts.items()
        ],
        runs=ActiveRuns(
            active=(counter(active, Lane.LIVE) | coming_runs) + counter(active_bulk, Lane.BULK),
            coming=coming_runs,
        ),
        limits=limits or {},
        max_units_per_run=most,
        salt=lambda _: salt,
    )


@pytest.mark.clause("DAG-03")
def test_runs_are_planned_for_pending_units() -> None:
    cases: list[tuple[dict[str, Any], list[Any]]] = [
        ({"pending": {}}, []),
        ({"pending": {("a", DAY): 1}}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 10}}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 11}}, [(DAY, ("a",))] * 2),
        # One run covers every dataset of its day.
        ({"pending": {("a", DAY): 3, ("b", DAY): 4}}, [(DAY, ("a", "b"))]),
        ({"pending": {("a", DAY): 25, ("b", DAY): 4}}, [(DAY, ("a", "b")), *[(DAY, ("a",))] * 2]),
        (
            {"pending": {("a", DAY): 1, ("b", "2025-04-01"): 1}},
            [("2025-04-01", ("b",)), (DAY, ("a",))],
        ),
        # A requested run covers a run's maximum units. Beside two live runs, a further live run needs half of the
        # maximum or a hundred units, whichever is less; beside a bulk run, a further bulk run needs half of it.
        ({"pending": {("a", DAY): 10}, "coming": {DAY: 1}}, []),
        ({"pending": {("a", DAY): 11}, "coming": {DAY: 1}}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 24}, "coming": {DAY: 2}}, []),
        ({"pending": {("a", DAY): 25}, "coming": {DAY: 2}}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 1}, "active": {DAY: 1}}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 4}, "active": {DAY: 2}}, []),
        ({"pending": {("a", DAY): 5}, "active": {DAY: 2}}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 99}, "active": {DAY: 2}, "most": 5000}, []),
        ({"pending": {("a", DAY): 100}, "active": {DAY: 2}, "most": 5000}, [(DAY, ("a",))]),
        ({"pending": {}, "bulk": {("a", DAY): 2499}, "active_bulk": {DAY: 1}, "most": 5000}, []),
        ({"pending": {}, "bulk": {("a", DAY): 2500}, "active_bulk": {DAY: 1}, "most": 5000}, [(DAY, ("a",))]),
        ({"pending": {("a", DAY): 11}, "active": {"2025-04-01": 1}}, [(DAY, ("a",))] * 2),
    ]
    for case, expected in cases:
        assert [(run.partition, run.datasets) for run in plan(**case)] == expected, case


def test_a_run_key_is_the_same_in_every_release() -> None:
    """Dagster keeps run keys permanently; other keys would start finished runs again."""
    [run] = plan({("goes-abi", DAY): 1})
    assert run.run_key == "a6b6647be105c5ebd33e440524012d6789a475769737e3dd7671ea850597e5bd"


@pytest.mark.clause("BEY-14")
def test_a_lane_gets_its_share_of_runs_and_no_more() -> None:
    cases: list[tuple[dict[str, Any], list[Any]]] = [
        # A run has units of one lane; live runs are requested first.
        ({"pending": {("a", DAY): 1}, "bulk": {("a", DAY): 1}}, [("live", DAY), ("bulk", DAY)]),
        ({"pending": {("a", DAY): 1}, "bulk": {("a", "1999-01-01"): 1}}, [("live", DAY), ("bulk", "1999-01-01")]),
        # Bulk work gets only its limit, however much is pending; live work does not count against this limit.
        ({"pending": {}, "bulk": {("a", DAY): 60_000}, "limits": {Lane.BULK: 2}}, [("bulk", DAY)] * 2),
        (
            {"pending": {("a", DAY): 25}, "bulk": {("a", DAY): 60_000}, "limits": {Lane.BULK: 1}},
            [*[("live", DAY)] * 3, ("bulk", DAY)],
        ),
        ({"pending": {}, "bulk": {("a", DAY): 60}, "limits": {Lane.BULK: 2}, "active_bulk": {"1999-01-01": 2}}, []),
        ({"pending": {}, "bulk": {("a", DAY): 60}, "limits": {Lane.BULK: 0}}, []),
        # Bulk runs of a partition do not delay its live runs.
        ({"pending": {("a", DAY): 1}, "active_bulk": {DAY: 3}}, [("live", DAY)]),
        # Live work leaves a slot for pending bulk work.
        (
            {"pending": {("a", DAY): 60_000}, "bulk": {("b", DAY): 1}, "limits": {Lane.LIVE: 2, Lane.BULK: 1}},
            [("live", DAY), ("live", DAY), ("bulk", DAY)],
        ),
        ({"pending": {("a", DAY): 60}, "active": {"2025-04-01": 2}, "limits": {Lane.LIVE: 2}}, []),
    ]
    for case, expected in cases:
        assert [(run.lane.value, run.partition) for run in plan(**case)] == expected, case


@pytest.mark.clause("BEY-14")
def test_the_live_share_sets_the_limits_of_both_lanes() -> None:
    for share, slots, waits, expected in (
        (0.5, 3, True, {Lane.LIVE: 2, Lane.BULK: 1}),
        (0.5, 3, False, {Lane.LIVE: None, Lane.BULK: 1}),
        (0.5, 10, True, {Lane.LIVE: 9, Lane.BULK: 2}),  # 20,000 units in flight, 5,000 a run: half of four runs
        (0.0, 3, True, {Lane.LIVE: 2, Lane.BULK: 3}),
        (0.9, 3, True, {Lane.LIVE: 2, Lane.BULK: 1}),
        (0.7, 10, True, {Lane.LIVE: 9, Lane.BULK: 1}),
        (1.0, 3, True, {Lane.LIVE: None, Lane.BULK: 0}),
        (0.5, 1, True, {Lane.LIVE: 1, Lane.BULK: 1}),
        (0.5, None, True, {Lane.LIVE: None, Lane.BULK: 2}),
    ):
        limits = lane_limits(Settings(live_share=share), run_slots=slots, bulk_waits=waits)
        assert limits == expected, (share, slots, waits)


_DATASETS = st.sampled_from(["a", "b", "c"])
_DAYS = st.sampled_from([DAY, "2025-04-01", "2025-04-03"])
_PENDING = st.dictionaries(st.tuples(_DATASETS, _DAYS), st.integers(1, 60), max_size=9)
_ACTIVE = st.dictionaries(_DAYS, st.integers(0, 4))


@pytest.mark.clause("DAG-03")
@given(pending=_PENDING, active=_ACTIVE, most=st.integers(1, 20), seed=st.integers())
def test_run_keys_are_distinct_and_stable(pending: Pending, active: dict[str, int], most: int, seed: int) -> None:
    runs = plan(pending, active=active, most=most)
    keys = [run.run_key for run in runs]
    assert len(set(keys)) == len(keys)
    mixed = dict(random.Random(seed).sample(list(pending.items()), len(pending)))
    assert [run.run_key for run in plan(mixed, active=active, most=most)] == keys
    assert {run.run_key for run in plan({}, bulk=pending, most=most)}.isdisjoint(
        run.run_key for run in plan(pending, most=most)
    )
    # A run can be requested again once an earlier run of its partition exists.
    assert {run.run_key for run in plan(pending, active=active, most=most, salt="1")}.isdisjoint(keys)
