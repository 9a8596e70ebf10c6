"""A real code server, which runs a job of a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfm_dagster.embedded.deployment import Deployment
from kfm_dagster_tests.patience import HANG_SECONDS

LOCATION = """
import os
import time
from pathlib import Path

import dagster as dg

HERE = Path(__file__).parent


def note(file, line):
    with (HERE / file).open("a") as notes:
        notes.write(f"{line}\\n")


note("imports", os.getpid())


@dg.op
def work():
    note("began", os.getpid())
    while not (HERE / "code-server-is-gone").exists():
        time.sleep(0.1)
    note("ended", os.getpid())


@dg.job(executor_def=dg.in_process_executor)
def job():
    work()


defs = dg.Definitions(jobs=[job])
"""
INSTANCE = """
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
telemetry: {enabled: false}
"""


def noted(file: Path) -> list[str]:
    """Wait until a process has noted something."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (file.is_file() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"no {file.name}"
        time.sleep(0.1)
    return file.read_text().splitlines()


@pytest.mark.deployment
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_run_is_a_process_of_its_own_which_imports_nothing_anew_and_outlives_the_code_server(tmp_path: Path) -> None:
    (tmp_path / "location.py").write_text(LOCATION)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    deployment = Deployment(
        tmp_path / "home", environment={"PYTHONPATH": path}, daemon=False, dagster_yaml=INSTANCE, module="location"
    )
    with deployment:
        workspace = deployment.dagster_home / "workspace.yaml"
        command = [str(Path(sys.executable).parent / "dagster"), "job", "launch", "-w", str(workspace), "-j", "job"]
        subprocess.run(command, env=deployment._environment, check=True, capture_output=True)
        [run] = noted(tmp_path / "began")
        importers = (tmp_path / "imports").read_text().splitlines()
        # The server and the process that runs are forked from.
        assert len(importers) == 2
        assert run not in {*importers, *map(str, deployment.pids())}
        assert str(deployment.pids()[0]) in importers
        deployment.kill("code-server")
        (tmp_path / "code-server-is-gone").touch()
        assert noted(tmp_path / "ended") == [run]
