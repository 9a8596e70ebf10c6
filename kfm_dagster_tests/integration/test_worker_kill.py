"""`kfm worker` as a process beside a sensor-driven deployment: killed again and again it loses and doubles nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import pytest

from benchmarks.campaign_verdict import assert_whole
from kfm_dagster.chaos.counters import FaultCounters
from kfm_dagster.chaos.injector import state_folder
from kfm_dagster.chaos.plan import API_VERSION, load_plan
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_key
from kfm_dagster.defs.reexecutions import opened_instance
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed, FeedObject, ObjectEvent
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.deployment.drain import drain
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ExitCode
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.nodes import Settle, StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.progress import Progress
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests.clouds import emptied
from kfm_dagster_tests.timeouts import HANG_SECONDS

FIRST_DAY = date(2025, 4, 1)
UNITS = 3
"""Of each announcement."""
A_DAY = 24
IN_A_RUN = [
    (StacRegister.operator, Failpoint.CATALOG_PROMOTE_AFTER),
    (Settle.operator, Failpoint.ARTIFACT_PUT_AFTER),
    (Settle.operator, Failpoint.STAGE_COMMITTED),
]
"""One day each, because a unit has three attempts."""
OUTSIDE = [Failpoint.LANDING_PUT_AFTER, Failpoint.QUEUE_DELETE_AFTER]
AT_RANDOM = 2
"""Days whose announcement is followed by a SIGKILL within RANDOM_SECONDS."""
RANDOM_SECONDS = 2.0
WORKER = """
import sys
from kfm_dagster.chaos.injector import activate
from kfm_dagster.cli.main import main
from kfm_dagster.settings import Settings
activate(Settings.load())
main(sys.argv[1:])
"""


def _day(number: int) -> str:
    return (FIRST_DAY + timedelta(days=number)).isoformat()


def _plan() -> dict[str, object]:
    in_a_run = [
        {
            "name": f"day-{number}",
            "failpoint": failpoint.value,
            "where": {"run": "?*", "operator": operator, "partition": _day(number), "units": "[1-9]*"},
        }
        for number, (operator, failpoint) in enumerate(IN_A_RUN)
    ]
    outside = [{"name": failpoint.value.replace(".", "-"), "failpoint": failpoint.value} for failpoint in OUTSIDE]
    return {
        "apiVersion": API_VERSION,
        "rules": [{"fault": "kill", "nth": 1, **rule} for rule in (*in_a_run, *outside)],
    }


SERVE = "import sys; from kfm_dagster.cli.main import main; main(sys.argv[1:])"


@dataclass
class Resident:
    """A worker process, which its supervisor starts again."""

    plan: Path
    log: Path
    deaths: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def tend(self) -> None:
        """Start it, or start it again where it was killed."""
        if self._process is not None and self._process.poll() is not None:
            assert self._process.returncode == -signal.SIGKILL, self.log.read_text(encoding="utf-8")
            self.deaths += 1
            self._process = None
        if self._process is None:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", WORKER, "worker"],
                    env={**os.environ, "KFM_CHAOS_PLAN": str(self.plan), "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip

    def kill(self, after: float) -> None:
        """Kill it once it has lived for another so many seconds, at least."""
        assert self._process is not None
        try:
            self._process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass
class Announcer:
    """Announces some more units of a day, each once."""

    feed: Feed
    events: list[ObjectEvent] = field(default_factory=list)

    def announce(self, day: str) -> None:
        """Announce UNITS more of the day."""
        begun = sum(event.key.startswith(day.replace("-", "/")) for event in self.events)
        samples = list(nexrad_level2_samples(date.fromisoformat(day), A_DAY))[begun : begun + UNITS]
        assert len(samples) == UNITS, f"every unit of {day} is announced, and no worker died of one"
        new = [self.feed.deliver(FeedObject(bucket=one[0], key=one[1], content=one[2])) for one in samples]
        self.feed.announce(new)
        self.events += new


@pytest.fixture
def announcer(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> tuple[Announcer, dict[str, str]]:
    """Announces to the queue of an embedded cloud; its environment."""
    cloud = emptied(cloud_server)
    cloud.provision(contracts, visibility_timeout=10, max_receive_count=1000)
    return Announcer(Feed(cloud, contracts)), dict(cloud.environment())


@pytest.mark.deployment
@pytest.mark.clause("BEY-16", "BEY-03", "BEY-02")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_worker_killed_beside_a_sensor_driven_deployment_loses_and_doubles_nothing(
    announcer: tuple[Announcer, dict[str, str]], database_url: str, tmp_path: Path
) -> None:
    feed, cloud = announcer
    plan, home = tmp_path / "plan.json", tmp_path / "home"
    plan.write_text(json.dumps(_plan()))
    variables = cloud | {
        "KFM_HOME": str(home),
        "KFM_WAL_DSN": database_url,
        "KFM_SENSOR_INTERVAL_SECONDS": "1",
        "KFM_RETRY_BACKOFF_SECONDS": "1",
    }
    resident = Resident(plan=plan, log=tmp_path / "worker.log")
    chance = random.Random(16)
    with environment(variables):
        pipeline = Pipeline.open(Settings.load())
        counters = FaultCounters(state_folder(home, load_plan(plan)))
        left = [_day(len(IN_A_RUN) + number) for number in range(AT_RANDOM)]
        # Before the worker begins, so that the sensors have work, too.
        feed.announce(_day(20))

        def watch(now: Progress) -> None:
            balance = pipeline.deliveries.conservation()
            assert (balance.residual_units, balance.residual_messages) == (0, 0)
            if now.drained or resident.log.exists():
                resident.tend()
            if not now.drained:
                return
            fired = {entry["rule"] for entry in counters.injected()}
            waiting = [rule["name"] for rule in _plan()["rules"] if rule["name"] not in fired]  # type: ignore[attr-defined]
            if waiting:
                number = waiting[0].removeprefix("day-")
                feed.announce(_day(int(number) if number.isdigit() else len(IN_A_RUN) + AT_RANDOM))
            elif left:
                feed.announce(left.pop())
                resident.kill(after=chance.uniform(0, RANDOM_SECONDS))

        try:
            with Deployment(home, environment={}) as deployment:
                drain(deployment, pipeline, timeout_seconds=HANG_SECONDS, report=watch)
        finally:
            resident.end()
        assert {entry["rule"] for entry in counters.injected()} == {rule["name"] for rule in _plan()["rules"]}  # type: ignore[attr-defined]
        assert resident.deaths >= len(counters.injected()) + AT_RANDOM
        assert_whole(pipeline, home, dataset="nexrad-l2", events=feed.events)
        depth = pipeline.queue.depth()
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
        _assert_shown(home)
        pipeline.close()


def _assert_shown(home: Path) -> None:
    """Both the runs and the worker show in Dagster, the worker without a run."""
    with environment({"DAGSTER_HOME": str(home / "dagster")}):
        instance = opened_instance(home / "dagster")
        assert instance is not None
        with instance:
            records = instance.fetch_materializations(asset_key("nexrad-l2", "ledger"), limit=1000).records
            assert {record.run_id == "" for record in records} == {True, False}


@pytest.mark.clause("BEY-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
@pytest.mark.one_database
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_after_its_batch_when_it_is_told_to(
    announcer: tuple[Announcer, dict[str, str]], database_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    feed, cloud = announcer
    variables = cloud | {"KFM_HOME": str(tmp_path / "home"), "KFM_WAL_DSN": database_url}
    feed.announce(_day(0))
    with environment(variables):
        with subprocess.Popen(
            [sys.executable, "-c", SERVE, "worker", "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                batch = json.loads(process.stdout.readline())
                process.send_signal(number)
                said = process.communicate(timeout=HANG_SECONDS)
            finally:
                process.kill()
        assert (process.returncode, said[0]) == (ExitCode.DONE, "")
        [line] = said[1].splitlines()
        assert line.startswith("kfm worker: Dagster is not told of what is stored")
        pipeline = Pipeline.open(Settings.load())
        [record] = {(record.status, record.ingest_run_id) for record in pipeline.ledger.find(limit=10)}
        assert record == (Status.SUCCEEDED, batch["run_id"])
        pipeline.close()
