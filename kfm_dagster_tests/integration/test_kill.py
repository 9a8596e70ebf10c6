"""SIGKILLs of runs, daemon, code server and a Celery worker: no unit is lost or duplicated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from benchmarks.campaign_verdict import assert_whole
from fault_injection.counters import FaultCounters
from fault_injection.injector import state_folder
from fault_injection.plan import API_VERSION, load_plan
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.executors import BROKER
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.deployment.doctor.instance import check_broker
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment, free_port
from kfm_dagster.errors import ExitCode
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.nodes import IntegrityCheck, MessageParse, MetadataExtract, ProvenanceEmit, Settle, StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests import clouds
from kfm_dagster_tests.commands import SERVE
from kfm_dagster_tests.integration.chain import DATASET, DAY, assert_conserved
from kfm_dagster_tests.ledger.bench import counted
from kfm_dagster_tests.programs import program, running
from kfm_dagster_tests.timeouts import HANG_SECONDS, until
from kfm_dagster_tests.transactions import own_tx

FIRST_DAY = date(2025, 4, 1)
UNITS_PER_DAY = 4
DEATHS = [
    # The artifact is stored inside the stage's transaction, after the ledger's writes.
    (MessageParse.operator, Failpoint.ARTIFACT_PUT_AFTER),
    (IntegrityCheck.operator, Failpoint.STAGE_COMPUTED),
    (MetadataExtract.operator, Failpoint.STAGE_COMPUTED),
    (StacRegister.operator, Failpoint.STAGE_COMPUTED),
    (ProvenanceEmit.operator, Failpoint.STAGE_COMPUTED),
    (Settle.operator, Failpoint.ARTIFACT_PUT_AFTER),
    (Settle.operator, Failpoint.STAGE_COMMITTED),
]
"""One day for each failpoint, at which the day's first run dies."""


def chaos_plan() -> dict[str, Any]:
    """Return the plan of the runs' deaths."""
    rules = [
        {
            "name": f"day-{number}",
            "fault": "kill",
            "failpoint": failpoint.value,
            "where": {
                "operator": operator,
                "partition": (FIRST_DAY + timedelta(days=number)).isoformat(),
                # Both sensors can request the same day; the run without units must not die.
                "units": "[1-9]*" if operator != MessageParse.operator else "*",
            },
            "nth": 1,
        }
        for number, (operator, failpoint) in enumerate(DEATHS)
    ]
    return {"apiVersion": API_VERSION, "rules": rules}


