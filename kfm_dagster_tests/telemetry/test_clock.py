"""The state of the clock by the kernel and by a server's Date, and the stability of the clock."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.calibration import Calibration
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.telemetry.clock.quality import allan_deviation, clock_quality
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading, ClockState, clock_id, decide
from kfm_dagster.telemetry.clock.sources import NtpState, adjtimex, ask_date, kernel_clock, measure, reading_of
from kfm_dagster_tests.clocks import RULE, kernel_reading, server_reading
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer

NOW = datetime(2025, 12, 3, 12, 0, 0, tzinfo=UTC)

delays = st.floats(0, 10).map(lambda seconds: timedelta(seconds=seconds))
moments = st.floats(0, 1e6).map(lambda seconds: NOW + timedelta(seconds=seconds))


def http_date(at: datetime) -> str:
    """Return the time as an HTTP date: whole seconds, rounded down."""
    return format_datetime(at.astimezone(UTC), usegmt=True)


def dated(at: datetime, status: int = 403, **headers: str) -> WebAnswer:
    return WebAnswer(status=status, headers={"Date": http_date(at), **headers})


@pytest.fixture
def date_server(web_server: WebServer, monkeypatch: pytest.MonkeyPatch) -> WebServer:
    """A server that by default refuses every request, with the current time as Date."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    web_server.answers = lambda _: dated(datetime.now(UTC))
    return web_server


def offset_of(date: str | None, *, sent_at: datetime = NOW, received_at: datetime = NOW) -> tuple[float, float]:
    reading = reading_of(date, host="s3", sent_at=sent_at, received_at=received_at)
    assert (reading.at, reading.source, reading.state) == (received_at, "date:s3", ClockState.UNKNOWN)
    return reading.offset_seconds, reading.uncertainty_seconds


@pytest.mark.clause("PCS-17")
@given(moments, delays, delays, st.floats(-1e5, 1e5))
def test_the_uncertainty_of_an_answer_is_half_a_second_plus_half_the_round_trip(
    true: datetime, outward: timedelta, homeward: timedelta, offset: float
) -> None:
    sent, received = (true - timedelta(seconds=offset) + way for way in (-outward, homeward))
    measured, uncertainty = offset_of(http_date(true), sent_at=sent, received_at=received)
    assert abs(measured - offset) <= uncertainty + 1e-5  # datetimes have microseconds
    assert uncertainty == pytest.approx(0.5 + (received - sent).total_seconds() / 2)


def test_every_form_of_an_http_date_is_read_as_utc_and_a_wrong_date_is_refused() -> None:
    for date in ["Wed, 03 Dec 2025 12:00:00 GMT", "Wednesday, 03-Dec-25 12:00:00 GMT", "Wed Dec  3 12:00:00 2025"]:
        assert offset_of(date) == (0.5, 0.5)
    for wrong in (None, "", "soon", "Wed, 03 Dec 2025 25:00:00 GMT", "Wed, 03 Dec 99999 12:00:00 GMT"):
        with pytest.raises(ValueError, match="no HTTP date"):
            offset_of(wrong)


@given(st.text())
def test_any_text_of_a_server_gives_an_offset_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        offset_of(text)


@given(st.floats(1e-6, 1e6))
def test_an_answer_before_its_request_is_refused(seconds: float) -> None:
    received = NOW - timedelta(seconds=seconds)
    assume(received < NOW)
    with pytest.raises(ValueError, match="set back"):
        offset_of(http_date(NOW), received_at=received)


SYNCED, UNSYNCED, NANO = 0x0001, 0x0041, 0x2001
"""The status STA_PLL alone, with STA_UNSYNC, and with STA_NANO."""


