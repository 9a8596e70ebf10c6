"""A real code server, which runs a job of a few lines."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from kfm_dagster.cyclic_gc import THRESHOLDS
from kfm_dagster.defs.code_server import CODE_VERSION, UNKNOWN_EXIT, RunContext
from kfm_dagster.defs.run_processes import is_running
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.idempotent_node.compute_hash import code_fingerprint
from kfm_dagster.ingest import pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import migrations, statement
from kfm_dagster_tests.timeouts import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
LOCATION = """
import os
import time
from multiprocessing import forkserver
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
CODE_LOCATION = """
import gc
import json
import sys
from pathlib import Path

import dagster as dg

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import migrations, statement

HERE = Path(__file__).parent
with (HERE / "imports").open("a") as notes:
    notes.write("1\\n")


@dg.op
def work():
    code = Pipeline(settings=Settings.load(), registry=None, database=None, card=None).code.canonical()
    numbers = [migration.number for migration in migrations("postgresql")]
    collector = [gc.get_freeze_count() > 100_000, gc.get_threshold()[0]]
    assembled = {"kfm_dagster.definitions", "kfm_dagster.readers.goes_abi"} <= sys.modules.keys()
    seen = [code, str(statement("sqlite", "ledger.replay_reasons")), numbers, collector, assembled]
    (HERE / "began").write_text(json.dumps(seen) + "\\n")


@dg.job(executor_def=dg.in_process_executor)
def job():
    work()


defs = dg.Definitions(jobs=[job])
"""
RUN = """
import contextlib
import importlib
import sys
from pathlib import Path

import kfm_dagster.definitions
from kfm_dagster.defs.code_server import LATE

for name in LATE:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

from kfm_dagster_tests.integration.chain import DAY, open_pipeline, put, run_chain, volumes

home = Path(sys.argv[1])
put(home / "objects", volumes(2))
loaded = set(sys.modules)
batch = run_chain(open_pipeline(home, home / "objects"), "nexrad-l2", DAY.isoformat(), "run")
assert len(batch.envelopes) == 2
print(*sorted({name for name in set(sys.modules) - loaded if "." not in name}))
"""
INSTANCE = """
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
telemetry: {enabled: false}
"""


def noted(file: Path, lines: int = 1) -> list[str]:
    """Wait until processes have noted so many lines."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (file.is_file() and file.read_text().count("\n") >= lines):
        assert time.monotonic() < deadline, f"no {file.name}"
        time.sleep(0.1)
    return file.read_text().splitlines()


def launch(deployment: Deployment) -> None:
    """Launch the location's job."""
    workspace = deployment.dagster_home / "workspace.yaml"
    command = [str(Path(sys.executable).parent / "dagster"), "job", "launch", "-w", str(workspace), "-j", "job"]
    subprocess.run(command, env=deployment._environment, check=True, capture_output=True)


@pytest.mark.deployment
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_run_is_a_process_of_its_own_which_imports_nothing_again_and_outlives_the_code_server(tmp_path: Path) -> None:
    (tmp_path / "location.py").write_text(LOCATION)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    deployment = Deployment(
        tmp_path / "home", environment={"PYTHONPATH": path}, daemon=False, dagster_yaml=INSTANCE, module="location"
    )
    with deployment:
        launch(deployment)
        [run] = noted(tmp_path / "began")
        importers = (tmp_path / "imports").read_text().splitlines()
        # The server and the process that runs are forked from.
        assert len(importers) == 2
        assert run not in {*importers, *map(str, deployment.pids())}
        assert str(deployment.pids()[0]) in importers
        deployment.kill("code-server")
        (tmp_path / "code-server-is-gone").touch()
        assert noted(tmp_path / "ended") == [run]


def test_what_a_run_imports_is_loaded_before_it_is_forked(tmp_path: Path) -> None:
    """A library that a run alone imports costs every run what it costs to import."""
    (tmp_path / "objects").mkdir()
    done = subprocess.run([sys.executable, "-c", RUN, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) - sys.stdlib_module_names == set()


@pytest.mark.deployment
@pytest.mark.clause("IEN-02")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_run_s_fingerprint_sql_and_memory_are_those_of_the_process_that_imported_the_code(tmp_path: Path) -> None:
    checkout, place = tmp_path / "checkout", tmp_path / "location"
    for folder in ("kfm_dagster", "sql"):
        shutil.copytree(ROOT / folder, checkout / folder)
    (checkout / pipeline.LOCKFILE).write_text("pinned==1\n")
    place.mkdir()
    (place / "location.py").write_text(CODE_LOCATION)
    code = code_fingerprint(
        checkout / "kfm_dagster", checkout / "sql", lockfile=checkout / pipeline.LOCKFILE, image_digest="sha256:image"
    )
    replay_reasons = str(statement("sqlite", "ledger.replay_reasons"))
    environment = {
        "PYTHONPATH": os.pathsep.join([str(checkout), str(place), os.environ.get("PYTHONPATH", "")]),
        "KFM_IMAGE_DIGEST": "sha256:image",
    }
    with Deployment(
        tmp_path / "home", environment=environment, daemon=False, dagster_yaml=INSTANCE, module="location"
    ) as deployment:
        # The server, and the process that runs are forked from.
        noted(place / "imports", lines=2)
        # An update of everything, below both of them.
        (checkout / pipeline.LOCKFILE).write_text("pinned==2\n")
        (checkout / "kfm_dagster" / "later.py").write_text('"""New."""\n')
        (checkout / "sql" / "queries" / "ledger.sql").write_text("-- name: replay_reasons\nSELECT 2\n")
        (checkout / "sql" / "schema" / f"{len(migrations('postgresql')) + 1:04}_later.sql").write_text("SELECT 3;\n")
        launch(deployment)
        [seen] = noted(place / "began")
    numbers = [migration.number for migration in migrations("postgresql")]
    # What was loaded before the fork is out of the collector's sight, as the run has it from the process it comes of.
    assert json.loads(seen) == [code.canonical(), replay_reasons, numbers, [True, THRESHOLDS[0]], True]


@pytest.mark.parametrize("wrong", ["a setting", "no lockfile"])
def test_what_cannot_be_settled_at_the_start_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    if wrong == "a setting":
        monkeypatch.setenv("KFM_LIVE_SHARE", "a lot")
    else:
        monkeypatch.setattr(pipeline, "LOCKFILE", "absent.lock")
    runpy.run_module(CODE_VERSION)
    with pytest.raises(ConfigurationError):
        pipeline.installed_code(Settings.load())


def test_definitions_that_cannot_be_assembled_do_not_end_the_process_that_forks() -> None:
    code = "import kfm_dagster.definitions as code\ncode.defs = lambda: 1 / 0\nimport kfm_dagster.fork_template"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_SECONDS)


def test_a_run_s_process_is_alive_until_it_ends_though_the_one_that_forked_it_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    process = RunContext().Process(target=Path.read_bytes, args=(tmp_path / "fifo",))
    process.start()
    # Opened from both sides, so that it does run.
    with (tmp_path / "fifo").open("wb"):
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == UNKNOWN_EXIT
        assert process.is_alive()
    # At the pipe's end it ends.
    while process.is_alive():
        time.sleep(0.01)
    assert not is_running(process.pid or 0)
