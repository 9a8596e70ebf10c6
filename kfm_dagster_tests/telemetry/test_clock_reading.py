"""What the kernel's answer and an HTTP Date say of the clock, and the record of it on both databases."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock.quality import clock_quality
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading, ClockState, clock_id
from kfm_dagster.telemetry.clock.sources import NtpState, adjtimex, kernel_clock, reading_of
from kfm_dagster_tests.clocks import kernel_reading, server_reading
from kfm_dagster_tests.telemetry.conftest import http_date

NOW = datetime(2025, 12, 3, 12, 0, 0, tzinfo=UTC)

delays = st.floats(0, 10).map(lambda seconds: timedelta(seconds=seconds))
moments = st.floats(0, 1e6).map(lambda seconds: NOW + timedelta(seconds=seconds))


def told(date: str | None, *, sent_at: datetime = NOW, received_at: datetime = NOW) -> tuple[float, float]:
    reading = reading_of(date, host="s3", sent_at=sent_at, received_at=received_at)
    assert (reading.at, reading.source, reading.state) == (received_at, "date:s3", ClockState.UNKNOWN)
    assert reading.offset_seconds is not None
    assert reading.uncertainty_seconds is not None
    return reading.offset_seconds, reading.uncertainty_seconds


@pytest.mark.clause("PCS-17")
@given(moments, delays, delays, st.floats(-1e5, 1e5))
def test_an_honest_answer_holds_the_true_offset_within_half_a_second_and_half_the_round_trip(
    true: datetime, there: timedelta, back: timedelta, offset: float
) -> None:
    sent, received = (true - timedelta(seconds=offset) + way for way in (-there, back))
    found, uncertainty = told(http_date(true), sent_at=sent, received_at=received)
    assert abs(found - offset) <= uncertainty + 1e-5  # datetimes have microseconds
    assert uncertainty == pytest.approx(0.5 + (received - sent).total_seconds() / 2)


def test_every_form_of_an_http_date_is_read_as_utc_and_a_wrong_one_refused() -> None:
    for date in ["Wed, 03 Dec 2025 12:00:00 GMT", "Wednesday, 03-Dec-25 12:00:00 GMT", "Wed Dec  3 12:00:00 2025"]:
        assert told(date) == (0.5, 0.5)
    for wrong in (None, "", "soon", "Wed, 03 Dec 2025 25:00:00 GMT", "Wed, 03 Dec 99999 12:00:00 GMT"):
        with pytest.raises(ValueError, match="no HTTP date"):
            told(wrong)


@given(st.text())
def test_no_text_of_a_server_raises_anything_else(text: str) -> None:
    with suppress(ValueError):
        told(text)


@given(st.floats(1e-6, 1e6))
def test_an_answer_before_its_question_is_refused(seconds: float) -> None:
    received = NOW - timedelta(seconds=seconds)
    assume(received < NOW)
    with pytest.raises(ValueError, match="set back"):
        told(http_date(NOW), received_at=received)


SYNCED, UNSYNCED, NANO = 0x0001, 0x0041, 0x2001
"""STA_PLL; with STA_UNSYNC; with STA_NANO."""


@pytest.mark.clause("PCS-10")
def test_the_kernel_locks_its_clock_only_while_it_is_synchronised() -> None:
    for said, state, offset, uncertainty in [
        ((0, NtpState(status=SYNCED, offset=-1500, maxerror=250_000)), ClockState.LOCKED, -0.0015, 0.25),
        ((0, NtpState(status=NANO, offset=1_500_000, maxerror=1)), ClockState.LOCKED, 0.0015, 1e-6),
        ((1, NtpState(status=NANO, offset=0, maxerror=0)), ClockState.LOCKED, 0.0, 0.0),  # a leap second is due
        ((5, NtpState(status=SYNCED, offset=0, maxerror=0)), ClockState.UNLOCKED, None, None),
        ((0, NtpState(status=UNSYNCED, offset=0, maxerror=0)), ClockState.UNLOCKED, None, None),
        (None, ClockState.UNKNOWN, None, None),
    ]:
        found = kernel_clock(NOW, ask=lambda said=said: said)
        assert found == ClockReading(
            at=NOW, source="kernel", offset_seconds=offset, uncertainty_seconds=uncertainty, state=state
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adjtimex is Linux's")
def test_this_kernel_answers_and_has_one_clock() -> None:
    if (answered := adjtimex()) is not None:  # a sandbox may refuse it
        answer, found = answered
        assert 0 <= answer <= 5
        # The kernel counts the maximum error up to 16 s; a layout read wrongly would show anything.
        assert 0 <= found.maxerror <= 16_000_000
        assert 0 <= found.status < 2**16
        assert (answer == 5) or not found.status & 0x40
    assert clock_id() == clock_id() != ""


TAKEN = datetime(2025, 12, 3, 12, 0, 0, 123456, tzinfo=UTC)


def reading(seconds: float, offset: float | None = 0.25) -> ClockReading:
    at = TAKEN + timedelta(seconds=seconds)
    return kernel_reading(at, ClockState.UNLOCKED) if offset is None else server_reading(at, offset)


@pytest.mark.clause("PCS-17")
def test_readings_come_back_as_they_were_in_the_order_of_taking(database: Database) -> None:
    log = ClockLog(database)
    # The clock was set back by an hour before the third.
    taken = [reading(0), reading(10, None), reading(-3590), reading(-3580)]
    log.record(taken[:2])
    log.record(taken[2:])
    assert log.recent(since=TAKEN - timedelta(days=1)) == tuple(taken)
    assert log.recent(since=TAKEN - timedelta(days=1), limit=3) == tuple(taken[1:])
    assert log.recent(since=TAKEN) == tuple(taken[:2])
    [quality] = clock_quality(log.recent(since=TAKEN - timedelta(days=1)))
    assert (quality.readings, quality.last.delta_t_abs) == (3, 0.25)


@pytest.mark.clause("PCS-10")
def test_nobody_trusts_another_machines_readings(database: Database) -> None:
    ClockLog(database, clock="theirs").record([reading(0)])
    assert ClockLog(database, clock="ours").recent(since=TAKEN) == ()
    assert ClockLog(database).recent(since=TAKEN) == ()


def test_a_reading_goes_only_after_a_month(database: Database) -> None:
    ClockLog(database).record([reading(-86400 * days) for days in (29, 31, 0)])
    delete = "DELETE FROM clock_readings"
    with pytest.raises(DBAPIError, match="clock_readings_are_kept_for_a_month"), database.transaction() as tx:
        tx.connection.exec_driver_sql(delete)
    with database.transaction() as tx:
        tx.connection.exec_driver_sql(f"{delete} WHERE at < '2025-11-03T12:00:00'")
    kept = ClockLog(database).recent(since=TAKEN - timedelta(days=90))
    assert [one.at for one in kept] == [TAKEN - timedelta(days=29), TAKEN]