@pytest.mark.clause("PCS-10")
def test_the_kernel_s_clock_is_locked_only_while_it_is_synchronised() -> None:
    for answer, state, offset, uncertainty in [
        ((0, NtpState(status=SYNCED, offset=-1500, maxerror=250_000)), ClockState.LOCKED, -0.0015, 0.25),
        ((0, NtpState(status=NANO, offset=1_500_000, maxerror=1)), ClockState.LOCKED, 0.0015, 1e-6),
        ((1, NtpState(status=NANO, offset=0, maxerror=0)), ClockState.LOCKED, 0.0, 0.0),  # a leap second is due
        ((5, NtpState(status=SYNCED, offset=0, maxerror=0)), ClockState.UNLOCKED, None, None),
        ((0, NtpState(status=UNSYNCED, offset=0, maxerror=0)), ClockState.UNLOCKED, None, None),
        (None, ClockState.UNKNOWN, None, None),
    ]:
        measured = kernel_clock(NOW, ask=lambda answer=answer: answer)
        assert measured == ClockReading(
            at=NOW, source="kernel", offset_seconds=offset, uncertainty_seconds=uncertainty, state=state
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adjtimex is Linux's")
def test_this_kernel_answers_and_has_one_clock() -> None:
    if (result := adjtimex()) is not None:  # a sandbox can refuse the call
        answer, ntp = result
        assert 0 <= answer <= 5
        # The kernel limits the maximum error to 16 s; a wrong layout would give other values.
        assert 0 <= ntp.maxerror <= 16_000_000
        assert 0 <= ntp.status < 2**16
        assert (answer == 5) or not ntp.status & 0x40
    assert clock_id() == clock_id() != ""


RECORDED_AT = datetime(2025, 12, 3, 12, 0, 0, 123456, tzinfo=UTC)


def reading(seconds: float, offset: float | None = 0.25) -> ClockReading:
    at = RECORDED_AT + timedelta(seconds=seconds)
    return kernel_reading(at, ClockState.UNLOCKED) if offset is None else server_reading(at, offset)


@pytest.mark.clause("PCS-17")
def test_readings_are_returned_unchanged_in_recorded_order(database: Database) -> None:
    log = ClockLog(database)
    # The clock was set back by an hour before the third reading.
    readings = [reading(0), reading(10, None), reading(-3590), reading(-3580)]
    log.record(readings[:2])
    log.record(readings[2:])
    assert log.recent(since=RECORDED_AT - timedelta(days=1)) == tuple(readings)
    assert log.recent(since=RECORDED_AT - timedelta(days=1), limit=3) == tuple(readings[1:])
    assert log.recent(since=RECORDED_AT) == tuple(readings[:2])
    [quality] = clock_quality(log.recent(since=RECORDED_AT - timedelta(days=1)))
    assert (quality.readings, quality.last.delta_t_abs) == (3, 0.25)


@pytest.mark.clause("PCS-10")
def test_readings_of_another_machine_are_not_returned(database: Database) -> None:
    ClockLog(database, clock="theirs").record([reading(0)])
    assert ClockLog(database, clock="ours").recent(since=RECORDED_AT) == ()
    assert ClockLog(database).recent(since=RECORDED_AT) == ()


def test_a_reading_can_be_deleted_only_after_a_month(database: Database) -> None:
    ClockLog(database).record([reading(-86400 * days) for days in (29, 31, 0)])
    delete = "DELETE FROM clock_readings"
    with pytest.raises(DBAPIError, match="clock_readings_are_kept_for_a_month"), database.transaction() as tx:
        tx.connection.exec_driver_sql(delete)
    with database.transaction() as tx:
        tx.connection.exec_driver_sql(f"{delete} WHERE at < '2025-11-03T12:00:00'")
    kept = ClockLog(database).recent(since=RECORDED_AT - timedelta(days=90))
    assert [remaining.at for remaining in kept] == [RECORDED_AT - timedelta(days=29), RECORDED_AT]


REQUESTED_AT = datetime(2025, 12, 3, 12, 0, 0, 500_000, tzinfo=UTC)
WIDE = RULE.model_copy(update={"max_offset": timedelta(seconds=30)})
"""A rule with a limit above the round trip of a loaded machine."""


def holds(reading: ClockReading | None, offset: float) -> bool:
    return abs(reading.offset_seconds - offset) <= reading.uncertainty_seconds


@pytest.mark.clause("PCS-10")
def test_a_correct_clock_is_calibrated_by_one_refused_request(date_server: WebServer) -> None:
    measured = ask_date(date_server.url("bucket"), clock=utc_now)
    assert holds(measured, 0.0)
    assert measured.source == "date:127.0.0.1"
    assert [(request.command, request.path) for request in date_server.requests] == [("HEAD", "/bucket")]
    assert decide([measured], WIDE, ts_start=utc_now()).locked


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Date": "soon"},
        {"Date": "Wed, 03 Dec 2025 12:00:00 GMT", "Age": "3600"},
    ],
    ids=["without Date", "not a date", "from a cache"],
)
def test_an_answer_without_a_usable_date_is_ignored(headers: dict[str, str], date_server: WebServer) -> None:
    date_server.answers = lambda _: WebAnswer(headers=headers)
    assert ask_date(date_server.url(""), clock=utc_now) is None
    assert [measured.source for measured in measure(WIDE, clock=utc_now, endpoint=date_server.url(""))] == ["kernel"]


