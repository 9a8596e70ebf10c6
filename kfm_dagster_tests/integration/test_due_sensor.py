"""Work at due times: a day's beams and alerts (`nodd_due`), evidence, retention; the cost of a quiet interval."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
import sqlalchemy as sa

from kfm_dagster import outbox
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs import long_ticks, sensors
from kfm_dagster.defs.jobs import EVIDENCE_JOB, PATH_JOB
from kfm_dagster.defs.long_ticks import IDLE_TICKS
from kfm_dagster.defs.resources import SqsQueueResource, open_pipeline
from kfm_dagster.defs.sensors import EVIDENCE_SECONDS, evidence_runs
from kfm_dagster.exports.validation import validate_report
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.path_arrivals import LOOKS_BACK, PAUSE
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.retention import RETENTION
from kfm_dagster.settings import Settings
from kfm_dagster_tests.alerts.recorded import STAGE, Record, messages, service_url
from kfm_dagster_tests.factories import landed_path, received_long_ago
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer
from kfm_dagster_tests.integration.chain import DAY, announce, deliver, notify_each, put, volumes
from kfm_dagster_tests.integration.face import Face, requested_datasets
from kfm_dagster_tests.transactions import own_tx

SENSOR, PARTITION = "nodd_due", DAY.isoformat()


def arrive(face: Face, *, first: int, last: int) -> None:
    deliver(face.pipeline, *volumes(last)[first:])


def requested(face: Face) -> list[dict[str, Any]]:
    return [
        {
            "day": request.partition_key,
            "assets": request.asset_selection,
            "key": request.run_key,
            "of": requested_datasets(request),
        }
        for request in face.tick(SENSOR).run_requests or ()
        if request.job_name == PATH_JOB
    ]


def ingest(face: Face) -> None:
    assert face.ingest(partition=PARTITION).success


@pytest.mark.clause("PCS-22")
def test_a_day_s_beams_are_requested_when_its_units_have_ended_and_for_new_units_after_a_pause(face: Face) -> None:
    sensor = face.repository.get_sensor_def(SENSOR)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert PATH_JOB in {job.name for job in sensor.jobs}
    assert requested(face) == []
    arrive(face, first=0, last=2)
    ingest(face)
    arrive(face, first=2, last=3)
    assert requested(face) == [], "a unit is pending"
    ingest(face)
    [first] = requested(face)
    assert (first["day"], first["assets"]) == (PARTITION, [dg.AssetKey(["nexrad_l2", "path_arrival"])])
    assert first["of"] == {"nexrad-l2"}
    assert requested(face) == [first], "requested until the table exists; Dagster runs a run key once"
    assert face.execute(PATH_JOB, partition=PARTITION).success
    assert requested(face) == []
    report = validate_report(face.pipeline, since=face.pipeline.clock() - timedelta(days=1))
    assert {name: report["gates"][name]["looked_at"] for name in ("G3", "G7")} == {"G3": 1, "G7": 1}

    arrive(face, first=3, last=4)
    ingest(face)
    assert requested(face) == [], "the table was computed recently"
    face.pipeline.clock = lambda: utc_now() + PAUSE
    [second] = requested(face)
    assert second["key"] != first["key"]
    face.pipeline.clock = lambda: utc_now() + LOOKS_BACK
    assert requested(face) == [], "only a person recomputes so old a table"


@pytest.fixture
def web_server(web_server: WebServer, monkeypatch: pytest.MonkeyPatch) -> WebServer:
    monkeypatch.setenv("KFM_ALERT_URLS", f"notify={service_url(web_server, 'alerts')}")
    return web_server


@pytest.mark.clause("PCS-18", "DAG-03")
def test_a_tick_sends_each_firing_alert_once_and_requests_no_run(
    web_server: WebServer, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Deliveries are retried without a pause, because the real clock runs.
    monkeypatch.setattr(outbox, "FIRST_PAUSE", timedelta(0))
    assert face.tick("nodd_due").skip_message.endswith("; no alert fires")
    record = Record(face.pipeline.database, at=face.pipeline.clock())
    record.gate("G7", run="r1")
    web_server.answers = lambda _: WebAnswer(status=503)
    dead = face.tick("nodd_due")
    assert dead.run_requests == []
    fires = f"1 [warning] covariance: {STAGE} G7 (firing)"
    without_url = "channels without a URL: page_ops, open_ticket (KFM_ALERT_URLS)"
    assert dead.skip_message.endswith(f"; {fires} | 1 waiting for their channel | {without_url}")
    web_server.answers = lambda _: WebAnswer()
    assert face.tick("nodd_due").skip_message.endswith(f"; {fires} | 1 message delivered | {without_url}")
    assert face.tick("nodd_due").skip_message.endswith(f"; {fires} | {without_url}")
    # While an alert fires, no tick is long: its text would replace the text of the looks before.
    short = Mock(is_set=lambda: False)
    for module in (long_ticks, sensors):
        monkeypatch.setattr(module, "SHORT", short)
    for _ in range(IDLE_TICKS + 1):
        face.tick("nodd_due")
    assert [call.args for call in short.wait.call_args_list] == [(0,)] * (IDLE_TICKS + 1)
    # Refused once, then accepted once.
    assert [message["title"] for message in messages(web_server)] == [f"[warning] covariance: {STAGE} G7"] * 2


def test_wrong_alert_urls_stop_only_the_alerts(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFM_ALERT_URLS", "pager=json://kfm:secret@h")
    skipped = face.tick("nodd_due").skip_message
    assert skipped.startswith("no backfill is running; arrivals are computed for every day whose units have ended; ")
    assert "evaluating alerts fails: " in skipped
    assert "observed entry 1, channel pager" in skipped
    assert "secret" not in skipped
    assert "the queue is empty" in face.tick("nodd_messages").skip_message
    open_pipeline(Settings.load(), SqsQueueResource()).close()


@pytest.fixture
def policy(face: Face, tmp_path: Path) -> Path:
    """The path of the policy, which does not exist yet."""
    folder = tmp_path / "configs"
    folder.mkdir()
    face.pipeline.settings = face.pipeline.settings.model_copy(update={"configs_dir": folder})
    return folder / RETENTION


@pytest.mark.clause("BEY-10")
def test_the_schedule_requests_the_retention_job_once_a_policy_exists(
    face: Face, dagster_home: dg.DagsterInstance, policy: Path
) -> None:
    pipeline = face.pipeline
    landed = pipeline.landing.land([])
    received_long_ago(pipeline.database, landed)
    file = Path(pipeline.settings.storage) / landed_path(landed)
    os.utime(file, (0, 0))
    requested = face.tick_schedule("nodd_retention", dagster_home)
    assert (requested.run_requests, requested.skip_message) == (
        [],
        "everything is kept: no kind has a policy in retention.yaml",
    )
    policy.write_text('version: "1.0.0"\nkeep: {dagster_runs: 1d, landing: 30d}\n', encoding="utf-8")
    assert len(face.tick_schedule("nodd_retention", dagster_home).run_requests) == 1

    job = face.repository.get_job("retention")
    done = job.execute_in_process(instance=dagster_home).output_for_node("remove_old_data")
    assert done["landing"] == {"older": 1, "removed": 1, "bytes": done["landing"]["bytes"]}
    assert done["dagster_runs"] == {"older": 0, "removed": 0, "bytes": 0}
    assert not file.exists()
    [entry] = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.RETENTION)
    assert (entry.actor, entry.details["kind"]) == ("nodd_retention", "landing")


@pytest.mark.clause("BEY-10")
def test_a_wrong_policy_fails_the_job_with_an_error_of_one_line_and_deletes_nothing(face: Face, policy: Path) -> None:
    policy.write_text('version: "1.0.0"\nkeep: {landing: 1d}\n', encoding="utf-8")
    file = Path(face.pipeline.settings.storage) / landed_path(face.pipeline.landing.land([]))
    os.utime(file, (0, 0))
    with pytest.raises(dg.Failure, match=r"retention.yaml line 2: keep.landing is wrong; .* 15d at least"):
        face.repository.get_job("retention").execute_in_process(instance=face.instance)
    assert file.exists()


MOST_STATEMENTS = 45
"""Limit for the statements of all sensors together (now 35); none reads a growing table (test_ledger_plans)."""


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect an engine's statements within the context."""
    collected: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        collected.append(statement)

    sa.event.listen(engine, "before_cursor_execute", hear)
    yield collected
    sa.event.remove(engine, "before_cursor_execute", hear)


