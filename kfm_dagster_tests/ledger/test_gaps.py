"""The gap table on both databases: silences, drops and holes come when they are due, and go by themselves."""

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

pytestmark = pytest.mark.clause("BEY-05")

NOW = START.replace(minute=0, second=0) + timedelta(hours=6)
PACE = Pace(silent_after=timedelta(minutes=20), over=timedelta(minutes=40), expected=8)
_NUMBERS = count()
LONG_AGO = NOW - timedelta(days=30)


@pytest.fixture
def gaps(database: Database) -> Gaps:
    return Gaps(database=database)


def announced(bench: Bench, *ago: timedelta, site: str = "KTLX") -> None:
    """Units whose announcements are so old."""
    bench.ledger.ensure([envelope(next(_NUMBERS), site=site, event_time=NOW - one) for one in ago])


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
def test_a_silence_is_noticed_within_two_cadences_and_closes_by_itself(
    bench: Bench, gaps: Gaps, age: timedelta, silent: bool
) -> None:
    announced(bench, *[age + timedelta(seconds=number) for number in range(4)])
    gaps.look_at([window()], at=NOW)
    assert open_kinds(gaps) == ([("volumes", "silence")] if silent else [])
    gaps.look_at([window()], at=NOW + timedelta(minutes=1))
    announced(bench, *[timedelta(seconds=number) for number in range(4)])
    gaps.look_at([window()], at=NOW)
    assert open_kinds(gaps) == []
    known = gaps.list(since=LONG_AGO, closed=True)
    assert [(gap.kind, gap.seen, gap.first_seen, gap.closed_at) for gap in known] == (
        [(GapKind.SILENCE, 0, NOW, NOW)] if silent else []
    )


@pytest.mark.parametrize(("oldest", "dropped"), [(timedelta(seconds=2399), False), (timedelta(seconds=2400), True)])
def test_a_rate_has_dropped_below_half_and_not_at_half(
    bench: Bench, gaps: Gaps, oldest: timedelta, dropped: bool
) -> None:
    announced(bench, *[timedelta(minutes=number) for number in range(3)], oldest)
    gaps.look_at([window()], at=NOW)
    found = gaps.list(since=LONG_AGO)
    assert [(gap.kind, gap.expected, gap.seen) for gap in found] == ([(GapKind.DROP, 8, 3)] if dropped else [])


def test_a_drop_that_becomes_a_silence_is_one_no_more(bench: Bench, gaps: Gaps) -> None:
    announced(bench, timedelta(minutes=19))
    gaps.look_at([window()], at=NOW)
    assert open_kinds(gaps) == [("volumes", "drop")]
    gaps.look_at([window(at=NOW + LEAST_CADENCE)], at=NOW + LEAST_CADENCE)
    assert open_kinds(gaps) == [("volumes", "silence")]


def test_silences_of_datasets_and_products_come_and_go_by_themselves(bench: Bench, gaps: Gaps) -> None:
    def looked(at: datetime) -> list[tuple[str, str]]:
        sites = [window(name, at, {"site": site}) for name, site in (("here", "KTLX"), ("there", "KICT"))]
        gaps.look_at([*sites, replace(window("here", at), dataset="hrrr")], at=at)
        assert {gap.kind for gap in gaps.list(since=LONG_AGO)} <= {GapKind.SILENCE}
        return [(gap.dataset, gap.product) for gap in gaps.list(since=LONG_AGO)]

    announced(bench, *[timedelta(minutes=number) for number in range(8)])
    assert looked(NOW) == [("hrrr", "here"), ("nexrad-l2", "there")]
    announced(bench, *[timedelta(minutes=number) for number in range(8)], site="KICT")
    assert looked(NOW) == [("hrrr", "here")]
    # Within its hour it is the same one that flares up again; after that it is another.
    for minutes, rows in ((30, 3), (90, 3)):
        every = [("hrrr", "here"), ("nexrad-l2", "here"), ("nexrad-l2", "there")]
        assert looked(NOW + timedelta(minutes=minutes)) == every
        assert len(gaps.list(since=LONG_AGO, closed=True)) == rows
    later = NOW + timedelta(hours=2)
    announced(bench, *[NOW - later + timedelta(minutes=number) for number in range(8)], site="KICT")
    assert looked(later) == every[:2]
    assert looked(later + timedelta(hours=1)) == every
    assert len(gaps.list(since=LONG_AGO, closed=True)) == 4


def test_a_unit_is_announced_whatever_has_become_of_it(bench: Bench, gaps: Gaps) -> None:
    sites = dict(zip(("KTLX", "KICT", "KDDC", "KFTG", "KLOT"), Status, strict=True))
    for site, status in sites.items():
        for number in range(4):
            unit = envelope(next(_NUMBERS), site=site, event_time=NOW - timedelta(minutes=number))
            bench.bring_to(status.value, unit)
    gaps.look_at([window(site, groups={"site": site}) for site in sites], at=NOW)
    assert open_kinds(gaps) == []


