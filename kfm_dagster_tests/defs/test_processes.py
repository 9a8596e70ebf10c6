"""Processes of runs: a real code server, lost runs, re-executions, compute logs."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.events import EngineEventData
from dagster_aws.s3 import S3ComputeLogManager

from kfm_dagster.cyclic_gc import THRESHOLDS
from kfm_dagster.defs import code_server, reexecutions
from kfm_dagster.defs.code_server import CODE_VERSION, UNKNOWN_EXIT, RunContext
from kfm_dagster.defs.instance_storage import prepare
from kfm_dagster.defs.long_ticks import SHORT
from kfm_dagster.defs.reexecutions import InstanceReexecutions
from kfm_dagster.defs.run_processes import SERVER_TAG, fail_lost_runs, is_running
from kfm_dagster.defs.run_storage import active_runs
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.deployment.local import Deployment, dagster_yaml_for
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.idempotent_node.compute_hash import code_fingerprint
from kfm_dagster.ingest import pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import migrations, statement
from kfm_dagster_tests.databases import execute
from kfm_dagster_tests.programs import printed_by
from kfm_dagster_tests.timeouts import HANG_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]
LOCATION = """
import gc
import json
import os
import sys
import time
from pathlib import Path

import dagster as dg

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import migrations, statement

HERE = Path(__file__).parent


def note(file, line):
    with (HERE / file).open("a") as notes:
        notes.write(f"{line}\\n")


note("imports", os.getpid())


@dg.op
def work():
    code = Pipeline(settings=Settings.load(), registry=None, database=None, card=None).code.canonical()
    numbers = [migration.number for migration in migrations("postgresql")]
    collector = [gc.get_freeze_count() > 100_000, gc.get_threshold()[0]]
    assembled = {"kfm_dagster.definitions", "kfm_dagster.readers.goes_abi"} <= sys.modules.keys()
    values = [code, str(statement("sqlite", "ledger.replay_reasons")), numbers, collector, assembled]
    note("began", json.dumps([os.getpid(), *values]))
    while not (HERE / "code-server-is-gone").exists():
        time.sleep(0.1)
    note("ended", os.getpid())


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
    """Wait until the file has this many lines, and return them."""
    until(lambda: file.is_file() and file.read_text().count("\n") >= lines, lambda: f"no {file.name}")
    return file.read_text().splitlines()


def test_the_modules_of_a_run_are_imported_before_the_fork(tmp_path: Path) -> None:
    """Otherwise every run would spend the time of the import."""
    (tmp_path / "objects").mkdir()
    modules = printed_by(sys.executable, "-c", RUN, tmp_path, folder=ROOT).split()
    assert set(modules) - sys.stdlib_module_names == set()


