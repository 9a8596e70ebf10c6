"""The sensor of alerts through Dagster, beside those that ingest: what it tells, and that nothing waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from kfm_dagster.defs.resources import SqsQueueResource, open_pipeline
from kfm_dagster.outbox import store
from kfm_dagster.settings import Settings
from kfm_dagster_tests.alerts.recorded import STAGE, Record
from kfm_dagster_tests.alerts.webhook_server import WebhookServer, open_letterbox
from kfm_dagster_tests.integration.face import Face


@pytest.fixture
def webhook_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookServer]:
    with open_letterbox() as opened:
        monkeypatch.setenv("KFM_ALERT_URLS", f"notify={opened.url('alerts')}")
        yield opened


@pytest.mark.clause("PCS-18", "DAG-03")
def test_a_tick_tells_what_fires_once_and_asks_for_no_run(
    webhook_server: WebhookServer, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that runs is not waited for.
    monkeypatch.setattr(store, "FIRST_PAUSE", timedelta(0))
    assert face.tick("nodd_due").skip_message.endswith("; no alert fires")
    record = Record(face.pipeline.database, at=face.pipeline.clock())
    record.gate("G7", run="r1")
    webhook_server.status = 503
    dead = face.tick("nodd_due")
    assert dead.run_requests == []
    fires = f"1 [warning] covariance: {STAGE} G7 (firing)"
    unheard = "nobody hears the channels page_ops, open_ticket (KFM_ALERT_URLS)"
    assert dead.skip_message.endswith(f"; {fires} | 1 waiting for their channel | {unheard}")
    webhook_server.status = 200
    assert face.tick("nodd_due").skip_message.endswith(f"; {fires} | 1 messages taken | {unheard}")
    assert face.tick("nodd_due").skip_message.endswith(f"; {fires} | {unheard}")
    assert [message["title"] for message in webhook_server.taken] == [f"[warning] covariance: {STAGE} G7"]


def test_wrong_urls_stop_alerts_and_nothing_else(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFM_ALERT_URLS", "pager=json://kfm:secret@h")
    skipped = face.tick("nodd_due").skip_message
    assert skipped.startswith("no backfill is running; every day whose units have ended has its arrivals; ")
    assert "evaluating alerts fails: " in skipped
    assert "observed entry 1, channel pager" in skipped
    assert "secret" not in skipped
    assert "the queue is empty" in face.tick("nodd_messages").skip_message
    open_pipeline(Settings.load(), SqsQueueResource()).close()
