"""The Date of real answers on loopback: a wrong clock shows, a server that is silent or lies does no harm."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from kfm_dagster import failpoints
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.telemetry.clock.reading import ClockReading, ClockState, decide
from kfm_dagster.telemetry.clock.sources import ask_date, measure
from kfm_dagster_tests.clocks import RULE
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer
from kfm_dagster_tests.telemetry.conftest import dated

NOW = datetime(2025, 12, 3, 12, 0, 0, 500_000, tzinfo=UTC)
WIDE = RULE.model_copy(update={"max_offset": timedelta(seconds=30)})
"""A limit that a loaded machine's round trip does not reach."""


@pytest.fixture
def skewed() -> Iterator[None]:
    """The pipeline's clock is 90 s ahead, as fault injection makes it."""
    failpoints.install(lambda failpoint, labels: None, clock_skew=timedelta(seconds=90))
    yield
    failpoints.install(None)


def holds(reading: ClockReading | None, offset: float) -> bool:
    assert reading is not None
    assert reading.offset_seconds is not None
    assert reading.uncertainty_seconds is not None
    return abs(reading.offset_seconds - offset) <= reading.uncertainty_seconds


@pytest.mark.clause("PCS-10")
def test_a_right_clock_is_calibrated_by_one_request_of_a_server_that_refuses(date_server: WebServer) -> None:
    found = ask_date(date_server.url("bucket"), clock=utc_now)
    assert holds(found, 0.0)
    assert found is not None
    assert found.source == "date:127.0.0.1"
    assert [(request.command, request.path) for request in date_server.asked] == [("HEAD", "/bucket")]
    assert decide([found], WIDE, ts_start=utc_now()).locked


@pytest.mark.clause("PCS-10")
def test_a_skewed_clock_shows_as_an_offset_and_is_unlocked(date_server: WebServer, skewed: None) -> None:
    readings = measure(WIDE, clock=utc_now, endpoint=date_server.url(""))
    assert holds(readings[-1], -90.0)
    found = decide(readings, WIDE, ts_start=utc_now())
    assert found.state is ClockState.UNLOCKED
    assert "at most 30 s" in found.reason


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Date": "soon"},
        {"Date": "Wed, 03 Dec 2025 12:00:00 GMT", "Age": "3600"},
    ],
    ids=["no Date", "no date", "from a cache"],
)
def test_an_answer_that_tells_no_time_is_left_out(headers: dict[str, str], date_server: WebServer) -> None:
    date_server.answers = lambda _: WebAnswer(headers=headers)
    assert ask_date(date_server.url(""), clock=utc_now) is None
    assert [one.source for one in measure(WIDE, clock=utc_now, endpoint=date_server.url(""))] == ["kernel"]


def test_a_redirect_is_an_answer_and_is_not_followed(date_server: WebServer) -> None:
    date_server.answers = lambda _: dated(NOW, 307, Location=date_server.url("elsewhere"))
    assert holds(ask_date(date_server.url(""), clock=lambda: NOW), 0.0)
    assert len(date_server.asked) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "http://[", "file:///etc/hostname", "nowhere", ""])
def test_a_network_that_is_away_leaves_the_kernel(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    [kernel] = measure(WIDE, clock=utc_now, endpoint=url.format(port=port))
    assert kernel.source == "kernel"


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert ask_date(url, clock=utc_now, seconds=0.05) is None


def test_a_server_is_asked_again_only_where_its_answer_decides_nothing(date_server: WebServer) -> None:
    # The second changes while the first answer is on its way; the machine's clock is right.
    near, past = NOW + timedelta(seconds=0.4), NOW + timedelta(seconds=0.6)
    times = [near, near, past, past, past + timedelta(seconds=0.1)]
    date_server.answers = lambda _: dated(past)

    readings = measure(RULE, clock=lambda: times.pop(0), endpoint=date_server.url(""))

    assert [decide([one], RULE, ts_start=NOW).locked for one in readings[1:]] == [False, True]
    assert len(date_server.asked) == 2
    assert decide(readings[1:], RULE, ts_start=NOW).locked


def test_a_server_that_never_decides_is_asked_five_times(date_server: WebServer) -> None:
    date_server.answers = lambda _: dated(NOW + timedelta(seconds=1))
    readings = measure(RULE, clock=lambda: NOW, endpoint=date_server.url(""))
    assert len(readings) == 6
    assert len(date_server.asked) == 5
