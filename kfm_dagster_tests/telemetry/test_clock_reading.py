"""What the kernel's answer and an HTTP Date say of the clock."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kfm_dagster.telemetry.clock.kernel import NtpState, adjtimex, clock_id, kernel_clock
from kfm_dagster.telemetry.clock.reading import (
    ClockReading,
    ClockState,
    OffsetInterval,
    UnusableDateError,
    offset_from_date,
)
from kfm_dagster_tests.telemetry.conftest import http_date

NOW = datetime(2025, 12, 3, 12, 0, 0, tzinfo=UTC)

delays = st.floats(0, 10)
moments = st.floats(0, 1e6).map(lambda seconds: NOW + timedelta(seconds=seconds))


@st.composite
def questions(draw: st.DrawFn, offset: float) -> OffsetInterval:
    """What one honest answer says to a clock that is wrong by `offset`."""
    true = draw(moments)
    there, back = timedelta(seconds=draw(delays)), timedelta(seconds=draw(delays))
    local = true - timedelta(seconds=offset)
    return offset_from_date(http_date(true), sent_at=local - there, received_at=local + back)


@pytest.mark.clause("PCS-17")
@given(st.data(), st.floats(-1e5, 1e5))
def test_honest_answers_hold_the_true_offset_and_more_of_them_hold_it_no_wider(
    data: st.DataObject, offset: float
) -> None:
    standing = data.draw(questions(offset))
    rounding = 1e-5  # datetimes have microseconds
    for _ in range(data.draw(st.integers(0, 5))):
        more = data.draw(questions(offset))
        both = standing.intersection(more)
        if both is None:  # two that touch in one point, and a microsecond between them
            assert max(standing.low, more.low) - min(standing.high, more.high) < rounding
            continue
        assert both == more.intersection(standing)
        assert both.half_width <= min(standing.half_width, more.half_width)
        standing = both
    assert standing.low - rounding <= offset <= standing.high + rounding
    assert abs(standing.midpoint - offset) <= standing.half_width + rounding


@given(moments, delays, delays)
def test_the_uncertainty_of_one_answer_is_half_a_second_and_half_the_round_trip(
    true: datetime, there: float, back: float
) -> None:
    sent, received = true - timedelta(seconds=there), true + timedelta(seconds=back)
    found = offset_from_date(http_date(true), sent_at=sent, received_at=received)
    assert found.half_width == pytest.approx(0.5 + (received - sent).total_seconds() / 2)


def test_intervals_that_exclude_each_other_have_nothing_in_common() -> None:
    assert OffsetInterval(low=-1, high=0).intersection(OffsetInterval(low=1, high=2)) is None
    assert OffsetInterval(low=-1, high=1).intersection(OffsetInterval(low=1, high=2)) == OffsetInterval(low=1, high=1)


def test_every_form_of_an_http_date_is_read_as_utc() -> None:
    for date in ["Wed, 03 Dec 2025 12:00:00 GMT", "Wednesday, 03-Dec-25 12:00:00 GMT", "Wed Dec  3 12:00:00 2025"]:
        assert offset_from_date(date, sent_at=NOW, received_at=NOW) == OffsetInterval(low=0, high=1)


@given(st.text())
def test_what_is_no_date_is_refused_by_name(text: str) -> None:
    try:
        assert isinstance(offset_from_date(text, sent_at=NOW, received_at=NOW), OffsetInterval)
    except UnusableDateError as error:
        assert "expected an HTTP date" in str(error)  # noqa: PT017


def test_a_wrong_date_is_refused() -> None:
    for date in ["", "soon", "Wed, 03 Dec 2025 25:00:00 GMT", "Wed, 03 Dec 99999 12:00:00 GMT"]:
        with pytest.raises(UnusableDateError, match="no time; observed"):
            offset_from_date(date, sent_at=NOW, received_at=NOW)


@given(st.floats(1e-6, 1e6))
def test_an_answer_before_its_question_is_refused(seconds: float) -> None:
    received = NOW - timedelta(seconds=seconds)
    assume(received < NOW)
    with pytest.raises(UnusableDateError, match="set back"):
        offset_from_date(http_date(NOW), sent_at=NOW, received_at=received)


SYNCED, UNSYNCED, NANO = 0x0001, 0x0041, 0x2001
"""STA_PLL; with STA_UNSYNC; with STA_NANO."""


@pytest.mark.clause("PCS-10")
def test_the_kernel_locks_its_clock_only_while_it_is_synchronised() -> None:
    for said, state, offset, uncertainty in [
        (NtpState(answer=0, status=SYNCED, offset=-1500, maxerror=250_000), ClockState.LOCKED, -0.0015, 0.25),
        (NtpState(answer=0, status=NANO, offset=1_500_000, maxerror=1), ClockState.LOCKED, 0.0015, 1e-6),
        (NtpState(answer=1, status=NANO, offset=0, maxerror=0), ClockState.LOCKED, 0.0, 0.0),  # a leap second is due
        (NtpState(answer=5, status=SYNCED, offset=0, maxerror=0), ClockState.UNLOCKED, None, None),
        (NtpState(answer=0, status=UNSYNCED, offset=0, maxerror=0), ClockState.UNLOCKED, None, None),
        (None, ClockState.UNKNOWN, None, None),
    ]:
        found = kernel_clock(NOW, ask=lambda said=said: said)
        assert found == ClockReading(
            at=NOW, source="kernel", offset_seconds=offset, uncertainty_seconds=uncertainty, state=state
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adjtimex is Linux's")
def test_this_kernel_answers_and_has_one_clock() -> None:
    found = adjtimex()
    if found is not None:  # a sandbox may refuse it
        assert 0 <= found.answer <= 5
        # The kernel counts the maximum error up to 16 s; a layout read wrongly would show anything.
        assert 0 <= found.maxerror <= 16_000_000
        assert 0 <= found.status < 2**16
        assert (found.answer == 5) or not found.status & 0x40
    assert clock_id() == clock_id() != ""