@pytest.mark.clause("DAG-14")
def test_an_interval_without_messages_costs_few_queries_and_the_next_message_gets_its_run_within_a_tick(
    face: Face, objects: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Mock()
    client.get_queue_url.return_value = {"QueueUrl": "counted"}
    client.receive_message.return_value = {"Messages": []}
    counted = Queue(client, name="counted", threads=8)
    monkeypatch.setattr(face.pipeline, "connect_queue", lambda *_, **__: counted)
    vars(face.pipeline).pop("queue", None)
    sensors = [sensor.name for sensor in face.repository.sensor_defs]
    for sensor in sensors:
        face.tick(sensor)
    client.reset_mock()

    opened: list[str] = []
    with monkeypatch.context() as patch, statements(face.pipeline.database.engine) as executed:
        noted = property(lambda context: opened.append(context.sensor_name) or face.instance)
        patch.setattr(dg.SensorEvaluationContext, "instance", noted)
        for sensor in sensors:
            assert face.tick(sensor).run_requests == []
    # No tick queries Dagster's storage, which a code server would have to open for each such tick.
    assert opened == []
    questions = [text for text in executed if not text.startswith(("BEGIN", "PRAGMA"))]
    assert len(questions) <= MOST_STATEMENTS, "\n".join(questions)
    # A receive request that waits for a second asks all of SQS's servers, so one request suffices.
    assert [call.kwargs["WaitTimeSeconds"] > 0 for call in client.receive_message.call_args_list] == [True]

    [unit] = volumes(1)
    put(objects, [unit])
    message = announce([unit.event()], registry=contracts)
    received = {"MessageId": message.message_id, "Body": message.body, "ReceiptHandle": "r"}
    client.receive_message.side_effect = chain([{"Messages": [received]}], repeat({"Messages": []}))
    assert [len(face.tick(sensor).run_requests) for sensor in sensors if sensor == "nodd_messages"] == [1]


JANE = Decision(actor="jane", reason="looked odd", change_ref="CHG-7")


@pytest.mark.clause("SEC-12")
def test_evidence_of_a_case_is_requested_again_only_after_a_pause(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    clock = pipeline.clock
    cases = QuarantineCases(pipeline.database, clock=clock)
    assert evidence_runs(cases, at=clock()) == []
    notify_each(pipeline, *volumes(2))
    first, second = (record.wal_id for record in own_tx(pipeline.ledger).find())
    own_tx(pipeline.ledger).quarantine([first], reason_code="looked_odd", decision=JANE)
    [first_run] = evidence_runs(cases, at=clock())
    clock.forward(EVIDENCE_SECONDS - 1)
    own_tx(pipeline.ledger).quarantine([second], reason_code="looked_odd", decision=JANE)
    assert (first_run.job_name, evidence_runs(cases, at=clock())) == (EVIDENCE_JOB, [first_run])
    clock.forward(1)
    [second_run] = evidence_runs(cases, at=clock())
    assert second_run.run_key != first_run.run_key
