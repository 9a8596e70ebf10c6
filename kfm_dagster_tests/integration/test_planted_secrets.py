"""Planted secrets appear in no record, log, event, page or command, even on failures."""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._utils.error import serializable_error_info_from_exc_info
from starlette.testclient import TestClient

from kfm_dagster.cli.main import main
from kfm_dagster.console.app import console_app
from kfm_dagster.defs import sensors
from kfm_dagster.exports.deployment_status import deployment_status
from kfm_dagster.exports.metrics import exposition
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.redaction import ForeignError
from kfm_dagster.views.view import json_row
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer
from kfm_dagster_tests.integration.chain import FakeQueue, enqueue, truncated, volumes
from kfm_dagster_tests.integration.face import Face

pytestmark = pytest.mark.clause("SEC-14")

NOWHERE = "127.0.0.1:1"
SETTINGS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "AKIA{secret}",
    "AWS_ENDPOINT_URL": "http://kfm:{secret}@" + NOWHERE,
    "AWS_SECRET_ACCESS_KEY": "{secret}",
    "AWS_SESSION_TOKEN": "{secret}",
    "KFM_ALERT_URLS": "json://kfm:{secret}@" + NOWHERE,
    "KFM_CELERY_BROKER": "redis://:{secret}@" + NOWHERE + "/0",
    "KFM_CONSOLE_TOKENS": "jane={secret}{secret}",
    "KFM_DAGSTER_DSN": "postgresql+psycopg2://kfm:{secret}@" + NOWHERE + "/dagster",
    "KFM_MASKING_SALT": "{secret}{secret}",
    "KFM_RETENTION_DSN": "postgresql+psycopg2://kfm@" + NOWHERE + "/kfm?password={secret}",
    "KFM_SIGNING_PASSPHRASE": "{secret}",
    "KFM_STAC_API_DSN": "postgresql+psycopg2://kfm:{secret}@" + NOWHERE + "/stac?sslpassword={secret}",
    "OPENLINEAGE_API_KEY": "{secret}",
    "OPENLINEAGE_URL": "http://kfm:{secret}@{server}?code={secret}",
}
SECRETS = {name: f"tr0ub4dor{number:03d}" for number, name in enumerate(SETTINGS)}
COMMANDS = (
    ["doctor", "--json"], ["status"], ["alerts", "test"], ["stac", "status"], ["stac", "check"],
    ["retention", "plan"], ["dlq", "list"], ["export", "bundle"], ["drain"], ["validate"], ["wal", "list", "--json"],
)  # fmt: skip


PAGES = ("/", "/units", "/failures", "/alerts", "/rejected", "/gaps", "/decisions", "/validate", "/metrics")


@pytest.fixture(autouse=True)
def _planted(_no_settings_of_this_machine: None, web_server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # OpenLineage's client sets these aliases of OPENLINEAGE_URL. After this, monkeypatch deletes them at the end.
    for alias in ("TYPE", "URL", "ENDPOINT"):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{alias}", "x")
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__DEFAULT_HTTP__{alias}")
    server = web_server.url("").removeprefix("http://")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value.format(secret=SECRETS[name], server=server))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


def leaks(where: str, text: str) -> list[str]:
    return [f"{name} in {where}" for name, secret in SECRETS.items() if secret in text]


def database_text(face: Face) -> str:
    engine = face.pipeline.database.engine
    with engine.connect() as connection:
        tables = sa.inspect(engine).get_table_names()
        return "\n".join(str(row) for table in tables for row in connection.execute(sa.text(f"SELECT * FROM {table}")))


def events_text(instance: dg.DagsterInstance) -> str:
    return "\n".join(str(entry) for run in instance.get_runs() for entry in instance.all_logs(run.run_id))


def output_of(arguments: list[str]) -> str:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), pytest.raises(SystemExit):
        main(arguments)
    return out.getvalue()


def test_no_record_log_event_or_page_contains_a_planted_secret(
    face: Face,
    queue: FakeQueue,
    web_server: WebServer,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    location = {"Location": f"http://kfm:{SECRETS['OPENLINEAGE_URL']}@{NOWHERE}/login"}
    statuses = itertools.cycle([400, 302, 422, 401])
    web_server.answers = lambda _: WebAnswer(status=next(statuses), headers=location)
    enqueue(face.pipeline, queue, volumes(1)[0], truncated(volumes(2)[1]))
    with caplog.at_level(logging.INFO):
        texts: dict[str, str] = {}
        for number in range(3):
            for sensor in ("nodd_messages", "nodd_ledger", "nodd_due"):
                tick = face.tick(sensor)
                texts[f"tick {number} of {sensor}"] = str(tick)
                for request in tick.run_requests:
                    face.launch(request)
        assert face.pipeline.lineage.undelivered().failing
        status = str(json_row(deployment_status(face.pipeline)))
        texts |= {"status": status, "metrics": exposition(face.pipeline).decode()}
        texts |= {" ".join(command): output_of(command) for command in COMMANDS}
        with TestClient(console_app(face.pipeline, hosts=["*"]), base_url="http://localhost") as browser:
            texts |= {f"page {path}": browser.get(path).text for path in PAGES}
    texts |= {"database": database_text(face), "events": events_text(face.instance), "logs": caplog.text}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts |= {f"file {path.name}": path.read_bytes().decode(errors="replace") for path in files}
    assert [leak for where, text in texts.items() for leak in leaks(where, text)] == []


class AwayError(Exception):
    """A driver's error that contains its arguments."""


def test_errors_of_ticks_and_steps_are_stored_without_their_texts(
    face: Face, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = SECRETS["OPENLINEAGE_URL"]

    def away(*_: object, **__: object) -> None:
        try:
            raise OSError(f"no answer of http://kfm:{secret}@{NOWHERE}")  # noqa: TRY301
        except OSError as error:
            raise AwayError(f"password={secret}") from error

    enqueue(face.pipeline, queue, *volumes(1))
    [request] = face.tick("nodd_messages").run_requests
    with monkeypatch.context() as patch:
        patch.setattr(MetadataExtract, "transform", away)
        face.execute(
            "ingest",
            partition=str(request.partition_key),
            asset_selection=request.asset_selection,
            tags=request.tags,
            raise_on_error=False,
        )
        patch.setattr(sensors, "maintain", away)
        with pytest.raises(ForeignError) as raised:
            face.tick("nodd_ledger")
    stored = serializable_error_info_from_exc_info((type(raised.value), raised.value, raised.value.__traceback__))
    events = events_text(face.instance)
    assert "AwayError" in events
    assert "AwayError" in str(stored)
    assert leaks("the tick", str(stored)) + leaks("the run", events) == []
