"""Steps on Celery workers over PostgreSQL, S3 and Redis: one worker dies in mid-run, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import dagster as dg
import pytest

from fault_injection.counters import FaultCounters
from fault_injection.injector import state_folder
from fault_injection.plan import API_VERSION, load_plan
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.executors import BROKER
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.deployment.doctor.instance import check_broker
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment, free_port
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests import clouds
from kfm_dagster_tests.ledger.bench import counted
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

FIRST_DAY = date(2025, 4, 1)
DAYS = 2
UNITS_PER_DAY = 15
UNITS = DAYS * UNITS_PER_DAY
LEASE_SECONDS = 30
"""Several times what a step takes here, whose lease is renewed meanwhile."""
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
"""In mid-run: units are claimed and checked, and the step's work is done and not committed."""


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this test's own while the block lasts."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def until(there: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not there():
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis that forgets everything when it ends."""
    server = shutil.which("redis-server")
    if server is None:
        reason = "no Redis: apt-get install redis-server"
        if os.environ.get("KFM_REQUIRE_REDIS") == "1":
            pytest.fail(f"KFM_REQUIRE_REDIS=1, and {reason}")
        pytest.skip(reason)
    port, log = free_port(), tmp_path / "redis.log"
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with started([server, *options], log) as process:
        until(lambda: process.poll() is not None or b"Ready to accept connections" in log.read_bytes(), log)
        assert process.poll() is None, log.read_text(errors="replace")
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def worker(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker that does each step in its own process, so that a step's death is the worker's."""
    log = folder / f"{name}.log"
    options = ["--pool", "solo", "--hostname", name, "--loglevel", "INFO"]
    with started([sys.executable, "-m", "kfm_dagster.defs.celery_worker", *options], log) as process:
        until(lambda: process.poll() is not None or b" ready." in log.read_bytes(), log)
        assert process.poll() is None, log.read_text(errors="replace")
        yield process


@pytest.fixture
def cloud(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> EmbeddedCloud:
    """A cloud with a bucket of each kind, whose queue announces the units."""
    days = [FIRST_DAY + timedelta(days=number) for number in range(DAYS)]
    samples = [sample for day in days for sample in nexrad_level2_samples(day, UNITS_PER_DAY)]
    clouds.feed(cloud_server, contracts, samples, duplicates=3)
    for bucket in BUCKETS.values():
        cloud_server.client("s3").create_bucket(Bucket=bucket)
    return cloud_server


def items(cloud: EmbeddedCloud) -> Counter[str]:
    """The Items of the catalog, by how often each stands."""
    s3 = cloud.client("s3")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKETS["KFM_CATALOG_URL"])
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", []) if entry["Key"].endswith(".json")]
    bodies = (s3.get_object(Bucket=BUCKETS["KFM_CATALOG_URL"], Key=key)["Body"].read() for key in keys)
    return Counter(one["id"] for one in map(json.loads, bodies) if one.get("type") == "Feature")


def done_by(instance: dg.DagsterInstance) -> Counter[str]:
    """Steps by the Celery worker that took them."""
    told = [
        entry.dagster_event.engine_event_data.metadata
        for run in instance.get_runs()
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if entry.dagster_event is not None
    ]
    return Counter(str(metadata["Celery worker"].value) for metadata in told if "Celery worker" in metadata)


@pytest.mark.deployment
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.clause("DAG-09", "DAG-10", "BEY-03")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_worker_that_dies_in_mid_run_loses_and_doubles_nothing(
    broker: str, cloud: EmbeddedCloud, database_url: str, empty_postgres_url: str, tmp_path: Path
) -> None:
    plan, home = tmp_path / "plan.json", tmp_path / "home"
    plan.write_text(json.dumps({"apiVersion": API_VERSION, "rules": [DEATH]}))
    variables = {
        **cloud.environment(),
        **{name: f"s3://{bucket}" for name, bucket in BUCKETS.items()},
        "KFM_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "KFM_WAL_DSN": database_url,
        "KFM_DAGSTER_DSN": empty_postgres_url,
        BROKER: broker,
        "KFM_LEASE_SECONDS": str(LEASE_SECONDS),
        "KFM_SENSOR_INTERVAL_SECONDS": "1",
        "KFM_RETRY_BACKOFF_SECONDS": "1",
        "KFM_CHAOS_PLAN": str(plan),
    }
    with environment(variables), worker("one@here", tmp_path) as one, worker("two@here", tmp_path) as two:
        # What kfm doctor asks of Redis and of both workers.
        assert [one.what for one in check_broker(broker)][1:] == ["2 Celery workers answer"]
        pipeline = Pipeline.open(Settings.load())
        counters = FaultCounters(state_folder(home, load_plan(plan)))

        def conserved(_: Progress) -> None:
            balance = pipeline.deliveries.conservation()
            assert (balance.residual_units, balance.residual_messages) == (0, 0)

        with Deployment(home, environment={}, module="fault_injection.definitions") as deployment:
            drain(deployment, pipeline, timeout_seconds=HANG_SECONDS, report=conserved)
            with dg.DagsterInstance.get() as instance:
                # The run that lost its worker gets its step from the other one, and has nothing left to do.
                until(lambda: all(run.is_finished for run in instance.get_runs()), tmp_path / "two@here.log")
                steps = done_by(instance)
        [death] = counters.injected()
        ended = {process.pid: process.poll() for process in (one, two)}
        assert sorted(ended.values(), key=str) == [-signal.SIGKILL, None]
        assert ended[death["pid"]] == -signal.SIGKILL
        assert set(steps) == {"one@here", "two@here"}

        counts = own_tx(pipeline.ledger).counts()["nexrad-l2"]
        assert {status: count for status, count in counts.items() if count} == {Status.SUCCEEDED: UNITS}
        assert own_tx(pipeline.ledger).move_counts() == counted(pipeline.database)
        records = own_tx(pipeline.ledger).find(limit=1000)
        # What the dead worker's run held was given back, and settled by another one.
        claims = [
            [
                entry.run_id
                for entry in own_tx(pipeline.ledger).history(record.wal_id)
                if entry.to_status is Status.IN_PROGRESS
            ]
            for record in records
        ]
        held = [runs for runs in claims if death["labels"]["run"] in runs]
        assert len(held) == int(death["labels"]["units"])
        assert all(runs[-1] != death["labels"]["run"] for runs in held)
        depth = pipeline.queue.depth()
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
        pipeline.close()
    assert items(cloud) == Counter({record.stac_item_id: 1 for record in records})
    # What steps handed on, and what they printed, is where every worker finds it.
    assert not (home / "storage").exists()
    for bucket in ("artifacts", "logs"):
        assert cloud.client("s3").list_objects_v2(Bucket=bucket)["KeyCount"] > 0
