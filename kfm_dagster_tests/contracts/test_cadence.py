"""Cadence: due hours, their expected objects, and when a product counts as silent."""

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
        # The cadence is the longest pause of the day: between 05 and 07.
        ({"hours": [hour for hour in range(24) if hour % 6]}, timedelta(hours=2)),
        ({"hours": [0, 6, 12, 18], "every_seconds": 3600}, HOUR),
    ]:
        assert product(**declared).cadence == cadence


def test_a_product_is_silent_after_two_cadences_and_its_rate_is_measured_over_four() -> None:
    for declared, silent_after, over, expected in [
        ({}, timedelta(minutes=20), timedelta(minutes=40), 4),
        ({"per_hour": 96, "every_seconds": 600}, timedelta(minutes=20), timedelta(minutes=40), 64),
        # Messages come in batches, so a file every 20 s has a cadence of a minute.
        ({"per_hour": 180}, timedelta(minutes=2), timedelta(minutes=4), 12),
        ({"per_hour": 49, "hours": [0, 6, 12, 18]}, timedelta(hours=12), timedelta(days=1), 4 * 49),
        ({"per_hour": 1, "hours": [0]}, timedelta(days=2), timedelta(days=4), 4),
    ]:
        pace = pace_of(product(**declared))
        assert (pace.silent_after, pace.over, pace.expected, pace.least) == (silent_after, over, expected, expected / 2)


def test_the_cadences_of_every_contract_agree_with_its_rates(contracts: ContractRegistry) -> None:
    known = {contract.id for contract in contracts if contract.coverage is not None}
    assert known == {
        "gfs", "goes-abi", "goes-glm", "hrrr", "mrms", "naqfc", "nexrad-l2", "nwm", "ocean", "rap", "refs", "rrfs",
        "rtma", "urma",
    }  # fmt: skip
    products = {
        (contract.id, entry.name): entry
        for contract in contracts
        if contract.coverage
        for entry in contract.coverage.products
    }
    # Mode 6: minutes between two scenes, by the last letter of the product's name.
    for (dataset, name), entry in products.items():
        if dataset == "goes-abi":
            assert entry.cadence == timedelta(minutes={"F": 10, "C": 5, "M": 1}[name[-1]])
            assert entry.per_hour % (HOUR // entry.cadence) == 0
    assert products["goes-glm", "G19"].cadence == timedelta(seconds=20)
    assert products["mrms", "precipitation rate over CONUS"].cadence == timedelta(minutes=2)
    assert products["ocean", "analysis"].cadence == timedelta(days=1)
    assert products["hrrr", "conus subh to 18 h"].cadence == HOUR
    assert products["gfs", "atmosphere at 1p00"].cadence == timedelta(hours=6)


def test_an_hour_is_due_once_it_has_settled() -> None:
    for late, due in [(timedelta(0), 4), (timedelta(microseconds=1), 3)]:
        coverage = Coverage(settles_after_seconds=900, products=[product()])
        at = MIDNIGHT + 4 * HOUR + timedelta(minutes=15) - late
        assert len(product_hours(coverage, DAY, [], at=at)) == due


@pytest.mark.parametrize(("first", "hours"), [(0, [3, 4]), (3599, [3, 4]), (3600, [4])])
def test_a_product_is_due_from_the_hour_after_its_first_announcement(first: int, hours: list[int]) -> None:
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
def test_the_counts_by_hour_equal_an_independent_count(
    coverage: Coverage, arrivals: list[tuple[int, str, str]], now: int, followed: dict[str, int] | None
) -> None:
    at = MIDNIGHT + timedelta(minutes=now)
    since = None if followed is None else {name: MIDNIGHT + timedelta(minutes=m) for name, m in followed.items()}
    counts = [
        ProductCount(hour=hour, groups={"kind": kind, "band": band, "site": "x"}, objects=objects)
        for (hour, kind, band), objects in Counter(arrivals).items()
    ]
    expected = []
    for entry in coverage.products:
        for hour in range(24):
            begin = MIDNIGHT + hour * HOUR
            settled = begin + HOUR + timedelta(seconds=coverage.settles_after_seconds) <= at
            is_followed = followed is None or (entry.name in followed and followed[entry.name] // 60 < hour)
            has_begun = entry.since is None or entry.since <= DAY
            if settled and is_followed and has_begun and (not entry.hours or hour in entry.hours):
                seen = sum(
                    1
                    for arrival in arrivals
                    if arrival[0] == hour
                    and entry.groups.get("kind", arrival[1]) == arrival[1]
                    and entry.groups.get("band", arrival[2]) == arrival[2]
                )
                expected.append((entry.name, begin, entry.per_hour, seen))
    hours = product_hours(coverage, DAY, counts, at=at, followed=since)
    assert [(hour.product, hour.hour, hour.expected, hour.seen) for hour in hours] == expected
    assert [hour.whole for hour in hours] == [seen >= per_hour for _, _, per_hour, seen in expected]