@pytest.mark.deployment
@pytest.mark.clause("IEN-02")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_run_is_forked_with_the_code_and_memory_of_its_server_and_outlives_the_server(tmp_path: Path) -> None:
    checkout, location = tmp_path / "checkout", tmp_path / "location"
    for folder in ("kfm_dagster", "sql"):
        shutil.copytree(ROOT / folder, checkout / folder)
    (checkout / pipeline.LOCKFILE).write_text("pinned==1\n")
    location.mkdir()
    (location / "location.py").write_text(LOCATION)
    code = code_fingerprint(
        checkout / "kfm_dagster", checkout / "sql", lockfile=checkout / pipeline.LOCKFILE, image_digest="sha256:image"
    )
    replay_reasons = str(statement("sqlite", "ledger.replay_reasons"))
    environment = {
        "PYTHONPATH": os.pathsep.join([str(checkout), str(location), os.environ.get("PYTHONPATH", "")]),
        "KFM_IMAGE_DIGEST": "sha256:image",
    }
    with Deployment(
        tmp_path / "home", environment=environment, daemon=False, dagster_yaml=INSTANCE, module="location"
    ) as deployment:
        # Wait for the server, and for the process from which runs are forked.
        noted(location / "imports", lines=2)
        # Change lockfile, code and SQL while both processes run, as an upgrade does.
        (checkout / pipeline.LOCKFILE).write_text("pinned==2\n")
        (checkout / "kfm_dagster" / "later.py").write_text('"""New."""\n')
        (checkout / "sql" / "queries" / "ledger.sql").write_text("-- name: replay_reasons\nSELECT 2\n")
        (checkout / "sql" / "schema" / f"{len(migrations('postgresql')) + 1:04}_later.sql").write_text("SELECT 3;\n")
        workspace = deployment.dagster_home / "workspace.yaml"
        command = [str(Path(sys.executable).parent / "dagster"), "job", "launch", "-w", str(workspace), "-j", "job"]
        subprocess.run(command, env=deployment._environment, check=True, capture_output=True)
        [began] = noted(location / "began")
        run, *values = json.loads(began)
        importers = (location / "imports").read_text().splitlines()
        assert len(importers) == 2
        assert str(run) not in {*importers, *map(str, deployment.pids())}
        assert str(deployment.pids()[0]) in importers
        deployment.kill("code-server")
        (location / "code-server-is-gone").touch()
        assert noted(location / "ended") == [str(run)]
    numbers = [migration.number for migration in migrations("postgresql")]
    # Objects loaded before the fork are frozen, so the run's garbage collector ignores them.
    assert values == [code.canonical(), replay_reasons, numbers, [True, THRESHOLDS[0]], True]


