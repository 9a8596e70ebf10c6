"""A deployment whose runs, daemon and code server die by SIGKILL, and a worker that is told to end: nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.campaign_verdict import assert_whole
from fault_injection.counters import FaultCounters
from fault_injection.injector import state_folder
from fault_injection.plan import API_VERSION, load_plan
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ExitCode
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.nodes import IntegrityCheck, MessageParse, MetadataExtract, ProvenanceEmit, Settle, StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests import clouds
from kfm_dagster_tests.integration.chain import DAY
from kfm_dagster_tests.ledger.bench import counted
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

FIRST_DAY = date(2025, 4, 1)
UNITS_PER_DAY = 4
DEATHS = [
    # The artifact is put inside the stage's transaction, after the ledger's part.
    (MessageParse.operator, Failpoint.ARTIFACT_PUT_AFTER),
    (IntegrityCheck.operator, Failpoint.STAGE_COMPUTED),
    (MetadataExtract.operator, Failpoint.STAGE_COMPUTED),
    (StacRegister.operator, Failpoint.STAGE_COMPUTED),
    (ProvenanceEmit.operator, Failpoint.STAGE_COMPUTED),
    (Settle.operator, Failpoint.ARTIFACT_PUT_AFTER),
    (Settle.operator, Failpoint.STAGE_COMMITTED),
]
"""One day each; the day's first run dies there."""


def chaos_plan() -> dict[str, Any]:
    """The deaths of the runs."""
    rules = [
        {
            "name": f"day-{number}",
            "fault": "kill",
            "failpoint": failpoint.value,
            "where": {
                "operator": operator,
                "partition": (FIRST_DAY + timedelta(days=number)).isoformat(),
                # The two sensors may ask for a day at the same moment; the run that finds nothing to claim is to live.
                "units": "[1-9]*" if operator != MessageParse.operator else "*",
            },
            "nth": 1,
        }
        for number, (operator, failpoint) in enumerate(DEATHS)
    ]
    return {"apiVersion": API_VERSION, "rules": rules}


@pytest.fixture
def events(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> Iterator[list[ObjectEvent]]:
    """Some units of each day, announced by a cloud that is in the environment."""
    days = [FIRST_DAY + timedelta(days=number) for number in range(len(DEATHS))]
    samples = [sample for day in days for sample in nexrad_level2_samples(day, UNITS_PER_DAY)]
    events = clouds.feed(cloud_server, contracts, samples, duplicates=3)
    with environment(cloud_server.environment()):
        yield events


@pytest.mark.deployment
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # production's; on SQLite the campaign kills
@pytest.mark.clause("DAG-10", "WAL-08", "BEY-03", "BEY-09", "TEL-03", "RSP-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_deaths_in_every_operator_and_of_daemon_and_code_server_lose_and_double_nothing(
    events: list[ObjectEvent], database_url: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(chaos_plan()))
    home = tmp_path / "home"
    variables = {
        "KFM_HOME": str(home),
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
                balance = pipeline.deliveries.conservation()
                assert (balance.residual_units, balance.residual_messages) == (0, 0)
                if not killed and len(counters.injected()) > len(DEATHS) // 2:
                    deployment.kill("daemon")
                    deployment.kill("code-server")
                    killed = True

            drain(deployment, pipeline, timeout_seconds=HANG_SECONDS, report=watch)
        assert killed, "daemon and code server did not die"
        assert {entry["rule"] for entry in counters.injected()} == {rule["name"] for rule in chaos_plan()["rules"]}
        _assert_every_attempt_is_explained(pipeline, counters)
        assert assert_whole(pipeline, home, dataset="nexrad-l2", events=events) == 2
        assert own_tx(pipeline.ledger).move_counts() == counted(pipeline.database)
        _assert_failures_are_told(pipeline, home)
        depth = pipeline.queue.depth()
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
        pipeline.close()


def _assert_every_attempt_is_explained(pipeline: Pipeline, counters: FaultCounters) -> None:
    """Each unit was claimed once, and once more exactly if the run that died on its day held it."""
    died = {entry["rule"]: entry["labels"]["run"] for entry in counters.injected()}
    for number, (operator, failpoint) in enumerate(DEATHS):
        day = FIRST_DAY + timedelta(days=number)
        claims = [
            [
                entry.run_id
                for entry in own_tx(pipeline.ledger).history(record.wal_id)
                if entry.to_status is Status.IN_PROGRESS
            ]
            for record in own_tx(pipeline.ledger).find(partition=day.isoformat(), limit=1000)
        ]
        assert len(claims) == UNITS_PER_DAY
        held = [died[f"day-{number}"] in runs for runs in claims]
        # One that died before its claim was durable held nothing; one that died after its settlement gave nothing back.
        given_back = operator != MessageParse.operator and failpoint is not Failpoint.STAGE_COMMITTED
        assert held == [operator != MessageParse.operator] * UNITS_PER_DAY
        assert [len(runs) for runs in claims] == [2 if given_back else 1] * UNITS_PER_DAY


def _assert_failures_are_told(pipeline: Pipeline, home: Path) -> None:
    """A day that died after its claim has one FAIL event of each unit, and no other has any."""
    files = (home / "lineage" / "failures").rglob("*.ndjson")
    told = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    failed = Counter(event["run"]["facets"]["kfmWal"]["wal_id"] for event in told if event["eventType"] == "FAIL")
    records = own_tx(pipeline.ledger).find(limit=1000)
    assert failed == Counter({record.wal_id: 1 for record in records if record.attempts > 1})


SERVE = "import sys; from kfm_dagster.cli.main import main; main(sys.argv[1:])"


@pytest.fixture
def announced(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> dict[str, str]:
    """The environment of an embedded cloud whose queue announces three units."""
    clouds.feed(cloud_server, contracts, nexrad_level2_samples(DAY, 3), visibility_timeout=10, max_receive_count=1000)
    return dict(cloud_server.environment())


@pytest.mark.clause("BEY-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
@pytest.mark.one_database
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_after_its_batch_when_it_is_told_to(
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
                said = process.communicate(timeout=HANG_SECONDS)
            finally:
                process.kill()
        assert (process.returncode, said[0]) == (ExitCode.DONE, "")
        [line] = said[1].splitlines()
        assert line.startswith("kfm worker: a report to Dagster failed")
        pipeline = Pipeline.open(Settings.load())
        [record] = {(record.status, record.ingest_run_id) for record in own_tx(pipeline.ledger).find(limit=10)}
        assert record == (Status.SUCCEEDED, batch["run_id"])
        pipeline.close()
