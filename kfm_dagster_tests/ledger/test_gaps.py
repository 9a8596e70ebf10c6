"""Gaps (silences, drops, holes) open when they are due and close without a person, on both databases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.contracts.cadence import LEAST_CADENCE, Pace, ProductHour
from kfm_dagster.ledger.gaps import FeedWindow, Gap, GapKind, Gaps, followed_in
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import START, envelope
from kfm_dagster_tests.ledger.bench import Bench
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-05")

NOW = START.replace(minute=0, second=0) + timedelta(hours=6)
PACE = Pace(silent_after=timedelta(minutes=20), over=timedelta(minutes=40), expected=8)
_NUMBERS = count()
LONG_AGO = NOW - timedelta(days=30)


@pytest.fixture
def gaps(database: Database) -> Gaps:
    return Gaps(database=database)


def announced(bench: Bench, *ago: timedelta, site: str = "KTLX") -> None:
    """Record units whose announcements have these ages."""
    bench.ledger.ensure([envelope(next(_NUMBERS), site=site, event_time=NOW - age) for age in ago])


def window(name: str = "volumes", at: datetime = NOW, groups: dict[str, str] | None = None) -> FeedWindow:
    return FeedWindow(
        dataset="nexrad-l2",
        product=name,
        groups=groups or {},
        silent_since=at - PACE.silent_after,
        since=at - PACE.over,
        expected=PACE.expected,
        least=PACE.least,
    )


def open_kinds(gaps: Gaps) -> list[tuple[str, str]]:
    return [(gap.product, gap.kind.value) for gap in gaps.list(since=LONG_AGO)]


@pytest.mark.parametrize(("age", "silent"), [(timedelta(seconds=1199), False), (timedelta(seconds=1200), True)])
def test_a_silence_is_detected_after_two_cadences_and_closes_by_itself(
    bench: Bench, gaps: Gaps, age: timedelta, silent: bool
) -> None:
    announced(bench, *[age + timedelta(seconds=number) for number in range(4)])
    gaps.look_at([window()], at=NOW)
    assert open_kinds(gaps) == ([("volumes", "silence")] if silent else [])
    gaps.look_at([window()], at=NOW + timedelta(minutes=1))
    announced(bench, *[timedelta(seconds=number) for number in range(4)])
    gaps.look_at([window()], at=NOW)
    assert open_kinds(gaps) == []
    closed = gaps.list(since=LONG_AGO, closed=True)
    assert [(gap.kind, gap.seen, gap.first_seen, gap.closed_at) for gap in closed] == (
        [(GapKind.SILENCE, 0, NOW, NOW)] if silent else []
    )


@pytest.mark.parametrize(("oldest", "dropped"), [(timedelta(seconds=2399), False), (timedelta(seconds=2400), True)])
def test_a_drop_is_below_half_of_the_expected_rate(bench: Bench, gaps: Gaps, oldest: timedelta, dropped: bool) -> None:
    announced(bench, *[timedelta(minutes=number) for number in range(3)], oldest)
    gaps.look_at([window()], at=NOW)
    gap_list = gaps.list(since=LONG_AGO)
    assert [(gap.kind, gap.expected, gap.seen) for gap in gap_list] == ([(GapKind.DROP, 8, 3)] if dropped else [])


def test_a_drop_that_becomes_a_silence_is_closed(bench: Bench, gaps: Gaps) -> None:
    announced(bench, timedelta(minutes=19))
    gaps.look_at([window()], at=NOW)
    assert open_kinds(gaps) == [("volumes", "drop")]
    gaps.look_at([window(at=NOW + LEAST_CADENCE)], at=NOW + LEAST_CADENCE)
    assert open_kinds(gaps) == [("volumes", "silence")]


def test_silences_of_datasets_and_products_open_and_close_independently(bench: Bench, gaps: Gaps) -> None:
    def open_gaps(at: datetime) -> list[tuple[str, str]]:
        sites = [window(name, at, {"site": site}) for name, site in (("here", "KTLX"), ("there", "KICT"))]
        gaps.look_at([*sites, replace(window("here", at), dataset="hrrr")], at=at)
        assert {gap.kind for gap in gaps.list(since=LONG_AGO)} <= {GapKind.SILENCE}
        return [(gap.dataset, gap.product) for gap in gaps.list(since=LONG_AGO)]

    announced(bench, *[timedelta(minutes=number) for number in range(8)])
    assert open_gaps(NOW) == [("hrrr", "here"), ("nexrad-l2", "there")]
    announced(bench, *[timedelta(minutes=number) for number in range(8)], site="KICT")
    assert open_gaps(NOW) == [("hrrr", "here")]
    # Within the clock hour in which it began, a gap reopens; in a later hour a new gap opens, as below.
    for minutes, rows in ((30, 3), (90, 3)):
        every = [("hrrr", "here"), ("nexrad-l2", "here"), ("nexrad-l2", "there")]
        assert open_gaps(NOW + timedelta(minutes=minutes)) == every
        assert len(gaps.list(since=LONG_AGO, closed=True)) == rows
    later = NOW + timedelta(hours=2)
    announced(bench, *[NOW - later + timedelta(minutes=number) for number in range(8)], site="KICT")
    assert open_gaps(later) == every[:2]
    assert open_gaps(later + timedelta(hours=1)) == every
    assert len(gaps.list(since=LONG_AGO, closed=True)) == 4


def test_a_unit_counts_as_announced_in_every_status(bench: Bench, gaps: Gaps) -> None:
    sites = dict(zip(("KTLX", "KICT", "KDDC", "KFTG", "KLOT"), Status, strict=True))
    for site, status in sites.items():
        for number in range(4):
            unit = envelope(next(_NUMBERS), site=site, event_time=NOW - timedelta(minutes=number))
            bench.bring_to(status.value, unit)
    gaps.look_at([window(site, groups={"site": site}) for site in sites], at=NOW)
    assert open_kinds(gaps) == []


def test_the_list_has_the_holes_since_a_time_and_every_open_silence(bench: Bench, gaps: Gaps) -> None:
    before = NOW - timedelta(days=9)
    for name, site in (("open", "KICT"), ("over", "KTLX")):
        gaps.look_at([window(name, before, {"site": site})], at=before)
    announced(bench, *[timedelta(minutes=number) for number in range(8)])
    gaps.look_at([window("over", groups={"site": "KTLX"})], at=NOW)
    gaps.record("nexrad-l2", hours(0, 0), at=NOW)
    gaps.record("hrrr", hours(0), at=NOW)
    [first, second] = [hour.hour for hour in hours(0, 0)]

    def listed(since: datetime, **more: Any) -> list[tuple[str, str, datetime]]:
        return [(gap.dataset, gap.product, gap.hour) for gap in gaps.list(since=since, **more)]

    here_gaps, other = [("nexrad-l2", "volumes", hour) for hour in (first, second)], ("hrrr", "volumes", first)
    silence, over = ("nexrad-l2", "open", before), ("nexrad-l2", "over", before)
    assert listed(first) == [other, silence, *here_gaps]
    assert listed(first + timedelta(seconds=1)) == [silence, here_gaps[1]]
    assert listed(first, limit=2) == [other, silence]
    assert listed(first, dataset="nexrad-l2") == [silence, *here_gaps]
    assert listed(first, closed=True) == [other, silence, *here_gaps]
    assert listed(before, closed=True) == [other, silence, over, *here_gaps]
    for since, days in ((before, [first.date()]), (second, [first.date()]), (second + timedelta(seconds=1), [])):
        assert gaps.open_days("nexrad-l2", since=since) == days


def test_objects_are_expected_from_a_product_s_first_announcement_and_on_a_listed_day_all_day(
    gaps: Gaps, database: Database
) -> None:
    day, next_day = NOW.date(), NOW.date() + timedelta(days=1)
    own_tx(gaps).follow("nexrad-l2", {"volumes": NOW, "chunks": LONG_AGO})
    own_tx(gaps).follow("nexrad-l2", {"volumes": LONG_AGO})
    own_tx(gaps).follow("hrrr", {"surface": LONG_AGO})
    own_tx(gaps).follow("gfs", {})
    assert [(feed.dataset, feed.product, feed.followed_since, feed.looked_until) for feed in gaps.feeds()] == [
        ("hrrr", "surface", LONG_AGO, None),
        ("nexrad-l2", "chunks", LONG_AGO, None),
        ("nexrad-l2", "volumes", NOW, None),
    ]
    for until in (NOW, NOW - timedelta(hours=1)):
        gaps.looked("nexrad-l2", until=until)
    assert [feed.looked_until for feed in gaps.feeds()] == [None, NOW, NOW]
    assert gaps.listed_days(day, next_day) == set()
    for at in (NOW, NOW + timedelta(hours=1)):
        own_tx(gaps).listed("nexrad-l2", day.isoformat(), at=at)
    assert gaps.listed_days(day, next_day) == {("nexrad-l2", day)}
    assert gaps.listed_days(next_day, next_day) == set()
    with database.snapshot() as view:
        assert followed_in(view, "nexrad-l2", day.isoformat()) is None
        assert followed_in(view, "nexrad-l2", next_day.isoformat()) == {"volumes": NOW, "chunks": LONG_AGO}
        assert followed_in(view, "hrrr", day.isoformat()) == {"surface": LONG_AGO}
        assert followed_in(view, "gfs", day.isoformat()) == {}


def hours(*seen: int, expected: int = 2) -> list[ProductHour]:
    return [
        ProductHour(
            product="volumes",
            hour=START.replace(minute=0, second=0) + timedelta(hours=index),
            expected=expected,
            seen=number,
        )
        for index, number in enumerate(seen)
    ]


def repairs(gap_rows: Iterable[Gap]) -> list[tuple[int, int, str | None]]:
    return [(gap.hour.hour, gap.seen, gap.repaired_by) for gap in gap_rows]


def test_a_hole_opens_for_one_missing_object_and_closes_when_the_object_arrives(gaps: Gaps, database: Database) -> None:
    assert gaps.record("nexrad-l2", hours(2, 1, 0, 3), at=NOW) == (2, 0)
    assert repairs(gaps.list(since=LONG_AGO)) == [(1, 1, None), (2, 0, None)]
    # A second check changes nothing.
    assert gaps.record("nexrad-l2", hours(2, 1, 0, 3), at=NOW + timedelta(hours=1)) == (0, 0)
    assert {gap.first_seen for gap in gaps.list(since=LONG_AGO)} == {NOW}
    assert gaps.record("nexrad-l2", hours(2, 2, 1, 3), at=NOW, run_id="r1") == (1, 1)
    assert repairs(gaps.list(since=LONG_AGO)) == [(2, 1, None)]
    assert repairs(gaps.list(since=LONG_AGO, closed=True)) == [(1, 2, "r1"), (2, 1, None)]
    # An invalidated object is missing again.
    assert gaps.record("nexrad-l2", hours(2, 0, 3, 3), at=NOW) == (1, 1)
    assert repairs(gaps.list(since=LONG_AGO)) == [(1, 0, None)]
    # A later expectation can be larger; a closed gap without a missing object stays closed.
    assert gaps.record("nexrad-l2", hours(3, 0, 3, 3, expected=3), at=NOW) == (1, 0)
    assert [gap.expected for gap in gaps.list(since=LONG_AGO)] == [3]
    with database.engine.connect() as connection:
        columns = [column["name"] for column in sa.inspect(connection).get_columns("kfm_gaps")]
        rows = connection.execute(sa.text("SELECT count(*) FROM kfm_gaps")).scalar_one()
    assert columns == [
        "dataset", "product", "hour", "kind", "expected", "seen", "first_seen", "closed_at", "repaired_by",
    ]  # fmt: skip
    assert rows == 2


def test_gaps_are_separate_by_dataset_and_product(gaps: Gaps) -> None:
    other_product = [replace(hour, product="others") for hour in hours(0)]
    gaps.record("nexrad-l2", [*hours(0), *other_product], at=NOW)
    gaps.record("hrrr", hours(0), at=NOW)
    gaps.record("hrrr", hours(2), at=NOW)
    gaps.record("nexrad-l2", hours(2), at=NOW)
    assert [(gap.dataset, gap.product) for gap in gaps.list(since=LONG_AGO)] == [("nexrad-l2", "others")]
    assert gaps.open_days("nexrad-l2", since=LONG_AGO) == [START.date()]
    assert gaps.open_days("hrrr", since=LONG_AGO) == []
