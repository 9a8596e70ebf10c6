"""The budgets of one receive call: messages, bytes and units, whatever its threads are doing."""

from __future__ import annotations

import threading
import time

import pytest

from kfm_dagster.notifications.fields import MAX_BODY_BYTES
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.receiving import PART_BYTES, PART_UNITS, ReceiveProgress, in_parts, weight

SMALL = "x" * 2_000


def messages(number: int, body: str, first: int = 0) -> list[SqsMessage]:
    return [SqsMessage(message_id=f"m{index}", body=body) for index in range(first, first + number)]


def progress(**budgets: int) -> ReceiveProgress:
    return ReceiveProgress(**{"max_messages": 1_000, **budgets}, deadline=time.monotonic() + 60)


@pytest.mark.clause("SEC-08")
def test_the_first_requests_reserve_as_much_as_sqs_may_send() -> None:
    call = progress(max_bytes=15 * MAX_BODY_BYTES)
    assert [call.reserve(), call.reserve()] == [10, 5]
    call.add(messages(10, SMALL), reserved=10)
    # What came was small, so there is room for many more; each reserves what the largest may grow to.
    assert call.reserve() == 10


@pytest.mark.clause("SEC-08")
def test_nothing_is_asked_for_beyond_the_bytes() -> None:
    call = progress(max_bytes=12 * MAX_BODY_BYTES)
    call.add(messages(call.reserve(), "x" * MAX_BODY_BYTES), reserved=10)
    assert call.reserve() == 2
    call.add(messages(2, "x" * MAX_BODY_BYTES, 10), reserved=2)
    assert call.reserve() == 0


@pytest.mark.clause("SEC-08")
@pytest.mark.parametrize(("max_units", "more"), [(20, 0), (21, 10)])
def test_nothing_is_asked_for_once_the_units_are_there(max_units: int, more: int) -> None:
    call = progress(max_units=max_units)
    call.add(messages(call.reserve(), '{"eventTime":0,"x":{"eventTime":0}}'), reserved=10)
    assert call.reserve() == more


def test_a_thread_without_room_waits_for_another_ones_answer() -> None:
    call = progress(max_bytes=10 * MAX_BODY_BYTES)
    first = call.reserve()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(call.reserve()))
    waiting.start()
    assert found == []
    call.add(messages(first, SMALL), reserved=first)
    waiting.join(30)
    assert found == [10]


@pytest.mark.clause("SEC-08")
def test_a_part_is_as_heavy_as_its_bounds_or_one_message() -> None:
    heavy = "x" * (PART_BYTES // 2)
    many = "eventTime" * (PART_UNITS // 2)
    for batch, parts in (
        (messages(5, heavy), [2, 2, 1]),
        (messages(5, many), [2, 2, 1]),
        (messages(3, many * 3), [1, 1, 1]),
        (messages(PART_UNITS, "eventTime"), [PART_UNITS]),
        ([], []),
    ):
        assert [len(part) for part in in_parts(batch, weight, (PART_BYTES, PART_UNITS))] == parts
