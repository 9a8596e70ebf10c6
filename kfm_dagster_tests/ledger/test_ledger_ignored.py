"""Ignored records: each leaves a row, once, and a message can leave only so many."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfm_dagster.ledger.deliveries import Delivery, DeliveryState
from kfm_dagster.ledger.rejections import NAMED_PER_MESSAGE, IgnoredRecord, ignored_rows
from kfm_dagster.views.feeds import IGNORED, IGNORED_COUNTS, IgnoredFilter
from kfm_dagster.views.view import View
from kfm_dagster_tests.ledger.bench import Bench


def sidecar(index: int, *, dataset: str = "hrrr") -> IgnoredRecord:
    return IgnoredRecord(record_index=index, reason="sidecar", dataset=dataset, bucket="b", key=f"k{index}")


def receive(bench: Bench, *records: IgnoredRecord, number: int = 1) -> None:
    bench.deliveries.record(
        [
            Delivery(
                message_id=f"m{number}",
                queue="q",
                receipt_handle="r",
                landing_sha256="a" * 64,
                ignored=records,
                state=DeliveryState.IGNORED,
            )
        ]
    )


def rows(bench: Bench, view: View, *, limit: int = 10_000) -> Sequence[Any]:
    return view.query(cast("Any", bench), IgnoredFilter(), None, limit).rows


def kept(bench: Bench) -> list[IgnoredRecord]:
    names = [field.name for field in dataclasses.fields(IgnoredRecord)]
    found = rows(bench, IGNORED)
    return [IgnoredRecord(**{name: getattr(one, name) for name in names}) for one in found]


@pytest.mark.clause("OPR-19")
def test_a_message_that_comes_again_leaves_its_first_trace(bench: Bench) -> None:
    receive(bench, sidecar(0))
    bench.clock.advance(900)
    receive(bench, sidecar(0), sidecar(1))
    assert kept(bench) == [sidecar(1), sidecar(0)]
    assert [one.received_at for one in rows(bench, IGNORED, limit=1)] == [bench.clock()]


@pytest.mark.clause("OPR-19")
@pytest.mark.parametrize("beyond", [0, 1, 4_000])
def test_beyond_its_bound_a_message_s_records_are_counted_by_reason_and_dataset(bench: Bench, beyond: int) -> None:
    named = [sidecar(index) for index in range(NAMED_PER_MESSAGE)]
    more = [sidecar(NAMED_PER_MESSAGE + index, dataset=f"d{index % 2}") for index in range(beyond)]
    receive(bench, *named, *more)
    groups = min(beyond, 2)
    assert len(kept(bench)) == NAMED_PER_MESSAGE + groups
    assert [one.key for one in kept(bench)[NAMED_PER_MESSAGE:]] == [None] * groups
    counts = {one.dataset: one.records for one in rows(bench, IGNORED_COUNTS)}
    assert counts.pop("hrrr") == NAMED_PER_MESSAGE
    assert sum(counts.values()) == beyond


@pytest.mark.clause("OPR-19")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["sidecar", "known_neighbour"]), st.sampled_from([None, "a", "b"])), max_size=300
    )
)
def test_no_record_is_counted_twice_or_not_at_all(records: list[tuple[str, str | None]]) -> None:
    rows = ignored_rows(
        "m",
        [
            IgnoredRecord(record_index=index, reason=reason, dataset=dataset, key="k")
            for index, (reason, dataset) in enumerate(records)
        ],
    )
    assert len(rows) <= NAMED_PER_MESSAGE + 6
    assert len({row["record_index"] for row in rows}) == len(rows)
    for group in set(records):
        counted = sum(row["records"] for row in rows if (row["reason"], row["dataset"]) == group)
        assert counted == records.count(group)
