"""deploy/ecs: AWS takes the task, Dagster the instance, and what both name is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import pytest
import yaml
from botocore.validate import ParamValidator
from dagster_aws.ecs import EcsRunLauncher

from kfm_dagster.settings import environment
from kfm_dagster_tests.deployment.commands import loaded, parsed

ROOT = Path(__file__).resolve().parents[2]
ECS = ROOT / "deploy" / "ecs"
TASK = yaml.safe_load((ECS / "task-definition.yaml").read_text(encoding="utf-8"))
CONTAINERS: dict[str, dict[str, Any]] = {container["name"]: container for container in TASK["containerDefinitions"]}
SECRETS = {
    "KFM_WAL_DSN": "postgresql://kfm@db/kfm",
    "KFM_RETENTION_DSN": "postgresql://kfm_retention@db/kfm",
    "KFM_DAGSTER_DSN": "postgresql+psycopg2://kfm@db/dagster",
}


def test_the_task_is_one_as_the_api_of_ecs_describes_it() -> None:
    model = boto3.client("ecs", region_name="us-east-1").meta.service_model
    report = ParamValidator().validate(TASK, model.operation_model("RegisterTaskDefinition").input_shape)
    assert report.generate_report() == ""
    for name, container in CONTAINERS.items():
        assert {one["containerName"] for one in container.get("dependsOn", [])} <= set(CONTAINERS), name


def variables(container: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in CONTAINERS[container]["environment"]}


@pytest.mark.clause("DAG-09")
def test_every_command_is_one_and_every_variable_a_setting() -> None:
    for name, container in CONTAINERS.items():
        secrets = {one["name"] for one in container["secrets"]}
        settings = loaded({**variables(name), **{one: SECRETS[one] for one in secrets}})
        assert settings.env == "prod"
        assert all(place.startswith("s3://") for place in (settings.catalog, settings.storage, settings.lineage))
        assert settings.dagster_dsn
        called = parsed(container["command"])
        served = parsed(CONTAINERS["code"]["command"])
        if "grpc_port" in called:
            assert (called["grpc_host"], called["grpc_port"]) == (served["host"], served["port"])
        if "healthCheck" in container:
            assert parsed(container["healthCheck"]["command"][1:])["port"] == served["port"]
        # Runs have what the daemon's container has, and the image that the code location names.
        assert container["environment"] == CONTAINERS["daemon"]["environment"]
        assert container["image"] == variables(name)["DAGSTER_CURRENT_IMAGE"]


@pytest.mark.clause("SEC-15")
def test_init_alone_is_given_the_owners_dsn_and_makes_the_roles_of_the_others() -> None:
    of = {name: {one["name"]: one["valueFrom"] for one in found["secrets"]} for name, found in CONTAINERS.items()}
    assert {name for name, secrets in of.items() if "/kfm/owner-dsn" in secrets.values()} == {"init"}
    assert all(secrets["KFM_RETENTION_DSN"] != secrets["KFM_WAL_DSN"] for name, secrets in of.items() if name != "init")
    options = parsed(CONTAINERS["init"]["command"])
    assert (options["role"], options["retention_role"]) == ("kfm_deployment", "kfm_retention")
    [hosts] = {one["value"] for one in CONTAINERS["console"]["environment"] if one["name"] == "KFM_ALLOWED_HOSTS"}
    assert hosts


@pytest.mark.clause("DAG-09", "DAG-15")
def test_the_instance_is_that_of_one_machine_with_the_launcher_of_ecs(tmp_path: Path) -> None:
    text = (ECS / "dagster.yaml").read_text(encoding="utf-8")
    ours, every = yaml.safe_load(text), yaml.safe_load((ROOT / "deploy" / "dagster.yaml").read_text(encoding="utf-8"))
    logs = {"module": "dagster_aws.s3.compute_log_manager", "class": "S3ComputeLogManager"}
    config = ours["compute_logs"].pop("config")
    assert ours == {**every, "run_launcher": ours["run_launcher"], "compute_logs": logs}
    assert f"s3://{config['bucket']}" == loaded(variables("daemon")).compute_logs_url
    assert config["local_dir"] == "/var/lib/kfm/dagster/storage"
    (tmp_path / "dagster.yaml").write_text(text)
    region = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    with (
        environment({**region, **SECRETS, "DAGSTER_HOME": str(tmp_path)}),
        dg.DagsterInstance.from_config(str(tmp_path)) as instance,
    ):
        launcher = instance.run_launcher
        assert isinstance(launcher, EcsRunLauncher)
        assert launcher.use_current_ecs_task_config
        assert launcher.supports_check_run_worker_health
        assert launcher.run_resources == {"cpu": "1024", "memory": "4096"}
