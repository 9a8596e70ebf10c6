"""Messages sent through apprise to a service on loopback; errors contain no credentials."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import apprise
import pytest
import requests
from pydantic import SecretStr

from kfm_dagster.alerts.evaluator import Endpoint, endpoints_of, send
from kfm_dagster.alerts.plan import AlertPlan, Level
from kfm_dagster.alerts.store import AlertMessage, spoken, trial
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import STAGE, Clock, Mailbox, Record, evaluator_of, messages, service_url
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer

SECRET = "hunter2-s3cr3t"
CHANNELS = ["notify", "page_ops"]


def endpoint(url: str) -> Endpoint:
    return Endpoint(number=1, channels=("notify",), url=SecretStr(url))


@pytest.mark.clause("PCS-18")
def test_an_alert_s_message_has_cause_run_and_next_steps(
    database: Database, plan: AlertPlan, record: Record, now: Clock, web_server: WebServer
) -> None:
    urls = f"notify={service_url(web_server, 'alerts', user=f'kfm:{SECRET}@')}"
    evaluator = replace(evaluator_of(database, plan, now, Mailbox(), urls=urls), send=send)
    record.gate("G7", run="r1")
    assert evaluator.evaluate().delivered == 1
    assert evaluator.evaluate().delivered == 0
    [message] = messages(web_server)
    assert message["title"] == f"[warning] covariance: {STAGE} G7"
    assert message["type"] == "warning"
    for part in (
        "not positive definite (G7)",
        "1 events within 1h (it fires from 1 on)",
        f"the newest at 2026-03-01T12:00:00.000000Z by {STAGE} in run r1",
        "kfm runs show r1",
        "kfm alerts ack 1 --reason",
        "docs/alerts.md#covariance",
        f"Key: covariance/{STAGE} G7",
    ):
        assert part in message["message"]
    [request] = web_server.requests
    assert request.path == "/alerts"
    assert request.headers["authorization"].startswith("Basic ")


def test_a_level_is_sent_as_the_service_s_type(web_server: WebServer) -> None:
    kinds = {Level.INFO: "info", Level.WARNING: "warning", Level.CRITICAL: "failure"}
    for level in kinds:
        answer = send(endpoint(service_url(web_server)), AlertMessage(level=level, title="t", body="b"))
        assert (answer.service, answer.error) == ("JSON", None)
    assert [message["type"] for message in messages(web_server)] == [*kinds.values()]


@pytest.mark.clause("PCS-18")
def test_the_timeout_is_the_argument_unless_the_url_has_its_own(
    web_server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apprise.URLBase, "socket_read_timeout", 0.05)
    web_server.answers = lambda _: time.sleep(0.3) or WebAnswer()
    assert send(endpoint(service_url(web_server)), trial("notify"), seconds=30).error is None
    assert send(endpoint(service_url(web_server) + "?rto=0.05"), trial("notify"), seconds=30).error is not None


@pytest.mark.clause("PCS-18")
def test_the_error_of_a_failed_message_has_the_reason_and_no_credential(
    web_server: WebServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    web_server.answers = lambda _: WebAnswer(status=403)
    refused = send(endpoint(service_url(web_server, f"{SECRET}/x", user=f"kfm:{SECRET}@")), trial("notify"))
    gone = send(endpoint(f"json://kfm:{SECRET}@127.0.0.1:1/{SECRET}"), trial("notify"))
    unknown = send(endpoint(f"carrier-pigeon://{SECRET}@loft"), trial("notify"))
    incomplete = send(endpoint(f"discord://{SECRET}"), trial("notify"))
    web_server.answers = lambda _: WebAnswer(status=None)
    silent = send(endpoint(service_url(web_server, user=f"kfm:{SECRET}@")), trial("notify"), seconds=0.2)
    broken = send(endpoint(f"json://[{SECRET}"), trial("notify"))
    answers = [refused, gone, unknown, incomplete, silent, broken]
    assert [answer.error for answer in answers if answer.error is None] == []
    assert "error=403" in str(refused.error)
    assert "127.0.0.1" in str(gone.error)
    assert "apprise knows no such URL" in str(unknown.error)
    assert SECRET not in f"{answers}{caplog.text}{capfd.readouterr()}"


def test_a_token_in_place_of_a_host_is_hidden_in_errors_and_logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_session: requests.Session, *, url: str, **_: object) -> None:
        raise requests.ConnectionError(f"{url} cannot be reached")

    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(requests.Session, "request", unreachable)
    tokens = ("4174216298", "JHMHI8qBe7bk2ZwO5U711o3dV_js")
    answer = send(endpoint(f"discord://{'/'.join(tokens)}"), trial("notify"))
    assert (answer.service, answer.error is None) == ("Discord", False)
    assert "cannot be reached" in caplog.text
    assert [token for token in tokens if token in f"{answer}{caplog.text}"] == []


def test_a_wrong_url_is_refused_with_its_position_and_is_not_shown() -> None:
    for urls, reason in (
        (SECRET, "observed entry 1;"),
        (f"json://h https:/{SECRET}", "observed entry 2;"),
        (f"pager=json://{SECRET}@h", "observed entry 1, channel pager; .* channels are notify, page_ops"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as refused:
            endpoints_of(SecretStr(urls), CHANNELS)
        assert SECRET not in str(refused.value)


def test_a_url_is_one_endpoint_for_its_channels_or_for_all_channels() -> None:
    endpoints = endpoints_of(SecretStr("json://a\n page_ops=json://b notify=json://b  notify=json://a"), CHANNELS)
    assert {item.url.get_secret_value(): (item.number, set(item.channels)) for item in endpoints} == {
        "json://a": (1, {"notify", "page_ops"}),
        "json://b": (2, {"notify", "page_ops"}),
    }
    assert SECRET not in repr(endpoint(f"json://{SECRET}"))
    assert endpoints_of(None, CHANNELS) == []


def test_a_duration_is_written_as_in_the_alert_plan(plan: AlertPlan) -> None:
    rules = plan.rules
    windows = [rules.retry_storm.window, rules.covariance.suppress, rules.replay_divergence.window]
    assert [spoken(length) for length in windows] == ["15m", "6h", "1d"]
    assert spoken(windows[0] / 1000) == "0.9s"
