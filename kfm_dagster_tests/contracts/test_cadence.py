"""Cadence: which hours are due, how many objects each should have, and when a pause is a silence."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.cadence import ProductCount, hours_due, pace_of, product_hours
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import Coverage, ExpectedProduct

pytestmark = pytest.mark.clause("BEY-05")

DAY = date(2025, 12, 3)
MIDNIGHT = datetime.combine(DAY, time(), UTC)
HOUR = timedelta(hours=1)
KINDS = ("a", "b", "c")


def product(**declared: Any) -> ExpectedProduct:
    return ExpectedProduct(**{"name": "p", "per_hour": 6, **declared})


def test_the_cadence_is_declared_or_follows_from_hours_and_rate() -> None:
    for declared, cadence in [
        ({}, timedelta(minutes=10)),
        ({"per_hour": 96, "every_seconds": 600}, timedelta(minutes=10)),
        ({"hours": [0, 6, 12, 18]}, timedelta(hours=6)),
        ({"hours": [0]}, timedelta(days=1)),
        # The longest pause of a day counts: between 05 and 07.
        ({"hours": [hour for hour in range(24) if hour % 6]}, timedelta(hours=2)),
        ({"hours": [0, 6, 12, 18], "every_seconds": 3600}, HOUR),
    ]:
        assert product(**declared).cadence == cadence


def test_a_product_is_silent_after_two_cadences_and_its_rate_is_taken_over_four() -> None:
    for declared, silent_after, over, expected in [
        ({}, timedelta(minutes=20), timedelta(minutes=40), 4),
        ({"per_hour": 96, "every_seconds": 600}, timedelta(minutes=20), timedelta(minutes=40), 64),
        # Messages come in batches: a file every 20 s is looked for by the minute.
        ({"per_hour": 180}, timedelta(minutes=2), timedelta(minutes=4), 12),
        ({"per_hour": 49, "hours": [0, 6, 12, 18]}, timedelta(hours=12), timedelta(days=1), 4 * 49),
        ({"per_hour": 1, "hours": [0]}, timedelta(days=2), timedelta(days=4), 4),
    ]:
        pace = pace_of(product(**declared))
        assert (pace.silent_after, pace.over, pace.expected, pace.least) == (silent_after, over, expected, expected / 2)


def test_every_contract_states_cadences_that_its_rates_agree_with(contracts: ContractRegistry) -> None:
    known = {contract.id for contract in contracts if contract.coverage is not None}
    assert known == {
        "gfs", "goes-abi", "goes-glm", "hrrr", "mrms", "naqfc", "nexrad-l2", "nwm", "ocean", "rap", "refs", "rrfs",
        "rtma", "urma",
    }  # fmt: skip
    found = {
        (contract.id, one.name): one
        for contract in contracts
        if contract.coverage
        for one in contract.coverage.products
    }
    # Mode 6: minutes between two scenes, by the last letter of the product's name.
    for (dataset, name), one in found.items():
        if dataset == "goes-abi":
            assert one.cadence == timedelta(minutes={"F": 10, "C": 5, "M": 1}[name[-1]])
            assert one.per_hour % (HOUR // one.cadence) == 0
    assert found["goes-glm", "G19"].cadence == timedelta(seconds=20)
    assert found["mrms", "precipitation rate over CONUS"].cadence == timedelta(minutes=2)
    assert found["ocean", "analysis"].cadence == timedelta(days=1)
    assert found["hrrr", "conus subh to 18 h"].cadence == HOUR
    assert found["gfs", "atmosphere at 1p00"].cadence == timedelta(hours=6)


def test_an_hour_is_due_once_it_has_settled_and_not_a_moment_before() -> None:
    for late, due in [(timedelta(0), 4), (timedelta(microseconds=1), 3)]:
        coverage = Coverage(settles_after_seconds=900, products=[product()])
        at = MIDNIGHT + 4 * HOUR + timedelta(minutes=15) - late
        assert len(product_hours(coverage, DAY, [], at=at)) == due


@pytest.mark.parametrize(("first", "hours"), [(0, [3, 4]), (3599, [3, 4]), (3600, [4])])
def test_a_product_is_due_from_the_hour_after_the_one_in_which_it_was_first_announced(
    first: int, hours: list[int]
) -> None:
    since = MIDNIGHT + 2 * HOUR + timedelta(seconds=first)
    due = hours_due(product(), DAY, until=MIDNIGHT + 5 * HOUR, followed_since=since)
    assert [hour.hour for hour in due] == hours


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    names = draw(st.lists(st.sampled_from("pqr"), min_size=1, max_size=3, unique=True))
    products = [
        ExpectedProduct(
            name=name,
            groups=draw(st.sampled_from([{}, {"kind": "a"}, {"kind": "b", "band": "1"}])),
            per_hour=draw(st.integers(1, 4)),
            hours=draw(st.lists(st.integers(0, 23), max_size=6)),
            since=draw(st.none() | st.sampled_from([DAY - timedelta(1), DAY, DAY + timedelta(1)])),
        )
        for name in names
    ]
    return Coverage(settles_after_seconds=draw(st.sampled_from([0, 900, 7200])), products=products)


ARRIVALS = st.lists(st.tuples(st.integers(0, 23), st.sampled_from(KINDS), st.sampled_from("12")), max_size=60)


@given(
    coverage=coverages(),
    arrivals=ARRIVALS,
    now=st.integers(0, 30 * 60),
    followed=st.none() | st.dictionaries(st.sampled_from("pqr"), st.integers(-120, 24 * 60)),
)
def test_what_is_missing_is_what_counting_by_hand_finds(
    coverage: Coverage, arrivals: list[tuple[int, str, str]], now: int, followed: dict[str, int] | None
) -> None:
    at = MIDNIGHT + timedelta(minutes=now)
    since = None if followed is None else {name: MIDNIGHT + timedelta(minutes=m) for name, m in followed.items()}
    counts = [
        ProductCount(hour=hour, groups={"kind": kind, "band": band, "site": "x"}, objects=objects)
        for (hour, kind, band), objects in Counter(arrivals).items()
    ]
    expected = []
    for one in coverage.products:
        for hour in range(24):
            begin = MIDNIGHT + hour * HOUR
            settled = begin + HOUR + timedelta(seconds=coverage.settles_after_seconds) <= at
            here = followed is None or (one.name in followed and followed[one.name] // 60 < hour)
            of_day = one.since is None or one.since <= DAY
            if settled and here and of_day and (not one.hours or hour in one.hours):
                seen = sum(
                    1
                    for arrival in arrivals
                    if arrival[0] == hour
                    and one.groups.get("kind", arrival[1]) == arrival[1]
                    and one.groups.get("band", arrival[2]) == arrival[2]
                )
                expected.append((one.name, begin, one.per_hour, seen))
    found = product_hours(coverage, DAY, counts, at=at, followed=since)
    assert [(one.product, one.hour, one.expected, one.seen) for one in found] == expected
    assert [one.whole for one in found] == [seen >= per_hour for _, _, per_hour, seen in expected]
