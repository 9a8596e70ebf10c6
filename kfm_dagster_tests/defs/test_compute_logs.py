"""Where what a step prints is kept: in a bucket that every machine reads, or in files; and a bucket that is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
from dagster_aws.s3 import S3ComputeLogManager

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.deployment.local import dagster_yaml_for

SAID = "two messages were taken in"
BUCKET = "compute-logs"


@dg.op
def says_something() -> None:
    sys.stdout.write(SAID)


@dg.job
def speaking() -> None:
    says_something()


@contextmanager
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance with the dagster.yaml that `kfm init` writes."""
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster_yaml_for(os.environ, home))
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def ran(instance: dg.DagsterInstance) -> list[str]:
    """Run the job; return the key of what its step printed."""
    done = speaking.execute_in_process(instance=instance)
    assert done.success
    [captured] = [event for event in done.all_events if event.event_type is dg.DagsterEventType.LOGS_CAPTURED]
    return [done.run_id, "compute_logs", captured.event_specific_data.file_key]


def printed(instance: dg.DagsterInstance, key: list[str]) -> str:
    return (instance.compute_log_manager.get_log_data(key).stdout or b"").decode()


@pytest.fixture(scope="module")
def cloud(cloud: EmbeddedCloud) -> EmbeddedCloud:
    cloud.client("s3").create_bucket(Bucket=BUCKET)
    return cloud


def name(bucket: str, cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in cloud.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("KFM_COMPUTE_LOGS_URL", f"s3://{bucket}/deployment/one")


@pytest.mark.clause("DAG-09", "DAG-15")
def test_what_a_step_prints_is_read_on_another_machine(
    tmp_path: Path, cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    name(BUCKET, cloud, monkeypatch)
    with machine(tmp_path / "worker", monkeypatch) as worker:
        key = ran(worker)
        assert isinstance(worker.compute_log_manager, S3ComputeLogManager)
        assert not [file for file in (tmp_path / "worker").rglob("*.out") if SAID in file.read_text()]
    [kept] = [
        entry["Key"]
        for entry in cloud.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]
        if entry["Key"].endswith(".out")
    ]
    assert kept == f"deployment/one/storage/{'/'.join(key)}.out"
    with machine(tmp_path / "web", monkeypatch) as web:
        assert SAID in printed(web, key)


@pytest.mark.clause("DAG-09")
def test_a_bucket_that_takes_no_log_costs_no_step_and_the_log_stays(
    tmp_path: Path, cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    name("gone", cloud, monkeypatch)
    with machine(tmp_path / "worker", monkeypatch) as worker:
        assert SAID in printed(worker, ran(worker))


@pytest.mark.clause("DAG-09")
def test_without_a_bucket_they_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KFM_COMPUTE_LOGS_URL", raising=False)
    with machine(tmp_path / "home", monkeypatch) as alone:
        assert SAID in printed(alone, ran(alone))
    assert [file for file in (tmp_path / "home" / "storage").rglob("*.out") if SAID in file.read_text()]