def test_the_list_has_holes_since_then_and_what_is_amiss_now(bench: Bench, gaps: Gaps) -> None:
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

    here, other = [("nexrad-l2", "volumes", hour) for hour in (first, second)], ("hrrr", "volumes", first)
    silence, over = ("nexrad-l2", "open", before), ("nexrad-l2", "over", before)
    assert listed(first) == [other, silence, *here]
    assert listed(first + timedelta(seconds=1)) == [silence, here[1]]
    assert listed(first, limit=2) == [other, silence]
    assert listed(first, dataset="nexrad-l2") == [silence, *here]
    assert listed(first, closed=True) == [other, silence, *here]
    assert listed(before, closed=True) == [other, silence, over, *here]
    for since, days in ((before, [first.date()]), (second, [first.date()]), (second + timedelta(seconds=1), [])):
        assert gaps.open_days("nexrad-l2", since=since) == days


def test_a_product_is_followed_since_it_was_first_announced_and_a_listed_day_is_expected_whole(
    gaps: Gaps, database: Database
) -> None:
    day, next_day = NOW.date(), NOW.date() + timedelta(days=1)
    with database.transaction() as tx:
        gaps.follow("nexrad-l2", {"volumes": NOW, "chunks": LONG_AGO}, tx=tx)
        gaps.follow("nexrad-l2", {"volumes": LONG_AGO}, tx=tx)
        gaps.follow("hrrr", {"surface": LONG_AGO}, tx=tx)
        gaps.follow("gfs", {}, tx=tx)
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
        with database.transaction() as tx:
            gaps.listed("nexrad-l2", day.isoformat(), at=at, tx=tx)
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
            hour=START.replace(minute=0, second=0) + timedelta(hours=place),
            expected=expected,
            seen=number,
        )
        for place, number in enumerate(seen)
    ]


def repairs(found: Iterable[Gap]) -> list[tuple[int, int, str | None]]:
    return [(gap.hour.hour, gap.seen, gap.repaired_by) for gap in found]


def test_a_hole_opens_for_one_object_less_and_closes_when_it_comes(gaps: Gaps, database: Database) -> None:
    assert gaps.record("nexrad-l2", hours(2, 1, 0, 3), at=NOW) == (2, 0)
    assert repairs(gaps.list(since=LONG_AGO)) == [(1, 1, None), (2, 0, None)]
    # Looking again changes nothing.
    assert gaps.record("nexrad-l2", hours(2, 1, 0, 3), at=NOW + timedelta(hours=1)) == (0, 0)
    assert {gap.first_seen for gap in gaps.list(since=LONG_AGO)} == {NOW}
    assert gaps.record("nexrad-l2", hours(2, 2, 1, 3), at=NOW, run_id="r1") == (1, 1)
    assert repairs(gaps.list(since=LONG_AGO)) == [(2, 1, None)]
    assert repairs(gaps.list(since=LONG_AGO, closed=True)) == [(1, 2, "r1"), (2, 1, None)]
    # What is taken back is missing again.
    assert gaps.record("nexrad-l2", hours(2, 0, 3, 3), at=NOW) == (1, 1)
    assert repairs(gaps.list(since=LONG_AGO)) == [(1, 0, None)]
    # What is expected may change, too; what was whole then stays closed by the run that brought it.
    assert gaps.record("nexrad-l2", hours(3, 0, 3, 3, expected=3), at=NOW) == (1, 0)
    assert [gap.expected for gap in gaps.list(since=LONG_AGO)] == [3]
    with database.engine.connect() as connection:
        columns = [column["name"] for column in sa.inspect(connection).get_columns("kfm_gaps")]
        rows = connection.execute(sa.text("SELECT count(*) FROM kfm_gaps")).scalar_one()
    assert columns == [
        "dataset", "product", "hour", "kind", "expected", "seen", "first_seen", "closed_at", "repaired_by",
    ]  # fmt: skip
    assert rows == 2


def test_another_dataset_s_and_another_product_s_gaps_are_their_own(gaps: Gaps) -> None:
    other = [replace(hour, product="others") for hour in hours(0)]
    gaps.record("nexrad-l2", [*hours(0), *other], at=NOW)
    gaps.record("hrrr", hours(0), at=NOW)
    gaps.record("hrrr", hours(2), at=NOW)
    gaps.record("nexrad-l2", hours(2), at=NOW)
    assert [(gap.dataset, gap.product) for gap in gaps.list(since=LONG_AGO)] == [("nexrad-l2", "others")]
    assert gaps.open_days("nexrad-l2", since=LONG_AGO) == [START.date()]
    assert gaps.open_days("hrrr", since=LONG_AGO) == []
