"""The partition window: made once, only lowered, kept in the database, and which days it lets in."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.identity import DayWindow
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo import run as demo
from kfm_dagster.demo.feed import Feed, FolderReport
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ingest.plan import of_known_days, why_unknown
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
def test_the_first_day_is_made_once_and_stays_while_days_go_by(database: Database) -> None:
    window(database).make()
    later = PartitionWindow(database=database, settings=Settings(first_day=FIRST), clock=lambda: NOW + DEFAULT_DAYS)
    later.make()
    assert later.first_day() == NOW.date() - DEFAULT_DAYS


@pytest.mark.clause("DAG-12")
@pytest.mark.parametrize(
    ("set_to", "first"), [(FIRST, FIRST), (NOW.date(), NOW.date()), (date(2099, 1, 1), NOW.date()), (None, None)]
)
def test_the_first_day_is_what_is_set_but_never_in_the_future(
    database: Database, set_to: date | None, first: date | None
) -> None:
    made = window(database, first_day=set_to)
    made.make()
    assert made.first_day() == (first or NOW.date() - DEFAULT_DAYS)


@pytest.mark.clause("OPR-27", "DAG-12")
def test_partitions_begin_with_the_first_of_the_datasets_at_the_earliest(
    home: Path, contracts: ContractRegistry
) -> None:
    first = min(contract.storage.first_day for contract in contracts)
    with closing(Pipeline.open(Settings.load(first_day=first))) as pipeline:
        assert pipeline.window.first_day() == first == date(1901, 1, 1)
    with pytest.raises(ConfigurationError, match=f"KFM_FIRST_DAY .*{first}"):
        Pipeline.open(Settings.load(first_day=first - timedelta(days=1)))


@pytest.mark.clause("DAG-12")
def test_an_earlier_day_lowers_the_window_and_a_later_one_does_not(database: Database) -> None:
    made = window(database, first_day=FIRST)
    for day, lowered in ((FIRST, False), (FIRST + timedelta(days=1), False), (FIRST - timedelta(days=1), True)):
        assert own_tx(made).lower(day, actor="ada", reason="x") is lowered
    assert made.first_day() == FIRST - timedelta(days=1)


@pytest.mark.clause("DAG-12")
def test_the_window_is_never_raised_by_hand(database: Database) -> None:
    made = window(database, first_day=FIRST)
    made.make()
    for typed in ("UPDATE deployment SET value = '2025-06-01' WHERE fact = 'first_day'", "DELETE FROM deployment"):
        with pytest.raises(DBAPIError, match="deployment_is_kept"), database.engine.begin() as connection:
            connection.execute(sa.text(typed))
        assert made.first_day() == FIRST


@pytest.mark.clause("DAG-12", "BEY-03")
@pytest.mark.parametrize(
    ("day", "first"),
    [(date(1901, 1, 1), date(1901, 1, 1)), (date(2025, 6, 1), FIRST)],
)
def test_units_that_are_there_stay_within_the_window_that_is_made(
    database: Database, contracts: ContractRegistry, day: date, first: date
) -> None:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    own_tx(make_bench(database, contracts).ledger).ensure([envelope(1, time_range_start=start, time_range_end=start)])
    made = window(database, first_day=FIRST)
    made.make()
    assert made.first_day() == first


@pytest.mark.clause("DAG-12")
def test_the_window_holds_its_first_day_to_two_days_ahead() -> None:
    window = DayWindow(first=FIRST, today=NOW.date())
    for day, sent_at, held in (
        (FIRST, NOW, True),
        (FIRST - timedelta(days=1), NOW, False),
        (NOW.date() + timedelta(days=2), NOW, True),
        (NOW.date() + timedelta(days=3), NOW, False),
        (NOW.date() + timedelta(days=2), None, True),
        (NOW.date() + timedelta(days=3), None, False),
        (NOW.date() + timedelta(days=2), NOW - timedelta(days=9), True),
        # The clock of this machine is behind: a message that the queue has by then is not of the future.
        (date(2027, 5, 3), datetime(2027, 5, 1, tzinfo=UTC), True),
        (date(2027, 5, 4), datetime(2027, 5, 1, tzinfo=UTC), False),
        (date.min, datetime.min.replace(tzinfo=UTC), False),
        (date.max, datetime.max.replace(tzinfo=UTC), True),
    ):
        assert window.holds(day, sent_at=sent_at) is held, (day, sent_at)


@pytest.mark.clause("DAG-12")
def test_what_dagster_does_not_know_is_counted_by_day_and_not_planned() -> None:
    pending = [
        PendingPartition(dataset=dataset, partition=day, lane=Lane.LIVE, units=units)
        for dataset, day, units in (("a", "1990-12-31", 2), ("b", "1990-12-31", 3), ("a", "2025-12-03", 1))
    ]
    known, unknown = of_known_days(pending, lambda day: day >= "2025-01-01")
    assert [entry.partition for entry in known] == ["2025-12-03"]
    assert unknown == {"1990-12-31": 5}


@pytest.mark.clause("DAG-12")
def test_what_waits_for_its_day_says_what_helps() -> None:
    waiting: list[tuple[dict[str, int], str]] = [
        ({}, ""),
        ({"1990-12-31": 5}, "5 units of 1990-12-31 on hold: the code location was loaded before"),
        (
            {"1990-12-31": 5, "1991-01-02": 1},
            "6 units of 2 days from 1990-12-31 to 1991-01-02 on hold: the code location",
        ),
        ({"2025-12-04": 2}, "2 units of 2025-12-04 on hold until the day begins"),
        ({"1990-12-31": 1, "2025-12-04": 2}, "reload it; 2 units of 2025-12-04 on hold until the day begins"),
    ]
    for unknown, said in waiting:
        shown = why_unknown(unknown, today="2025-12-03")
        assert said in shown
        assert bool(shown) == bool(said)


@pytest.mark.clause("DAG-12")
def test_looking_up_the_first_day_makes_no_database_and_needs_none(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert stored_first_day(Settings.load(), clock=lambda: NOW) == NOW.date() - DEFAULT_DAYS
    assert not home.exists()
    with caplog.at_level(logging.WARNING):
        assert stored_first_day(Settings.load(wal_dsn=DOWN), clock=lambda: NOW) == NOW.date() - DEFAULT_DAYS
    assert "127.0.0.1:1" in caplog.text


@pytest.mark.clause("DAG-12")
def test_opening_a_pipeline_settles_the_first_day_which_definitions_then_read(home: Path) -> None:
    with closing(Pipeline.open(Settings.load(first_day=FIRST))) as pipeline:
        own_tx(pipeline.window).lower(date(1991, 6, 5), actor="ada", reason="x")
    assert stored_first_day(Settings.load(), clock=utc_now) == date(1991, 6, 5)


@pytest.mark.clause("DAG-12")
@pytest.mark.parametrize(
    ("oldest", "first"),
    [(date(1901, 1, 1), date(1901, 1, 1)), (None, FIRST), (date(2025, 6, 1), FIRST)],
)
def test_the_demo_begins_with_the_oldest_of_its_objects(
    home: Path, monkeypatch: pytest.MonkeyPatch, oldest: date | None, first: date
) -> None:
    published = FolderReport(objects={}, sidecars=0, skipped={"a": "b"}, first_day=oldest)
    monkeypatch.setattr(Feed, "from_folder", lambda self, folder: published)
    with closing(Pipeline.open(Settings.load(first_day=FIRST))) as pipeline:
        assert demo.feed_demo(pipeline, object.__new__(Feed), home).skipped == {"a": "b"}
        assert pipeline.window.first_day() == first