def test_the_date_of_a_redirect_is_used_and_the_redirect_is_not_followed(date_server: WebServer) -> None:
    date_server.answers = lambda _: dated(REQUESTED_AT, 307, Location=date_server.url("elsewhere"))
    assert holds(ask_date(date_server.url(""), clock=lambda: REQUESTED_AT), 0.0)
    assert len(date_server.requests) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "http://[", "file:///etc/hostname", "nowhere", ""])
def test_without_a_reachable_server_only_the_kernel_is_measured(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    [kernel] = measure(WIDE, clock=utc_now, endpoint=url.format(port=port))
    assert kernel.source == "kernel"


def test_a_request_without_an_answer_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert ask_date(url, clock=utc_now, seconds=0.05) is None


def test_requests_are_repeated_until_an_answer_calibrates_the_clock_or_proves_it_wrong(date_server: WebServer) -> None:
    # The second changes during the first request; the machine's clock is right.
    near, past = REQUESTED_AT + timedelta(seconds=0.4), REQUESTED_AT + timedelta(seconds=0.6)
    times = [near, near, past, past, past + timedelta(seconds=0.1)]
    date_server.answers = lambda _: dated(past)

    readings = measure(RULE, clock=lambda: times.pop(0), endpoint=date_server.url(""))

    assert [decide([measured], RULE, ts_start=REQUESTED_AT).locked for measured in readings[1:]] == [False, True]
    assert len(date_server.requests) == 2
    assert decide(readings[1:], RULE, ts_start=REQUESTED_AT).locked


def test_there_are_at_most_five_requests_if_no_answer_calibrates_the_clock_or_proves_it_wrong(
    date_server: WebServer,
) -> None:
    date_server.answers = lambda _: dated(REQUESTED_AT + timedelta(seconds=1))
    readings = measure(RULE, clock=lambda: REQUESTED_AT, endpoint=date_server.url(""))
    assert len(readings) == 6
    assert len(date_server.requests) == 5


# Seconds between three calls of `decided` and a fourth: requests of all four calls.
PAUSES = {0.0: 1, 59.9: 1, 60.0: 2, -0.1: 2}


@pytest.mark.clause("PCS-10")
@pytest.mark.parametrize("pause", PAUSES)
def test_a_server_that_gives_no_time_is_asked_once_a_minute_not_by_each_stage(
    pause: float, database: Database, date_server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", date_server.url(""))
    monkeypatch.setattr(kernel_clock, "__kwdefaults__", {"ask": lambda: None})
    date_server.answers = lambda _: WebAnswer(headers={})
    times = [REQUESTED_AT]
    calibration = Calibration(rule=RULE, database=database, clock=lambda: times[-1])
    contract, another, *_ = ContractRegistry.load()
    stores = ObjectStores(object_root=None)

    for _ in range(3):
        assert calibration.decided(contract, stores).state is not ClockState.LOCKED
    times.append(REQUESTED_AT + timedelta(seconds=pause))
    calibration.decided(contract, stores)

    assert len(date_server.requests) == PAUSES[pause]
    # The server of another contract may give the time.
    calibration.decided(another, stores)
    assert len(date_server.requests) == PAUSES[pause] + 1
    assert len(ClockLog(database).recent(since=REQUESTED_AT - timedelta(days=1))) == PAUSES[pause] + 1


START = datetime(2025, 12, 3, 12, 0, 0, tzinfo=UTC)
LOCKED, UNLOCKED, UNKNOWN = ClockState


def kernel(
    state: ClockState, offset: float | None = None, bound: float | None = None, *, hours: float = 0
) -> ClockReading:
    return kernel_reading(START + timedelta(hours=hours), state, offset, bound)


def server(offset: float, bound: float = 0.55, *, hours: float = 0, host: str = "s3") -> ClockReading:
    return server_reading(START + timedelta(hours=hours), offset, bound, host=host)


SYNCHRONISED, UNSYNCHRONISED, NONE = kernel(LOCKED, 0.001, 0.02), kernel(UNLOCKED), kernel(UNKNOWN)

CASES: dict[str, tuple[list[ClockReading], ClockState, str]] = {
    # case: readings in order, state, part of the reason
    "a synchronised clock": ([SYNCHRONISED], LOCKED, "kernel gives an offset of 0.001"),
    "a server alone": ([NONE, server(0.2)], LOCKED, "date:s3 gives an offset of 0.200"),
    "an unsynchronised kernel, and a server": ([UNSYNCHRONISED, server(-0.3)], LOCKED, "date:s3"),
    "both: the more certain decides": ([SYNCHRONISED, server(0.2)], LOCKED, "kernel"),
    "exactly at the limit": ([server(0.5, 0.5)], LOCKED, "within 1 s"),
    "the last calibration is tau old": ([server(0.2, hours=-24), UNSYNCHRONISED], LOCKED, "date:s3"),
    "a calibration after the start": ([server(0.2, hours=24)], LOCKED, "date:s3"),
    "just too uncertain to prove the clock wrong": ([server(1.5, 0.5)], UNKNOWN, "too uncertain for 1 s"),
    "nothing measured": ([], UNKNOWN, "neither the kernel nor a server"),
    "an unknown kernel": ([NONE], UNKNOWN, "neither the kernel nor a server"),
    "an unsynchronised kernel": ([UNSYNCHRONISED], UNLOCKED, "the kernel does not keep the clock"),
    "a calibration older than tau": (
        [server(0.2, hours=-24.001), UNSYNCHRONISED],
        UNLOCKED,
        "86403.6 s from the start",
    ),
    "the nearer of two calibrations": (
        [server(0.2, hours=-30), server(0.2, hours=26), UNSYNCHRONISED],
        UNLOCKED,
        "93600 s from the start",
    ),
    "a calibration too far ahead": ([server(0.2, hours=25)], UNLOCKED, "90000 s from the start"),
    "a clock that is behind": ([NONE, server(5)], UNLOCKED, "offset of 5.000 +- 0.550 s; at most 1 s"),
    "a clock that is ahead": ([NONE, server(-5)], UNLOCKED, "offset of -5.000"),
    "a kernel with a large offset": ([kernel(LOCKED, 3.0, 0.1)], UNLOCKED, "offset of 3.000"),
    "a kernel contradicted by a server": ([SYNCHRONISED, server(5)], UNLOCKED, "date:s3 gives an offset of 5.000"),
    "a kernel contradicted by an earlier server reading": ([server(5, hours=-1), SYNCHRONISED], UNLOCKED, "date:s3"),
    "a kernel slewing, and a server": ([kernel(LOCKED, 3.0, 0.1), server(0.2)], UNLOCKED, "kernel gives"),
    "too uncertain": ([NONE, server(0.6)], UNKNOWN, "offset of 0.600 +- 0.550 s, too uncertain"),
    "perhaps beyond the limit": ([NONE, server(1.2)], UNKNOWN, "offset of 1.200 +- 0.550 s, too uncertain"),
    "the less uncertain of two readings": ([server(0.9), server(0.8, 0.4)], UNKNOWN, "offset of 0.800"),
    "a kernel with a wide bound": ([kernel(LOCKED, 0.0, 1.1)], UNKNOWN, "too uncertain for 1 s"),
    "set wrong after a calibration": ([server(0.2, hours=-2), server(5)], UNLOCKED, "offset of 5.000"),
    "set right after a wrong reading": ([server(5, hours=-2), server(0.2)], LOCKED, "offset of 0.200"),
    "set right by another server": ([server(5, hours=-2, host="sqs"), server(0.2)], LOCKED, "date:s3"),
    "set back from the future": ([server(-7200, hours=2), server(0.2)], LOCKED, "offset of 0.200"),
    "an uncertain reading does not decide": ([server(0.2, hours=-2), server(0.6)], LOCKED, "offset of 0.200"),
    "an uncertain reading does not replace a proof": ([server(5, hours=-2), server(0.6)], UNLOCKED, "offset of 5.000"),
    "a proof older than tau": ([server(5, hours=-25), SYNCHRONISED], LOCKED, "kernel"),
}


@pytest.mark.clause("PCS-10")
def test_the_state_of_the_clock_follows_from_its_readings() -> None:
    for readings, state, reason in CASES.values():
        decision = decide(readings, RULE, ts_start=START)
        assert (decision.state, decision.locked) == (state, state is LOCKED)
        assert reason in decision.reason
        assert (decision.calibrated_at is not None) == decision.locked


@pytest.mark.clause("PCS-10")
def test_tau_and_the_maximum_offset_are_taken_from_the_rule() -> None:
    readings = [server(0.2, hours=-2)]
    assert decide(readings, RULE, ts_start=START).locked
    assert not decide(readings, RULE.model_copy(update={"tau_calib": timedelta(hours=1)}), ts_start=START).locked
    assert not decide(readings, RULE.model_copy(update={"max_offset": timedelta(seconds=0.7)}), ts_start=START).locked


any_reading = st.builds(
    lambda at, source, offset, bound: ClockReading(
        at=START + timedelta(hours=at),
        source=source,
        offset_seconds=offset,
        uncertainty_seconds=None if offset is None else bound,
        state=UNKNOWN,
    ),
    st.floats(-48, 48),
    st.sampled_from(["kernel", "date:s3", "date:sqs"]),
    st.none() | st.floats(-10, 10),
    st.floats(0, 10),
)


@pytest.mark.clause("PCS-10")
@given(st.lists(any_reading, max_size=8))
def test_a_locked_clock_has_a_calibration_within_both_limits(readings: list[ClockReading]) -> None:
    decision = decide(readings, RULE, ts_start=START)
    if decision.locked:
        assert decision.deciding in readings
        assert decision.calibrated_at is not None
        assert abs(START - decision.calibrated_at) <= RULE.tau_calib
        assert abs(decision.deciding.offset_seconds) + decision.deciding.uncertainty_seconds <= 1


NIST_SP_1065 = {1: 2.922319e-01, 10: 9.159953e-02, 100: 3.241343e-02}
"""Overlapping Allan deviation of the 1000-point test data, by averaging factor (Riley 2008, 12.4, table 31)."""
FIRST_READING = datetime(2025, 12, 3, tzinfo=UTC)


def nist_phase() -> np.ndarray:
    """Return the time error of 1000 frequencies n / (2^31 - 1), n' = 16807 n mod (2^31 - 1)."""
    n, frequencies = 1234567890, []
    for _ in range(1000):
        frequencies.append(n / 2147483647)
        n = 16807 * n % 2147483647
    return np.concatenate([[0.0], np.cumsum(frequencies)])


@pytest.mark.clause("PCS-17")
def test_sigma_y_of_the_reference_data_is_the_published_value() -> None:
    for factor, published in NIST_SP_1065.items():
        phase = nist_phase()
        stability = allan_deviation(np.arange(1001.0), phase, float(factor))
        assert stability.sigma_y == pytest.approx(published, rel=2e-7)
        assert stability.terms == 1001 - 2 * factor
        # The result is the same in hours, and in reverse order.
        backwards = allan_deviation(3600 * np.arange(1001.0)[::-1] + 1.7e9, 3600 * phase[::-1], 3600.0 * factor)
        assert backwards.sigma_y == pytest.approx(published, rel=2e-7)


irregular = st.lists(st.floats(0.951, 1.049), min_size=20, max_size=60).map(lambda gaps: np.cumsum(gaps) * 600)


@pytest.mark.clause("PCS-17")
@given(irregular, st.floats(-100, 100), st.floats(-1e-3, 1e-3))
def test_a_constant_offset_or_frequency_has_no_instability(at: np.ndarray, offset: float, rate: float) -> None:
    for tau in (600.0, 3000.0):
        stability = allan_deviation(at, offset + rate * at, tau)
        assert stability.terms > 0
        assert stability.sigma_y == pytest.approx(0.0, abs=1e-12)


@pytest.mark.clause("PCS-17")
def test_gaps_only_reduce_the_number_of_terms() -> None:
    whole = nist_phase()
    kept = np.flatnonzero(np.arange(1001) % 97 > 7)
    stability = allan_deviation(kept.astype(float), whole[kept], 5.0)
    present = set(kept.tolist())
    triples = [i for i in range(991) if {i, i + 5, i + 10} <= present]
    expected = np.sqrt(np.mean([(whole[i + 10] - 2 * whole[i + 5] + whole[i]) ** 2 for i in triples]) / 50)
    assert (stability.terms, stability.sigma_y) == (len(triples), pytest.approx(expected))


def test_fewer_than_three_readings_about_tau_apart_have_no_sigma_y() -> None:
    for times in ([], [0.0], [0.0, 10.0], [0.0, 10.0, 21.001]):
        stability = allan_deviation(np.array(times), np.zeros(len(times)), 10.0)
        assert (stability.sigma_y, stability.terms) == (None, 0)
    assert allan_deviation(np.array([0.0, 10.0, 21.0]), np.zeros(3), 10.0).terms == 1


@pytest.mark.clause("PCS-17")
def test_each_source_has_its_own_error_and_stability() -> None:
    # For the server, the clock's frequency changes by 1e-6 every hour; for the kernel, the frequency is constant.
    drift = 1e-6 / 3600
    readings = [
        measured
        for at in (FIRST_READING + timedelta(minutes=minutes) for minutes in range(0, 600, 10))
        for measured in (
            kernel_reading(at, ClockState.UNKNOWN, 0.0, 0.5),
            server_reading(at, -drift * (at - FIRST_READING).total_seconds() ** 2 / 2),
            kernel_reading(at, ClockState.UNKNOWN),
        )
    ]
    server, kernel = clock_quality(readings, [timedelta(hours=1), timedelta(days=1)])
    assert (server.source, kernel.source, server.readings, kernel.readings) == ("date:s3", "kernel", 60, 60)
    assert server.last.delta_t_abs == pytest.approx(drift * (590 * 60) ** 2 / 2)
    assert kernel.last.delta_t_abs == 0.0
    assert server.stability[0].sigma_y == pytest.approx(1e-6 / np.sqrt(2))
    assert kernel.stability[0].sigma_y == 0.0
    assert server.stability[1].sigma_y is None
    assert clock_quality([kernel_reading(FIRST_READING, ClockState.UNKNOWN)]) == ()
