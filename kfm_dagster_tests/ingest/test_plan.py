"""Planning runs: enough for what is pending, never more, and each under a name that a repeated tick gives again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.ingest.plan import ActiveRuns, LaneKey, PlannedRun, lane_limits, plan_runs
from kfm_dagster.ledger.reports import PendingPartition
from kfm_dagster.settings import Settings

DAY = "2025-04-02"

Pending = Mapping[tuple[str, str], int]
NO_LIMITS: Mapping[Lane, int | None] = {}


def counter(runs: Mapping[str, int] | None, lane: Lane) -> Counter[LaneKey]:
    return Counter({(partition, lane): number for partition, number in (runs or {}).items()})


def plan(
    pending: Pending,
    *,
    bulk: Pending | None = None,
    active: Mapping[str, int] | None = None,
    coming: Mapping[str, int] | None = None,
    active_bulk: Mapping[str, int] | None = None,
    limits: Mapping[Lane, int | None] = NO_LIMITS,
    most: int = 10,
    salt: str = "0",
) -> list[PlannedRun]:
    """Plan for pending live and bulk units by (dataset, partition)."""
    there = counter(coming, Lane.LIVE)
    return plan_runs(
        [
            PendingPartition(dataset=dataset, partition=partition, lane=lane, units=units)
            for lane, found in ((Lane.LIVE, pending), (Lane.BULK, bulk or {}))
            for (dataset, partition), units in found.items()
        ],
        runs=ActiveRuns(
            active=(counter(active, Lane.LIVE) | there) + counter(active_bulk, Lane.BULK),
            coming=there,
        ),
        limits=limits,
        max_units_per_run=most,
        salt=lambda _: salt,
    )


def shape(runs: list[PlannedRun]) -> list[tuple[str, tuple[str, ...]]]:
    return [(run.partition, run.datasets) for run in runs]


def lanes(runs: list[PlannedRun]) -> list[tuple[str, str]]:
    return [(run.lane.value, run.partition) for run in runs]


@pytest.mark.clause("DAG-03")
def test_runs_follow_from_what_is_pending() -> None:
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
        # Coming runs take their units; beside two active live runs, or a bulk run, a further one takes at least half of
        # a run's most units, or a hundred.
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
        assert shape(plan(**case)) == expected, case


def test_a_run_key_is_the_same_in_every_release() -> None:
    """Dagster remembers run keys for ever: a release that renamed runs would start finished ones again."""
    [run] = plan({("goes-abi", DAY): 1})
    assert run.run_key == "a6b6647be105c5ebd33e440524012d6789a475769737e3dd7671ea850597e5bd"


@pytest.mark.clause("BEY-14")
def test_a_lane_gets_its_share_of_runs_and_no_more() -> None:
    cases: list[tuple[dict[str, Any], list[Any]]] = [
        # A run takes units of one lane, live ones are asked for first.
        ({"pending": {("a", DAY): 1}, "bulk": {("a", DAY): 1}}, [("live", DAY), ("bulk", DAY)]),
        ({"pending": {("a", DAY): 1}, "bulk": {("a", "1999-01-01"): 1}}, [("live", DAY), ("bulk", "1999-01-01")]),
        # However much bulk work waits, it gets what its limit leaves; live work is not counted against it.
        ({"pending": {}, "bulk": {("a", DAY): 60_000}, "limits": {Lane.BULK: 2}}, [("bulk", DAY)] * 2),
        (
            {"pending": {("a", DAY): 25}, "bulk": {("a", DAY): 60_000}, "limits": {Lane.BULK: 1}},
            [*[("live", DAY)] * 3, ("bulk", DAY)],
        ),
        ({"pending": {}, "bulk": {("a", DAY): 60}, "limits": {Lane.BULK: 2}, "active_bulk": {"1999-01-01": 2}}, []),
        ({"pending": {}, "bulk": {("a", DAY): 60}, "limits": {Lane.BULK: 0}}, []),
        # Bulk runs of a partition hold up no live run of it.
        ({"pending": {("a", DAY): 1}, "active_bulk": {DAY: 3}}, [("live", DAY)]),
        # While bulk work waits, live work leaves it a slot.
        (
            {"pending": {("a", DAY): 60_000}, "bulk": {("b", DAY): 1}, "limits": {Lane.LIVE: 2, Lane.BULK: 1}},
            [("live", DAY), ("live", DAY), ("bulk", DAY)],
        ),
        ({"pending": {("a", DAY): 60}, "active": {"2025-04-01": 2}, "limits": {Lane.LIVE: 2}}, []),
    ]
    for case, expected in cases:
        assert lanes(plan(**case)) == expected, case


@pytest.mark.clause("BEY-14")
def test_the_live_share_sets_the_limits() -> None:
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
    # A run may be asked for again once an earlier one of its partition has come.
    assert {run.run_key for run in plan(pending, active=active, most=most, salt="1")}.isdisjoint(keys)
