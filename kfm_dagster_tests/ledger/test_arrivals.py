"""Arrival times: percentiles from counts by class are exact within the width of a class."""

from __future__ import annotations

import math
from collections import Counter
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.gaps import ArrivalTimes, arrival_times, class_of, count_day, counted_days, percentile
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import START, envelope
from kfm_dagster_tests.ledger.bench import make_bench

pytestmark = pytest.mark.clause("BEY-05")

DAY = START.date()


@given(st.lists(st.integers(0, 8 * 86_400), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_from_counts_by_class_is_exact_to_one_percent(seconds: list[int], share: float) -> None:
    exact = sorted(seconds)[max(1, math.ceil(share * len(seconds))) - 1]
    approximation = percentile(Counter(map(class_of, seconds)), share)
    assert abs(approximation - exact) <= 0.01 * exact + 0.5


def test_an_announcement_before_the_start_of_the_data_counts_as_no_delay() -> None:
    assert percentile({class_of(-30): 1}, 0.5) == 0


def test_days_are_counted_by_product_and_summed_over_a_window(database: Database, contracts: ContractRegistry) -> None:
    bench, contract = make_bench(database, contracts), contracts["nexrad-l2"]
    delays = [60] * 50 + [300] * 45 + [600] * 5
    bench.ledger.ensure(
        [envelope(number, event_time=START + timedelta(seconds=number + delay)) for number, delay in enumerate(delays)]
    )
    with database.transaction() as tx:
        # Counting a day again replaces its counts.
        for day in (DAY, DAY, DAY + timedelta(1)):
            count_day(contract, day, tx=tx)
        count_day(contracts["surface-obs"], DAY, tx=tx)
        assert counted_days("nexrad-l2", since=DAY, tx=tx) == {DAY}
    [times] = arrival_times(database, first=DAY, last=DAY)
    assert (times.dataset, times.product, times.lead, times.objects) == (
        "nexrad-l2", "volumes of the network", None, 100,
    )  # fmt: skip
    assert [times.p50, times.p95, times.p99] == pytest.approx([60, 300, 600], rel=0.01)
    assert arrival_times(database, first=DAY + timedelta(1), last=DAY + timedelta(9)) == []


def test_lead_times_of_a_forecast_are_counted_separately(database: Database, contracts: ContractRegistry) -> None:
    bench = make_bench(database, contracts)
    run = START.replace(minute=0, second=0)
    bench.ledger.ensure([_forecast(lead, run, timedelta(minutes=50 + lead)) for lead in range(19)])
    with database.transaction() as tx:
        count_day(contracts["hrrr"], date(2025, 12, 3), tx=tx)
    all_times = arrival_times(database, first=DAY, last=DAY, dataset="hrrr", by_lead=True)
    assert {arrival.lead for arrival in all_times} == {f"{lead:02}" for lead in range(19)}
    assert {arrival.product for arrival in all_times} == {"conus sfc to 48 h"}
    times: dict[str | None, ArrivalTimes] = {arrival.lead: arrival for arrival in all_times}
    assert [times[f"{lead:02}"].p50 for lead in (0, 18)] == pytest.approx([50 * 60, 68 * 60], rel=0.01)
    [together] = arrival_times(database, first=DAY, last=DAY, dataset="hrrr")
    assert together.objects == 19


def _forecast(lead: int, run: datetime, delay: timedelta) -> Envelope:
    uri = f"s3://noaa-hrrr-bdp-pds/hrrr.{run:%Y%m%d}/conus/hrrr.t{run:%H}z.wrfsfcf{lead:02}.grib2"
    return envelope(lead, dataset="hrrr", object_uri=uri, time_range_start=run, event_time=run + delay)
