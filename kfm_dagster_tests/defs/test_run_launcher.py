"""Whether a run's process is there, asked of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

from kfm_dagster.defs.run_launcher import LocalRunLauncher, is_running


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    overrides = {"run_launcher": {"module": "kfm_dagster.defs.run_launcher", "class": "LocalRunLauncher"}}
    with dg.instance_for_test(overrides=overrides) as made:
        yield made


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def started(instance: dg.DagsterInstance, *pids: int, host: str = "127.0.0.1") -> dg.DagsterRun:
    tags = {GRPC_INFO_TAG: json.dumps({"host": host, "port": 1})}
    run = instance.create_run_for_job(dg.GraphDefinition(name="nothing").to_job(), tags=tags)
    for pid in pids:
        instance.report_engine_event(f"Started process for run (pid: {pid}).", run, EngineEventData.in_process(pid))
    return run


@pytest.mark.clause("DAG-10")
def test_a_run_whose_process_is_gone_has_failed(instance: dg.DagsterInstance, child: subprocess.Popen[bytes]) -> None:
    launcher = instance.run_launcher
    assert isinstance(launcher, LocalRunLauncher)
    assert launcher.supports_check_run_worker_health
    run = started(instance, child.pid)
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    child.kill()
    child.wait()
    gone = launcher.check_run_worker_health(run)
    assert (gone.status, gone.msg) == (WorkerStatus.FAILED, f"the run's process {child.pid} is gone")


@pytest.mark.parametrize("case", ["another machine", "no process yet", "a later process of the same run"])
def test_of_what_it_cannot_see_it_says_nothing(
    instance: dg.DagsterInstance, child: subprocess.Popen[bytes], case: str
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    run = {
        "another machine": lambda: started(instance, dead.pid, host="code.example"),
        "no process yet": lambda: started(instance),
        "a later process of the same run": lambda: started(instance, child.pid, dead.pid),
    }[case]()
    assert instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_a_dead_process_that_nobody_waited_for_does_not_run(child: subprocess.Popen[bytes]) -> None:
    assert is_running(child.pid)
    child.kill()
    # Not yet waited for, it is a zombie as soon as it has ended.
    while is_running(child.pid):
        pass
    assert child.poll() is not None
