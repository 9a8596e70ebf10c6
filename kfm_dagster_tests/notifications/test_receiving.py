"""The budgets of one receive call: messages, bytes and units."""

from __future__ import annotations

import pytest

from kfm_dagster.notifications.fields import MAX_BODY_BYTES
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.receiving import PART_BYTES, PART_UNITS, ReceiveCall, in_parts, weight

pytestmark = pytest.mark.clause("SEC-08")

SMALL = "x" * 2_000


def messages(number: int, body: str, first: int = 0) -> list[SqsMessage]:
    return [SqsMessage(message_id=f"m{index}", body=body) for index in range(first, first + number)]


def receive_call(**budgets: int) -> ReceiveCall:
    return ReceiveCall(**{"max_messages": 1_000, **budgets})


def test_requests_reserve_sqs_s_largest_size_and_later_that_of_the_largest_message() -> None:
    call = receive_call(max_bytes=15 * MAX_BODY_BYTES)
    assert call.requests(8) == [10, 5]
    call.add(messages(10, SMALL))
    # The received messages were small, so each further message reserves less.
    assert call.requests(8) == [10] * 8


def test_requests_end_at_the_budget_of_bytes_or_messages() -> None:
    call = receive_call(max_bytes=12 * MAX_BODY_BYTES)
    call.add(messages(10, "x" * MAX_BODY_BYTES))
    assert call.requests(8) == [2]
    call.add(messages(2, "x" * MAX_BODY_BYTES, 10))
    assert call.requests(8) == []
    few = receive_call(max_messages=12)
    few.add(messages(10, SMALL))
    assert few.requests(8) == [2]


@pytest.mark.parametrize(("max_units", "more"), [(20, []), (21, [10])])
def test_requests_end_at_the_budget_of_units(max_units: int, more: list[int]) -> None:
    call = receive_call(max_units=max_units)
    call.add(messages(10, '{"eventTime":0,"x":{"eventTime":0}}'))
    assert call.requests(1) == more


def test_three_consecutive_empty_answers_end_a_call() -> None:
    call = receive_call()
    for answer in ([], [], messages(1, SMALL), [], []):
        call.add(answer)
        assert call.requests(1)
    call.add([])
    assert not call.requests(1)


def test_a_part_is_within_its_bounds_or_has_one_message() -> None:
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
