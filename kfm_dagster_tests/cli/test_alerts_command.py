"""`kfm alerts`: firing alerts, acknowledgements, the channels' answers, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kfm_dagster.alerts.evaluator import AlertEvaluator
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ExitCode
from kfm_dagster.settings import Settings
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import Card
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import STAGE, Clock, Mailbox, Record, evaluator_of, messages, service_url
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.followers.announcements.web_server import open_web_server

pytestmark = pytest.mark.clause("PCS-18")

SECRET = "s3cr3t-word"


@pytest.fixture
def evaluator(home: Path) -> Iterator[AlertEvaluator]:
    """An evaluator with two alerts: one on a diverged replay fires, one on gate G3 is resolved."""
    database = Database.open(Settings.load().database_url)
    clock = Clock(datetime.now(UTC))
    record = Record(database, at=clock.at)
    alert_evaluator = evaluator_of(database, Card.load().alerts, clock, Mailbox())
    record.gate("G3")
    alert_evaluator.evaluate()
    clock.passes(hours=1, seconds=1)
    record.at = clock.at
    record.line(AuditKind.REPLAY, "diverged", run="r7")
    alert_evaluator.evaluate()
    yield alert_evaluator
    database.dispose()


def test_firing_alerts_are_listed_and_with_days_also_resolved_alerts(evaluator: AlertEvaluator, call: Call) -> None:
    answer = call("alerts", "list", "--json")
    [alert] = answer.rows
    assert answer.code == ExitCode.DONE
    assert (alert["alert_id"], alert["rule"], alert["subject"], alert["run_id"]) == (
        2, "replay_divergence", "run r7", "r7",
    )  # fmt: skip
    assert (alert["state"], alert["level"], alert["opened_at"]) == ("firing", "critical", rfc3339(evaluator.clock()))
    assert (alert["key"], alert["undelivered"], alert["notifications"]) == ("replay_divergence/run r7", 0, 1)
    assert [row["state"] for row in call("alerts", "list", "--days", "2", "--json").rows] == ["resolved", "firing"]
    assert "run r7" in call("alerts", "list").out
    assert STAGE not in call("alerts", "list").out


def test_an_alert_is_acknowledged_once_and_the_log_has_actor_and_reason(
    evaluator: AlertEvaluator, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_ENV", "prod")
    code, out, _ = call("alerts", "ack", "2", "--reason", "I compare both outputs", "--actor", "ann")
    assert (code, out) == (ExitCode.DONE, "2: replay_divergence/run r7, acknowledged by ann\n")
    [alert] = call("alerts", "list", "--json").rows
    assert (alert["state"], alert["acknowledged_by"], alert["acknowledged_why"]) == (
        "acknowledged", "ann", "I compare both outputs",
    )  # fmt: skip
    for arguments, code, expected in (
        (
            ("ack", "2", "--reason", "x"),
            ExitCode.REFUSED,
            "the alert does not fire; observed alert 2: acknowledged by ann; expected firing",
        ),
        (("ack", "1", "--reason", "x"), ExitCode.REFUSED, "alert 1: resolved; expected firing"),
        (("ack", "9", "--reason", "x"), ExitCode.USAGE, "there is no such alert; observed 9"),
        (("ack", "2", "--reason", " "), ExitCode.USAGE, "the reason is missing"),
        (("ack", "2"), ExitCode.USAGE, "--reason"),
    ):
        call("alerts", *arguments).refused(expected, code=code)
    [entry] = call("governance", "log", "--action", "alert_acknowledged", "--json").rows
    assert (entry["actor"], entry["reason"]) == ("ann", "I compare both outputs")
    alert = {"alert_id": 2, "rule": "replay_divergence", "subject": "run r7", "level": "critical"}
    assert entry["details"] == alert


def test_a_trial_prints_the_answer_of_each_channel(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    channels = ("notify", "page_ops", "open_ticket")
    with open_web_server() as server:
        monkeypatch.setenv("KFM_ALERT_URLS", service_url(server, "all", user=f"kfm:{SECRET}@"))
        answer = call("alerts", "test", "--json")
        assert answer.code == ExitCode.DONE
        assert answer.rows == [{"channel": channel, "service": "JSON", "answer": "taken"} for channel in channels]
        titles = [message["title"] for message in messages(server)]
        assert titles == [f"[test] kfm_dagster: channel {channel}" for channel in channels]
        dead = f"page_ops=json://kfm:{SECRET}@127.0.0.1:1/{SECRET}"
        monkeypatch.setenv("KFM_ALERT_URLS", f"notify={service_url(server)} {dead}")
        answer = call("alerts", "test", "--json")
    assert answer.code == ExitCode.FINISHED_WITH_FAILURES
    notify, page, ticket = answer.rows
    assert notify["answer"] == "taken"
    assert "127.0.0.1" in page["answer"]
    assert ticket["answer"] == "the channel has no URL in KFM_ALERT_URLS"
    assert SECRET not in answer.out + answer.err
    monkeypatch.setenv("KFM_ALERT_URLS", f"pager=json://{SECRET}@h")
    answer = call("alerts", "test")
    answer.refused("KFM_ALERT_URLS is wrong; observed entry 1, channel pager")
    assert SECRET not in answer.err