@pytest.mark.parametrize("wrong", ["a setting", "no lockfile"])
def test_an_error_in_settings_or_lockfile_is_raised_by_the_run(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    if wrong == "a setting":
        monkeypatch.setenv("KFM_LIVE_SHARE", "a lot")
    else:
        monkeypatch.setattr(pipeline, "LOCKFILE", "absent.lock")
    runpy.run_module(CODE_VERSION)
    with pytest.raises(ConfigurationError):
        pipeline.installed_code(Settings.load())


def test_failing_definitions_do_not_end_the_forking_process() -> None:
    code = "import kfm_dagster.definitions as code\ncode.defs = lambda: 1 / 0\nimport kfm_dagster.fork_template"
    printed_by(sys.executable, "-c", code)


def test_a_run_s_process_survives_the_process_that_forked_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    process = RunContext().Process(target=Path.read_bytes, args=(tmp_path / "fifo",))
    process.start()
    # Both ends of the pipe are open, so the process runs.
    with (tmp_path / "fifo").open("wb"):
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == UNKNOWN_EXIT
        assert process.is_alive()
    # The process ends at the end of the pipe.
    while process.is_alive():
        time.sleep(0.01)
    assert not is_running(process.pid or 0)


STARTED = dg.DagsterRunStatus.STARTED


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as opened:
        yield opened


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def begun(
    instance: dg.DagsterInstance, *pids: int, host: str | None = "127.0.0.1", status: dg.DagsterRunStatus = STARTED
) -> dg.DagsterRun:
    """Create a run of a day with the events of its processes."""
    server = {SERVER_TAG: json.dumps({"host": host, "port": 1})} if host else {}
    tags = {"dagster/partition": "2025-12-03", **server}
    job = dg.GraphDefinition(name="nothing").to_job()
    run = instance.create_run_for_job(job, tags=tags, status=status)
    instance.report_engine_event("no process yet", run)
    for pid in pids:
        instance.report_engine_event("Started process for run", run, EngineEventData.in_process(pid))
    return run


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    return instance.get_run_by_id(run.run_id).status


@pytest.mark.clause("DAG-10")
def test_a_run_without_a_process_fails_and_is_not_active(
    instance: dg.DagsterInstance, child: subprocess.Popen[bytes]
) -> None:
    run = begun(instance, child.pid)
    assert active_runs(instance, begun=set).active.total() == 1
    child.kill()
    child.wait()
    assert active_runs(instance, begun=set).active.total() == 0
    assert status_of(instance, run) is dg.DagsterRunStatus.FAILURE
    assert f"the run's process {child.pid} is gone" in [entry.message for entry in instance.all_logs(run.run_id)]


def test_runs_that_possibly_have_a_process_are_not_changed(
    instance: dg.DagsterInstance, child: subprocess.Popen[bytes]
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    runs = {
        "another machine": begun(instance, dead.pid, host="code.example"),
        "no code server": begun(instance, dead.pid, host=None),
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


def test_a_zombie_process_is_not_running(child: subprocess.Popen[bytes]) -> None:
    assert is_running(child.pid)
    child.kill()
    # Until it is waited for, the ended process is a zombie.
    while is_running(child.pid):
        pass
    assert child.poll() is not None


ROOTS = ["11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"]
RUNS = [f"22222222-0000-4000-8000-00000000000{number}" for number in (1, 2, 3)]


def filled(home: Path) -> None:
    """Add two runs and three re-executions; the last has ended."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for root in ROOTS:
            instance.add_run(dg.DagsterRun(job_name="ingest", run_id=root))
        for run_id, root in zip(RUNS, [ROOTS[0], ROOTS[1], ROOTS[0]], strict=True):
            tags = {"dagster/root_run_id": root, "dagster/parent_run_id": root}
            run = dg.DagsterRun(job_name="ingest", run_id=run_id, root_run_id=root, parent_run_id=root, tags=tags)
            instance.add_run(run)
        instance.report_run_canceling(run)
        instance.report_run_canceled(run)


@pytest.fixture(params=["sqlite", "postgresql"])
def home(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a DAGSTER_HOME with the environment's dagster.yaml only."""
    if request.param == "postgresql":
        monkeypatch.setenv("KFM_DAGSTER_DSN", request.getfixturevalue("empty_postgres_url"))
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(dagster_yaml_for(os.environ, folder))
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


def test_reexecutions_are_read_from_dagster_s_storage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(home)
    filled(home)
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setattr(reexecutions, "ROOTS_ASKED", 1)
    stored = InstanceReexecutions(home)
    first, begun = stored.of(ROOTS[0])
    assert (first.run_id, first.root_run_id, first.started_at, first.ended_at) == (RUNS[0], ROOTS[0], None, None)
    assert (begun.run_id, begun.root_run_id) == (RUNS[2], ROOTS[0])
    assert abs((datetime.now(UTC) - begun.ended_at).total_seconds()) < 600
    assert [run.run_id for run in stored.beginning(RUNS[0][:8], limit=2)] == RUNS[:2]
    assert list(stored.beginning(RUNS[2], limit=5)) == [begun]
    assert list(stored.beginning("33333333", limit=5)) == []
    assert list(stored.beginning(ROOTS[0], limit=5)) == []
    assert list(stored.of(RUNS[0])) == []


def test_reading_an_empty_dagster_home_creates_nothing(home: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert list(InstanceReexecutions(home).of(ROOTS[0])) == []
    assert sorted(tmp_path.rglob("*")) == before
    if url := os.environ.get("KFM_DAGSTER_DSN"):
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        assert sa.inspect(engine).get_table_names() == []


def test_runs_that_cannot_be_read_are_an_error(home: Path) -> None:
    prepare(home)
    filled(home)
    url = os.environ.get("KFM_DAGSTER_DSN") or f"sqlite:///{home}/history/runs.db"
    execute(url, "ALTER TABLE run_tags RENAME COLUMN value TO worth")
    stored = InstanceReexecutions(home)
    for query in (lambda: stored.of(ROOTS[0]), lambda: stored.beginning(RUNS[0][:8], limit=5)):
        with pytest.raises(DatabaseUnavailableError, match=r"Dagster's runs cannot be read; observed .*value"):
            query()


def test_without_a_configured_storage_there_are_no_runs_and_nothing_is_created(tmp_path: Path) -> None:
    for config in (None, "", "a: [", "storage: 7", "storage: {postgres: {postgres_url: {env: NOT_SET}}}"):
        if config is not None:
            (tmp_path / "dagster.yaml").write_text(config)
        before = sorted(tmp_path.rglob("*"))
        assert list(InstanceReexecutions(tmp_path).of(ROOTS[0])) == []
        assert sorted(tmp_path.rglob("*")) == before


def test_a_storage_that_does_not_answer_gives_no_runs_and_no_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_DAGSTER_DSN", "postgresql+psycopg2://kfm@127.0.0.1:1/dagster")
    (tmp_path / "dagster.yaml").write_text(dagster_yaml_for(os.environ, tmp_path))
    assert list(InstanceReexecutions(tmp_path).of(ROOTS[0])) == []
    assert capfd.readouterr() == ("", "")


PRINTED = "two messages were received"
BUCKET = "compute-logs"


@dg.op
def print_text() -> None:
    sys.stdout.write(PRINTED)


@dg.job
def printing() -> None:
    print_text()


@contextmanager
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Open an instance with the dagster.yaml of `kfm init`."""
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster_yaml_for(os.environ, home))
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def ran(instance: dg.DagsterInstance) -> list[str]:
    """Run the job and return the key of its step's output."""
    done = printing.execute_in_process(instance=instance)
    assert done.success
    [captured] = [event for event in done.all_events if event.event_type is dg.DagsterEventType.LOGS_CAPTURED]
    return [done.run_id, "compute_logs", captured.event_specific_data.file_key]


def printed(instance: dg.DagsterInstance, key: list[str]) -> str:
    return (instance.compute_log_manager.get_log_data(key).stdout or b"").decode()


@pytest.fixture(scope="module")
def cloud(cloud: EmbeddedCloud) -> EmbeddedCloud:
    cloud.client("s3").create_bucket(Bucket=BUCKET)
    return cloud


def log_to(bucket: str, cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in cloud.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("KFM_COMPUTE_LOGS_URL", f"s3://{bucket}/deployment/one")


@pytest.mark.clause("DAG-09", "DAG-15")
def test_the_output_of_a_step_is_readable_on_another_machine(
    tmp_path: Path, cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_to(BUCKET, cloud, monkeypatch)
    with machine(tmp_path / "worker", monkeypatch) as worker:
        key = ran(worker)
        assert isinstance(worker.compute_log_manager, S3ComputeLogManager)
        assert not [file for file in (tmp_path / "worker").rglob("*.out") if PRINTED in file.read_text()]
    [log_key] = [
        entry["Key"]
        for entry in cloud.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]
        if entry["Key"].endswith(".out")
    ]
    assert log_key == f"deployment/one/storage/{'/'.join(key)}.out"
    with machine(tmp_path / "web", monkeypatch) as web:
        assert PRINTED in printed(web, key)


@pytest.mark.clause("DAG-09")
def test_a_missing_log_bucket_does_not_fail_the_step_and_its_log_stays_local(
    tmp_path: Path, cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_to("gone", cloud, monkeypatch)
    with machine(tmp_path / "worker", monkeypatch) as worker:
        assert PRINTED in printed(worker, ran(worker))


def test_the_code_server_allows_long_ticks_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    short: list[bool] = []

    def serve(*_: object, **__: object) -> None:
        short.append(SHORT.is_set())
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            short.append(SHORT.is_set())

    monkeypatch.setattr(code_server, "forkserver", Mock())
    monkeypatch.setattr(code_server, "collect_rarely", Mock())
    monkeypatch.setattr(code_server.api.api_cli, "main", serve)
    # The command replaces the class in Dagster's module.
    monkeypatch.setattr(code_server.server, "DagsterApiServer", code_server.server.DagsterApiServer)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            code_server.main.callback(module="m", host="127.0.0.1", port=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert short == [False, True]
