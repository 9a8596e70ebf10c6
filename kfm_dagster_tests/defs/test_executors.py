"""Who does the steps of runs: the run itself, or the workers of the broker that is named."""

from __future__ import annotations

import subprocess
import sys

import dagster as dg
import pytest

from kfm_dagster.definitions import build_definitions
from kfm_dagster.defs.celery_worker import worker_app
from kfm_dagster.defs.executors import BROKER, LEASES_UNTIL_REDELIVERY, step_executor
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.settings import Settings

ADDRESS = "redis://:s3cr3t-word@broker.example:6379/0"


def test_a_run_does_its_own_steps_unless_a_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_executor(Settings.load()) is dg.in_process_executor
    monkeypatch.setenv(BROKER, ADDRESS)
    jobs = build_definitions(Settings.load()).get_repository_def().get_all_jobs()
    assert {job.executor_def.name for job in jobs} == {"celery"}


@pytest.mark.clause("DAG-09")
def test_executor_and_workers_agree_and_the_executor_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER, ADDRESS)
    monkeypatch.setenv("KFM_LEASE_SECONDS", "100")
    settings = Settings.load()
    chosen = step_executor(settings).apply_config_mapping({"config": {}}).value["config"]
    ours = worker_app(settings).conf
    assert chosen["broker"] == chosen["backend"] == ours.broker_url == ours.result_backend == ADDRESS
    agreed = chosen["config_source"]
    assert agreed == {name: ours[name] for name in agreed}
    assert agreed["task_acks_late"] is agreed["task_reject_on_worker_lost"] is True
    assert agreed["broker_transport_options"] == {"visibility_timeout": LEASES_UNTIL_REDELIVERY * 100}
    assert "s3cr3t" not in repr(settings)


def test_a_worker_without_a_broker_is_one_line() -> None:
    command = [sys.executable, "-m", "kfm_dagster.defs.celery_worker"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.splitlines() == [
        f"there is no broker to take steps from; observed {BROKER} is not set; next: export {BROKER}=..."
    ]


def test_a_broker_without_the_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER, ADDRESS)
    for module in ("dagster_celery", "dagster_celery.executor"):
        monkeypatch.setitem(sys.modules, module, None)
    for chosen in (step_executor, worker_app):
        with pytest.raises(ConfigurationError, match=r"dagster-celery is not installed; next: pip install"):
            chosen(Settings.load())