@pytest.fixture
def events(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> Iterator[list[ObjectEvent]]:
    """Let the embedded cloud announce some units of each day; point the environment at this cloud."""
    days = [FIRST_DAY + timedelta(days=number) for number in range(len(DEATHS))]
    samples = [sample for day in days for sample in nexrad_level2_samples(day, UNITS_PER_DAY)]
    events = clouds.feed(cloud_server, contracts.only([DATASET]), samples, duplicates=3)
    with environment(cloud_server.environment()):
        yield events


@pytest.mark.deployment
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the campaign of kills uses SQLite
@pytest.mark.clause("DAG-10", "WAL-08", "BEY-03", "BEY-09", "TEL-03", "RSP-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_kills_of_each_operator_of_the_daemon_and_of_the_code_server_lose_and_duplicate_no_unit(
    events: list[ObjectEvent], database_url: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(chaos_plan()))
    home = tmp_path / "home"
    variables = {
        "KFM_HOME": str(home),
        "KFM_DATASETS": DATASET,
        "KFM_WAL_DSN": database_url,
        "KFM_SENSOR_INTERVAL_SECONDS": "1",
        "KFM_RETRY_BACKOFF_SECONDS": "1",
        "KFM_CHAOS_PLAN": str(plan),
    }
    with environment(variables):
        pipeline = Pipeline.open(Settings.load())
        counters = FaultCounters(state_folder(home, load_plan(plan)))
        with Deployment(home, environment={}, module="fault_injection.definitions") as deployment:
            killed = False

            def watch(_: Progress) -> None:
                nonlocal killed
                assert_conserved(pipeline)
                if not killed and len(counters.injected()) > len(DEATHS) // 2:
                    deployment.kill("daemon")
                    deployment.kill("code-server")
                    killed = True

            drain(deployment, pipeline, timeout_seconds=HANG_SECONDS, report=watch)
        assert killed, "daemon and code server did not die"
        assert {entry["rule"] for entry in counters.injected()} == {rule["name"] for rule in chaos_plan()["rules"]}
        _assert_every_attempt_is_explained(pipeline, counters)
        assert assert_whole(pipeline, home, dataset=DATASET, events=events) == 2
        assert own_tx(pipeline.ledger).move_counts() == counted(pipeline.database)
        _assert_failures_are_published(pipeline, home)
        depth = pipeline.queue.depth()
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
        pipeline.close()


def claims_of(pipeline: Pipeline, **where: str) -> list[list[str | None]]:
    """Return the runs that claimed each unit."""
    ledger = own_tx(pipeline.ledger)
    return [
        [entry.run_id for entry in ledger.history(record.wal_id) if entry.to_status is Status.IN_PROGRESS]
        for record in ledger.find(limit=1000, **where)
    ]


def _assert_every_attempt_is_explained(pipeline: Pipeline, counters: FaultCounters) -> None:
    """Check that each unit was claimed twice if a dead run held it, otherwise once."""
    died = {entry["rule"]: entry["labels"]["run"] for entry in counters.injected()}
    for number, (operator, failpoint) in enumerate(DEATHS):
        day = FIRST_DAY + timedelta(days=number)
        claims = claims_of(pipeline, partition=day.isoformat())
        assert len(claims) == UNITS_PER_DAY
        held = [died[f"day-{number}"] in runs for runs in claims]
        # A run that died before its claim's commit, or after settlement, held no unit when it died.
        released = operator != MessageParse.operator and failpoint is not Failpoint.STAGE_COMMITTED
        assert held == [operator != MessageParse.operator] * UNITS_PER_DAY
        assert [len(runs) for runs in claims] == [2 if released else 1] * UNITS_PER_DAY


def _assert_failures_are_published(pipeline: Pipeline, home: Path) -> None:
    """Check that each unit with a lost attempt has one FAIL event, and no other unit has any."""
    files = (home / "lineage" / "failures").rglob("*.ndjson")
    published = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    failed = Counter(event["run"]["facets"]["kfmWal"]["wal_id"] for event in published if event["eventType"] == "FAIL")
    records = own_tx(pipeline.ledger).find(limit=1000)
    assert failed == Counter({record.wal_id: 1 for record in records if record.attempts > 1})


@pytest.fixture
def announced(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> dict[str, str]:
    """Return the environment of an embedded cloud whose queue announces three units."""
    samples = nexrad_level2_samples(DAY, 3)
    clouds.feed(cloud_server, contracts.only([DATASET]), samples, visibility_timeout=10, max_receive_count=1000)
    return dict(cloud_server.environment())


@pytest.mark.clause("BEY-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_after_its_current_batch(
    announced: dict[str, str], database_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    variables = announced | {"KFM_HOME": str(tmp_path / "home"), "KFM_WAL_DSN": database_url}
    with environment(variables):
        with subprocess.Popen(
            [sys.executable, "-c", SERVE, "worker", "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                batch = json.loads(process.stdout.readline())
                process.send_signal(number)
                outputs = process.communicate(timeout=HANG_SECONDS)
            finally:
                process.kill()
        assert (process.returncode, outputs[0]) == (ExitCode.DONE, "")
        [line] = outputs[1].splitlines()
        assert line.startswith("kfm worker: a report to Dagster failed")
        pipeline = Pipeline.open(Settings.load())
        [record] = {(record.status, record.ingest_run_id) for record in own_tx(pipeline.ledger).find(limit=10)}
        assert record == (Status.SUCCEEDED, batch["run_id"])
        pipeline.close()


DAYS = 2
UNITS_A_DAY = 15
UNITS = DAYS * UNITS_A_DAY
LEASE_SECONDS = 30
"""Several times the duration of a step; each step renews the lease."""
BUCKETS = {
    "KFM_STORAGE_URL": "artifacts",
    "KFM_CATALOG_URL": "catalog",
    "KFM_LINEAGE_URL": "lineage",
    "KFM_COMPUTE_LOGS_URL": "logs",
}
DEATH = {
    "name": "worker",
    "fault": "kill",
    "failpoint": Failpoint.STAGE_COMPUTED.value,
    "where": {"operator": MetadataExtract.operator, "units": "[1-9]*"},
    "nth": 1,
}
"""A death in the middle of a run: units are claimed and checked, the work of metadata_extract is not committed."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis without persistence."""
    server = program("redis-server", required_by="KFM_REQUIRE_REDIS")
    port, log = free_port(), tmp_path / "redis.log"
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with running(
        [server, *options], log, ready=lambda: b"Ready to accept connections" in log.read_bytes(), end=signal.SIGKILL
    ):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def worker(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Celery worker whose steps run in the worker's own process: a killed step kills the worker."""
    log = folder / f"{name}.log"
    options = ["--pool", "solo", "--hostname", name, "--loglevel", "INFO"]
    command = [sys.executable, "-m", "kfm_dagster.defs.celery_worker", *options]
    with running(command, log, ready=lambda: b" ready." in log.read_bytes(), end=signal.SIGKILL) as process:
        yield process


@pytest.fixture
def cloud(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> EmbeddedCloud:
    """A cloud with a bucket of each kind and a queue that announces the units."""
    days = [FIRST_DAY + timedelta(days=number) for number in range(DAYS)]
    samples = [sample for day in days for sample in nexrad_level2_samples(day, UNITS_A_DAY)]
    clouds.feed(cloud_server, contracts.only([DATASET]), samples, duplicates=3)
    for bucket in BUCKETS.values():
        cloud_server.client("s3").create_bucket(Bucket=bucket)
    return cloud_server


def done_by(instance: dg.DagsterInstance) -> Counter[str]:
    """Count the steps of each Celery worker."""
    workers = [
        entry.dagster_event.engine_event_data.metadata
        for run in instance.get_runs()
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if entry.dagster_event is not None
    ]
    return Counter(str(metadata["Celery worker"].value) for metadata in workers if "Celery worker" in metadata)


@pytest.mark.deployment
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.clause("DAG-09", "DAG-10", "BEY-03")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_celery_worker_killed_during_a_run_loses_and_duplicates_no_unit(
    broker: str, cloud: EmbeddedCloud, database_url: str, empty_postgres_url: str, tmp_path: Path
) -> None:
    plan, home = tmp_path / "plan.json", tmp_path / "home"
    plan.write_text(json.dumps({"apiVersion": API_VERSION, "rules": [DEATH]}))
    variables = {
        **cloud.environment(),
        **{name: f"s3://{bucket}" for name, bucket in BUCKETS.items()},
        "KFM_HOME": str(home),
        "KFM_DATASETS": DATASET,
        "DAGSTER_HOME": str(home / "dagster"),
        "KFM_WAL_DSN": database_url,
        "KFM_DAGSTER_DSN": empty_postgres_url,
        BROKER: broker,
        "KFM_LEASE_SECONDS": str(LEASE_SECONDS),
        "KFM_SENSOR_INTERVAL_SECONDS": "1",
        "KFM_RETRY_BACKOFF_SECONDS": "1",
        "KFM_CHAOS_PLAN": str(plan),
    }
    with environment(variables), worker("one@here", tmp_path) as first, worker("two@here", tmp_path) as second:
        # The check that kfm doctor runs on Redis and the workers.
        assert [finding.what for finding in check_broker(broker)][1:] == ["2 Celery workers answer"]
        pipeline = Pipeline.open(Settings.load())
        counters = FaultCounters(state_folder(home, load_plan(plan)))

        with Deployment(home, environment={}, module="fault_injection.definitions") as deployment:
            drain(deployment, pipeline, timeout_seconds=HANG_SECONDS, report=lambda _: assert_conserved(pipeline))
            with dg.DagsterInstance.get() as instance:
                # The other worker repeats the killed step; by then the units of its run were released.
                until(
                    lambda: all(run.is_finished for run in instance.get_runs()), (tmp_path / "two@here.log").read_text
                )
                steps = done_by(instance)
        [death] = counters.injected()
        ended = {process.pid: process.poll() for process in (first, second)}
        assert sorted(ended.values(), key=str) == [-signal.SIGKILL, None]
        assert ended[death["pid"]] == -signal.SIGKILL
        assert set(steps) == {"one@here", "two@here"}

        counts = own_tx(pipeline.ledger).counts()[DATASET]
        assert {status: count for status, count in counts.items() if count} == {Status.SUCCEEDED: UNITS}
        assert own_tx(pipeline.ledger).move_counts() == counted(pipeline.database)
        records = own_tx(pipeline.ledger).find(limit=1000)
        # The units of the dead worker's run were released and settled by another run.
        held = [runs for runs in claims_of(pipeline) if death["labels"]["run"] in runs]
        assert len(held) == int(death["labels"]["units"])
        assert all(runs[-1] != death["labels"]["run"] for runs in held)
        depth = pipeline.queue.depth()
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
        pipeline.close()
    published = Counter(item["id"] for item in clouds.catalog_items(cloud, BUCKETS["KFM_CATALOG_URL"]))
    assert published == Counter({record.stac_item_id: 1 for record in records})
    # Outputs and logs of steps are in the shared store, not on a worker's disk.
    assert not (home / "storage").exists()
    for bucket in ("artifacts", "logs"):
        assert cloud.client("s3").list_objects_v2(Bucket=bucket)["KeyCount"] > 0
