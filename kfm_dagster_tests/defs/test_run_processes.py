"""Runs of this machine whose process is gone, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.events import EngineEventData

from kfm_dagster.defs.run_processes import SERVER_TAG, fail_lost_runs, is_running
from kfm_dagster.defs.run_storage import active_runs

STARTED = dg.DagsterRunStatus.STARTED


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def begun(
    instance: dg.DagsterInstance, *pids: int, host: str = "127.0.0.1", status: dg.DagsterRunStatus = STARTED
) -> dg.DagsterRun:
    """A run of a day with the events of its processes."""
    tags = {SERVER_TAG: json.dumps({"host": host, "port": 1}), "dagster/partition": "2025-12-03"}
    job = dg.GraphDefinition(name="nothing").to_job()
    run = instance.create_run_for_job(job, tags=tags, status=status)
    instance.report_engine_event("no process yet", run)
    for pid in pids:
        instance.report_engine_event("Started process for run", run, EngineEventData.in_process(pid))
    return run


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    return instance.get_run_by_id(run.run_id).status


@pytest.mark.clause("DAG-10")
def test_a_run_whose_process_is_gone_has_failed_and_is_not_active(
    instance: dg.DagsterInstance, child: subprocess.Popen[bytes]
) -> None:
    run = begun(instance, child.pid)
    assert active_runs(instance, begun=set).active.total() == 1
    child.kill()
    child.wait()
    assert active_runs(instance, begun=set).active.total() == 0
    assert status_of(instance, run) is dg.DagsterRunStatus.FAILURE
    assert f"the run's process {child.pid} is gone" in [entry.message for entry in instance.all_logs(run.run_id)]


def test_other_runs_are_left_as_they_are(instance: dg.DagsterInstance, child: subprocess.Popen[bytes]) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    runs = {
        "another machine": begun(instance, dead.pid, host="code.example"),
        "no process yet": begun(instance),
        "a later process of the same run": begun(instance, child.pid, dead.pid),
        "not started": begun(instance, dead.pid, status=dg.DagsterRunStatus.STARTING),
        "ended meanwhile": begun(instance, dead.pid),
    }
    instance.report_run_canceled(runs["ended meanwhile"])
    for case, run in runs.items():
        before = status_of(instance, run)
        assert fail_lost_runs(instance, [run]) is (case == "ended meanwhile"), case
        assert status_of(instance, run) is before, case


def test_a_dead_process_that_nobody_waited_for_does_not_run(child: subprocess.Popen[bytes]) -> None:
    assert is_running(child.pid)
    child.kill()
    # Not yet waited for, it is a zombie as soon as it has ended.
    while is_running(child.pid):
        pass
    assert child.poll() is not None
