"""The Date of real answers on loopback: a wrong clock shows, a server that is silent or lies does no harm."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kfm_dagster import failpoints
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.settings import Settings
from kfm_dagster.telemetry.clock.decision import ClockRules, decide
from kfm_dagster.telemetry.clock.measuring import measure
from kfm_dagster.telemetry.clock.reading import ClockReading, ClockState
from kfm_dagster.telemetry.clock.server_dates import AnswerDates, ask_date
from kfm_dagster_tests.telemetry.conftest import DateServer, http_date

NOW = datetime(2025, 12, 3, 12, 0, 0, 500_000, tzinfo=UTC)
WIDE = ClockRules(max_offset=timedelta(seconds=30))
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
def test_a_right_clock_is_calibrated_by_one_request_of_a_server_that_refuses(date_server: DateServer) -> None:
    found = ask_date(f"{date_server.url}/bucket", clock=utc_now)
    assert holds(found, 0.0)
    assert found is not None
    assert found.source == "date:127.0.0.1"
    assert date_server.asked == ["HEAD /bucket"]
    assert decide([found], WIDE, ts_start=utc_now()).locked


@pytest.mark.clause("PCS-10")
def test_a_skewed_clock_shows_as_an_offset_and_is_unlocked(date_server: DateServer, skewed: None) -> None:
    readings = measure(WIDE, clock=utc_now, endpoint=date_server.url)
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
def test_an_answer_that_tells_no_time_is_left_out(headers: dict[str, str], date_server: DateServer) -> None:
    date_server.headers = lambda: headers
    assert ask_date(date_server.url, clock=utc_now) is None
    assert [one.source for one in measure(WIDE, clock=utc_now, endpoint=date_server.url)] == ["kernel"]


def test_a_redirect_is_an_answer_and_is_not_followed(date_server: DateServer) -> None:
    date_server.status = 307
    date_server.headers = lambda: {"Date": http_date(NOW), "Location": f"{date_server.url}/elsewhere"}
    assert holds(ask_date(date_server.url, clock=lambda: NOW), 0.0)
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


def test_a_server_is_asked_again_only_where_its_answer_decides_nothing(date_server: DateServer) -> None:
    # The second changes while the first answer is on its way; the machine's clock is right.
    near, past = NOW + timedelta(seconds=0.4), NOW + timedelta(seconds=0.6)
    times = [near, near, past, past, past + timedelta(seconds=0.1)]
    date_server.headers = lambda: {"Date": http_date(past)}

    readings = measure(ClockRules(), clock=lambda: times.pop(0), endpoint=date_server.url)

    assert [decide([one], ClockRules(), ts_start=NOW).locked for one in readings[1:]] == [False, True]
    assert len(date_server.asked) == 2
    assert decide(readings[1:], ClockRules(), ts_start=NOW).locked


def test_a_server_that_never_decides_is_asked_twice(date_server: DateServer) -> None:
    date_server.headers = lambda: {"Date": http_date(NOW + timedelta(seconds=1))}
    readings = measure(ClockRules(), clock=lambda: NOW, endpoint=date_server.url)
    assert len(readings) == 3
    assert len(date_server.asked) == 2


@pytest.fixture
def queue_of(date_server: DateServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ENDPOINT_URL", date_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    date_server.status = 200
    date_server.body = json.dumps({"QueueUrl": f"{date_server.url}/q"}).encode()
    date_server.headers = lambda: {"Date": http_date(NOW), "Content-Type": "application/x-amz-json-1.0"}
    return lambda dates: connect(Settings(), name="q", dates=dates)._client


def test_answers_of_the_queue_tell_the_time_for_nothing_and_together_more_sharply(
    date_server: DateServer, queue_of: Any
) -> None:
    times = iter([NOW, NOW + timedelta(seconds=0.3), NOW + timedelta(seconds=0.1), NOW + timedelta(seconds=0.2)])
    dates = AnswerDates(clock=lambda: next(times))
    client = queue_of(dates)
    client.get_queue_url(QueueName="q")
    client.get_queue_url(QueueName="q")

    kernel, found = measure(WIDE, clock=lambda: NOW, endpoint=date_server.url, answers=dates)

    # [12:00:00, 12:00:01) lies between -0.8 and 0.5 s of the first exchange, between -0.7 and 0.4 s of the second.
    assert kernel.source == "kernel"
    assert (found.source, found.at) == ("date:127.0.0.1", NOW + timedelta(seconds=0.2))
    assert (found.offset_seconds, found.uncertainty_seconds) == (pytest.approx(-0.15), pytest.approx(0.55))
    assert len(date_server.asked) == 2
    assert dates.take() is None


def test_answers_are_combined_while_they_lie_near_and_agree(
    date_server: DateServer, queue_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[datetime] = []
    dates = AnswerDates(clock=lambda: times.pop(0))
    client = queue_of(dates)
    monkeypatch.setenv("AWS_ENDPOINT_URL", date_server.url.replace("127.0.0.1", "localhost"))
    another = queue_of(dates)

    def told(*exchanges: tuple[float, float], clients: Sequence[Any] = (client, client)) -> float:
        """Offset after exchanges at so many seconds, with a clock that is wrong by so many."""
        for (seconds, offset), client in zip(exchanges, clients, strict=True):
            true = NOW + timedelta(seconds=seconds)
            times.extend([true - timedelta(seconds=offset)] * 2)
            date_server.headers = lambda at=true: {"Date": http_date(at)}
            client.get_queue_url(QueueName="q")
        found = dates.take()
        assert found is not None
        assert found.offset_seconds is not None
        return found.offset_seconds

    # One exchange allows 0.5 s on either side. A step in between ends what was known before, and so does a minute.
    assert told((0, 0.0), (60, 0.6)) == pytest.approx(0.3)
    assert told((0, 0.0), (1, 40.0)) == pytest.approx(40.0)
    assert told((0, 0.0), (61, 0.6)) == pytest.approx(0.6)
    assert told((0, 0.0), (1, 0.6), clients=(client, another)) == pytest.approx(0.6)


def test_an_answer_without_a_time_or_none_at_all_stops_no_request(date_server: DateServer, queue_of: Any) -> None:
    dates = AnswerDates(clock=utc_now)
    client = queue_of(dates)
    date_server.headers = lambda: {"Content-Type": "application/x-amz-json-1.0"}
    assert client.get_queue_url(QueueName="q")["QueueUrl"]
    assert dates.take() is None
    date_server.status, date_server.headers = 400, lambda: {"Date": http_date(datetime.now(UTC))}
    with pytest.raises(ClientError):
        client.get_queue_url(QueueName="q")
    assert holds(dates.take(), 0.0)
