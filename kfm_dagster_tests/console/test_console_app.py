"""The console: the report as JSON and page, refusals, read-only access."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError
from starlette.testclient import TestClient

from kfm_dagster.console import app
from kfm_dagster.console.app import METRICS, PATH, console_app
from kfm_dagster.console.overview import FRONT
from kfm_dagster.console.pages import LIVE_SECONDS
from kfm_dagster.errors import KfmError
from kfm_dagster.exports.metrics import ATTEMPTS
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.integration.chain import DAY, Clock, open_pipeline, put, run_chain, volumes
from kfm_dagster_tests.transactions import own_tx

RUN = "11111111-1111-4111-8111-111111111111"
SECRET = "s3cr3t-word"
HTML = {"accept": "text/html"}


@contextmanager
def serving(settings: Settings, clock: Callable[[], datetime]) -> Iterator[TestClient]:
    """Open the console over a read-only pipeline, as `kfm console` does."""
    pipeline = Pipeline.open(settings, read_only=True)
    pipeline.clock = clock
    with closing(pipeline):
        yield TestClient(
            console_app(pipeline), base_url="http://localhost", raise_server_exceptions=False, follow_redirects=False
        )


@pytest.fixture
def worked(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """Open the console over a deployment in which one run was executed."""
    pipeline = open_pipeline(tmp_path / "home", tmp_path / "objects", url=database_url)
    put(tmp_path / "objects", volumes(2))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUN)
    pipeline.close()
    with serving(pipeline.settings, pipeline.clock) as client:
        yield client


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[TestClient]:
    """Open the console over a deployment without runs."""
    settings = Settings(home=tmp_path / "home")
    Pipeline.open(settings).close()
    with serving(settings, Clock()) as client:
        yield client


@pytest.mark.one_database
@pytest.mark.clause("PCS-16")
def test_the_report_as_json_and_as_page_are_the_same(worked: TestClient) -> None:
    answer = worked.get(PATH)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    report: dict[str, Any] = json.loads(answer.text)
    assert report["stages"]["nexrad-l2.settle"] == {"succeeded": 1}
    assert report["gates"]["G1"]["pass_rate"] == 1.0
    assert report["dimensional_closure"] == {"p_dim": 1.0, "ok": True}
    assert {"stops_triggered", "retries", "replays", "kpis"} <= set(report)
    page = worked.get(PATH, headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert ">nexrad-l2.settle</td>" in page.text
    assert '<a href="#kpis">100 %</a>' in page.text
    assert report["audit"]["head"] in page.text
    assert "<h1>Validation</h1>" in worked.get(f"{PATH}?format=html").text
    assert worked.get(f"{PATH}?format=json&days=3650", headers=HTML).headers["content-type"] == "application/json"
    # The report begins as many days ago as requested.
    assert json.loads(worked.get(f"{PATH}?days=3&format=json").text)["since"] == "2025-12-29T00:00:00.000000Z"
    assert worked.head(PATH).status_code == 200


@pytest.mark.one_database
def test_the_front_page_shows_whether_anything_needs_attention(worked: TestClient) -> None:
    answer = worked.get(FRONT)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    status = json.loads(answer.text)
    assert (status["well"], status["matters"], status["units"]["nexrad-l2"]["succeeded"]) == (True, [], 2)
    page = worked.get(FRONT, headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>Nothing needs attention</h1>" in page.text
    assert f'<a href="{PATH}">' in page.text
    assert '<li class="">queue<b>not known</b>' in page.text
    assert '<a href="/units?dataset=nexrad-l2&amp;status=succeeded">2</a>' in page.text
    assert "<h1>Nothing needs attention</h1>" in worked.get(f"{FRONT}?format=html").text


def test_the_health_check_fails_if_the_database_is_unavailable(
    worked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (worked.get("/healthz").status_code, worked.get("/healthz").text) == (200, "ok\n")
    unavailable = OperationalError("SELECT 1", {}, Exception(SECRET))
    monkeypatch.setattr(Database, "schema", Mock(side_effect=unavailable))
    assert worked.get("/healthz").status_code == 503


@pytest.mark.clause("WAL-12", "TEL-03")
def test_the_metrics_agree_with_the_ledger(worked: TestClient) -> None:
    answer = worked.get(METRICS)
    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE_LATEST)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.value and family.name.startswith("nodd_sns_wal")
    }
    assert samples == {
        ("nodd_sns_wal_records_total", "nexrad-l2", "pending"): 2,
        ("nodd_sns_wal_records_total", "nexrad-l2", "in_progress"): 2,
        ("nodd_sns_wal_records_total", "nexrad-l2", "succeeded"): 2,
        **{("nodd_sns_wal_attempts_histogram_bucket", "nexrad-l2", le): 2 for le in (*map(str, ATTEMPTS), "+Inf")},
        ("nodd_sns_wal_attempts_histogram_count", "nexrad-l2"): 2,
        ("nodd_sns_wal_attempts_histogram_sum", "nexrad-l2"): 2,
    }
    assert 'nodd_sns_replay_mismatch_total{dataset="hrrr",env="dev"} 0.0' in answer.text
    assert worked.get(METRICS).text == answer.text


def test_the_headers_allow_only_styles_pictures_and_forms_of_the_console(ask: TestClient) -> None:
    for path, status in ((FRONT, 200), (PATH, 200), (f"{PATH}?days=x", 400), ("/x", 404)):
        answer = ask.get(path, headers=HTML)
        assert answer.status_code == status
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; "
            "frame-ancestors 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search("<script|<style|style=|https?:", answer.text)
        [style] = re.findall('<link rel="stylesheet" href="(.*?)">', answer.text)
        assert ask.get(style).headers["content-type"] == "text/css; charset=utf-8"


def test_a_live_view_refreshes_itself_until_it_is_paused(ask: TestClient) -> None:
    still, live = ask.get(FRONT, headers=HTML), ask.get(f"{FRONT}?live=1", headers=HTML)
    assert 'http-equiv="refresh"' not in still.text
    assert '<a href="/?live=1">Live view</a>' in still.text
    assert f'<meta http-equiv="refresh" content="{LIVE_SECONDS}">' in live.text
    assert '<a href="/">Pause</a>' in live.text
    assert ask.get(f"{FRONT}?live=yes").status_code == 400


def test_an_invalid_request_is_answered_by_one_line_of_plain_text(ask: TestClient) -> None:
    wrong: list[tuple[str, dict[str, Any], int, str]] = [
        (f"{PATH}?days=0", {}, 400, "observed days='0'; expected a whole number from 1 to 3650"),
        (f"{PATH}?days=3651", {}, 400, "days='3651'"),
        (f"{PATH}?days=1.5", {}, 400, "days='1.5'"),
        (f"{PATH}?days=%D9%A3", {}, 400, "days="),
        (f"{PATH}?days={'9' * 5000}", {}, 400, "days='9999"),
        (f"{PATH}?days=1&days=2", {}, 400, "a parameter twice"),
        (f"{PATH}?format=%3Cb%3E", {}, 400, "format='<b>'"),
        (f"{PATH}?day=1", {}, 400, "'day'; expected days, format; each once"),
        ("/?days=1", {}, 400, "'days'; expected format; each once at most"),
        ("/units?status=lost", {}, 400, "expected pending or in_progress or"),
        ("/units?text=a&text=b", {}, 400, "a parameter twice"),
        ("/units?after=x", {}, 400, "after='x'"),
        ("/units/11111111-1111-8111-8111-111111111111", {}, 404, "there is no such unit"),
        ("/units/1", {}, 404, "not found"),
        ("/runs/11111111-1111-8111-8111-111111111111", {}, 404, "expected a run id"),
        ("/replays/11111111-1111-8111-8111-111111111111", {}, 404, "replay"),
        ("/datasets/x", {}, 404, "unknown dataset; observed x"),
        ("/gaps.svg?days=15", {}, 400, "expected a whole number from 1 to 14"),
        ("/static/%2e%2e/app.py", {}, 404, "not found"),
        ("/x", {}, 404, "not found; the pages of the console are linked from /"),
        ("/validate/", {}, 404, "not found"),
        ("/%2e%2e/%2e%2e/etc/passwd", {}, 404, "not found"),
        (PATH, {"method": "POST"}, 405, "method not allowed"),
        (PATH, {"method": "DELETE"}, 405, "method not allowed"),
        (PATH, {"headers": {"Host": "evil.example"}}, 400, "the host is unknown here"),
        (PATH, {"headers": {"Origin": "http://evil.example"}}, 403, "of another site"),
        (PATH, {"headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "of another site"),
    ]
    for path, options, status, message in wrong:
        answer = ask.request(**{"method": "GET", "url": path, **options})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/plain; charset=utf-8"), (
            path,
            options,
        )
        assert message in answer.text
        assert answer.text.rstrip("\n").count("\n") == 0


def test_an_internal_error_is_answered_without_internal_details(
    ask: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: dict[Exception, tuple[int, str]] = {
        OperationalError("SELECT 1", {}, Exception(f"password {SECRET}")): (503, "the database does not answer"),
        NoConnectionFreeError(SECRET): (503, "the database does not answer; next: see its log, then ask again"),
        KfmError("an output is damaged", next_step="run the node again"): (500, "an output is damaged"),
        ZeroDivisionError(SECRET): (500, "Internal Server Error"),
    }
    for error, (status, message) in errors.items():
        with monkeypatch.context() as patched:
            patched.setattr(app, "validate_report", Mock(side_effect=error))
            answer = ask.get(PATH)
        assert (answer.status_code, answer.text.rstrip("\n").count("\n")) == (status, 0), error
        assert answer.headers["content-type"].startswith("text/plain")
        assert message in answer.text
        assert SECRET not in answer.text
        assert "Traceback" not in answer.text
        # The server continues.
        assert ask.get(PATH).status_code == 200


def test_the_console_s_database_connection_is_read_only(worked: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []

    def writing(pipeline: Pipeline, **_: object) -> dict[str, Any]:
        try:
            own_tx(pipeline.ledger).release_lost(run_ids=["x"])
            with pipeline.database.transaction() as tx:
                tx.run("schema.record", number=9999, name="x", sha256="y")
        except DBAPIError as error:
            errors.append(str(error.orig).lower().replace("-", ""))
        return {}

    monkeypatch.setattr(app, "validate_report", writing)
    assert worked.get(f"{PATH}?format=json").status_code == 200
    [refusal] = errors
    assert "readonly" in refusal
