"""deploy/helm: values, Kubernetes objects, Dagster's instance and the Job are valid.

The chart and its values.schema.json are not in this repository: `helm_values.yaml` beside this file lists the keys
that we use with their types. `helm install --dry-run` validates our file by the chart's schemas and tests the rendered
templates, on a machine with Helm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher import LaunchRunContext
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from sqlalchemy.engine import make_url

from kfm_dagster_tests.deployment.commands import loaded, parsed

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / "deploy" / "helm"
VALUES = yaml.safe_load((HELM / "values.yaml").read_text(encoding="utf-8"))
OBJECTS = yaml.safe_load((HELM / "kfm.yaml").read_text(encoding="utf-8"))["items"]
KNOWN: dict[str, str] = yaml.safe_load((Path(__file__).with_name("helm_values.yaml")).read_text(encoding="utf-8"))
[CODE] = VALUES["dagster-user-deployments"]["deployments"]
[SETTINGS] = [document["data"] for document in OBJECTS if document["kind"] == "ConfigMap"]
PODS = {
    document["metadata"]["name"]: document["spec"]["template"]["spec"]
    for document in OBJECTS
    if "template" in document.get("spec", {})
}
SCALARS = {"string": str, "boolean": bool, "integer": int}
SECRETS = {
    "KFM_WAL_DSN": "postgresql://kfm@db/kfm",
    "KFM_DAGSTER_DSN": "postgresql+psycopg2://kfm_deployment@db/dagster",
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key path of the chart with our value."""
    if path in KNOWN:
        yield path, value
    elif isinstance(value, dict) and value:
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path, value


def kubernetes_object(kind: str, value: Mapping[str, Any]) -> Any:
    """Return an object of Kubernetes' client. Raises an error for an unknown or missing key."""
    import kubernetes.client as k8s
    from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict

    model = getattr(k8s, kind)
    return k8s_model_from_dict(model, k8s_snake_case_dict(model, value))


def refusal(takes: str, value: Any) -> str:
    """Return the reason why the chart refuses a value, or an empty text."""
    if takes in SCALARS:
        return "" if type(value) is SCALARS[takes] else f"no {takes}"
    if "|" in takes:
        return "" if value in takes.split(" | ") else f"none of {takes}"
    if item := re.fullmatch(r"list\[(\w+)\]", takes):
        return "; ".join(filter(None, (refusal(item[1], member) for member in value)))
    if takes != "any":
        kubernetes_object(
            takes.removesuffix(" with enabled"), {key: member for key, member in value.items() if key != "enabled"}
        )
    return ""


@pytest.mark.clause("DAG-09")
def test_every_value_is_valid_for_the_chart() -> None:
    refusals = [(path, refusal(KNOWN.get(path, "none of the chart's"), value)) for path, value in leaves(VALUES)]
    assert [refused_value for refused_value in refusals if refused_value[1]] == []
    # Listed keys that we do not use would be untested.
    assert {path for path, _ in refusals} == set(KNOWN)


def test_every_object_is_valid_for_kubernetes() -> None:
    for document in OBJECTS:
        assert kubernetes_object(f"V1{document['kind']}", document).metadata.name == document["metadata"]["name"]


def instance() -> dict[str, Any]:
    """Return the dagster.yaml of the chart's configmap-instance.yaml, without the storage."""
    values = deepcopy(VALUES)
    daemon, run = values["dagsterDaemon"], values["runLauncher"]["config"]["k8sRunLauncher"]
    queued = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    names = {key: [reference["name"] for reference in run[key]] for key in ("envConfigMaps", "envSecrets")}
    launched = {
        **{key: run[key] for key in ("imagePullPolicy", "loadInclusterConfig", "volumes", "volumeMounts")},
        **{key: run[key] for key in ("securityContext", "resources")},
        "runK8sConfig": {snake(key): setting for key, setting in run["runK8sConfig"].items()},
        **names,
        "jobNamespace": "kfm",
        "serviceAccountName": values["global"]["serviceAccountName"],
        "dagsterHome": values["global"]["dagsterHome"],
        "instanceConfigMap": "dagster-instance",
        "postgresPasswordSecret": values["global"]["postgresqlSecretName"],
    }
    return {
        "run_launcher": {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": snaked(launched)},
        "run_coordinator": {
            "module": "dagster.core.run_coordinator",
            "class": daemon["runCoordinator"]["type"],
            "config": snaked(queued),
        },
        "concurrency": {key: snaked(values["concurrency"][key]) for key in ("pools", "runs")},
        "compute_logs": snaked(values["computeLogManager"]["config"]["s3ComputeLogManager"]),
        "run_monitoring": snaked(daemon["runMonitoring"]),
        **({"run_retries": snaked(daemon["runRetries"])} if daemon["runRetries"]["enabled"] else {}),
        "sensors": snaked(daemon["sensors"]),
        **({"schedules": snaked(daemon["schedules"])} if daemon["schedules"]["useThreads"] else {}),
        "retention": {key: snaked(values["retention"][key]) for key in ("sensor", "schedule")},
        "telemetry": values["telemetry"],
        **values["additionalInstanceConfig"],
    }


def snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda capital: f"_{capital[1].lower()}", key)


def snaked(values: Mapping[str, Any]) -> dict[str, Any]:
    return {snake(key): value for key, value in values.items()}


@pytest.mark.clause("DAG-09")
def test_dagster_yaml_equals_that_of_one_machine_except_for_the_kubernetes_launcher() -> None:
    ours, every = instance(), yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    # -1 keeps everything, as the missing key does in the file of one machine.
    assert [rule["purge_after_days"].pop("started") for rule in ours["retention"].values()] == [-1, -1]
    # 0 is the default, which applies in the file of one machine.
    assert ours["run_monitoring"].pop("max_resume_run_attempts") == 0
    logs = ours.pop("compute_logs")
    assert f"s3://{logs['bucket']}" == SETTINGS["KFM_COMPUTE_LOGS_URL"]
    assert f"{VALUES['global']['dagsterHome']}/storage" == logs["local_dir"]
    ours.pop("run_launcher")
    assert ours == every


@pytest.mark.clause("DAG-09")
def test_a_run_is_a_job_without_rights_in_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kubernetes.client as k8s
    from dagster_k8s import K8sRunLauncher, launcher

    monkeypatch.setattr(launcher, "load_kubernetes_config", lambda **_: None)  # there is no cluster
    jobs: list[Any] = []
    monkeypatch.setattr(
        k8s.BatchV1Api, "create_namespaced_job", lambda _, *, body, namespace, **__: jobs.append((namespace, body))
    )
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"run_launcher": instance()["run_launcher"]}))

    @dg.job
    def ingest() -> None:
        pass

    image = f"{CODE['image']['repository']}:{CODE['image']['tag']}"
    pointer = ModuleCodePointer("kfm_dagster.definitions", "defs")
    repository = RepositoryPythonOrigin("python", pointer, container_image=image, entry_point=["dagster"])
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(tmp_path))) as opened:
        assert isinstance(opened.run_launcher, K8sRunLauncher)
        run = opened.create_run_for_job(ingest, job_code_origin=JobPythonOrigin("ingest", repository))
        opened.run_launcher.launch_run(LaunchRunContext(run, workspace=None))

    [(namespace, job)] = jobs
    pod = job.spec.template.spec
    [container] = pod.containers
    assert (namespace, container.image, job.spec.ttl_seconds_after_finished) == ("kfm", image, 3600)
    assert container.args[:3] == ["dagster", "api", "execute_run"]
    assert (pod.service_account_name, pod.automount_service_account_token) == ("kfm", False)
    assert pod.security_context.fs_group == container.security_context.run_as_user
    assert container.security_context.read_only_root_filesystem
    assert {mount.mount_path for mount in container.volume_mounts} == {
        mount["mountPath"] for mount in CODE["volumeMounts"]
    }
    assert {volume.name for volume in pod.volumes} == {mount.name for mount in container.volume_mounts}
    sources = [source.config_map_ref or source.secret_ref for source in container.env_from]
    assert [source.name for source in sources] == ["kfm-settings", "kfm-secrets"]
    assert (container.resources.requests["cpu"], container.resources.limits["memory"]) == ("1", "4Gi")
    secret = {variable.name: variable.value_from.secret_key_ref for variable in container.env if variable.value_from}[
        "DAGSTER_PG_PASSWORD"
    ]
    assert (secret.name, secret.key) == ("kfm-postgresql", "postgresql-password")


@pytest.mark.clause("SEC-15")
def test_only_init_has_the_owners_secret_and_init_creates_the_other_roles() -> None:
    secrets = {
        name: [source["secretRef"]["name"] for source in pod["containers"][0]["envFrom"] if "secretRef" in source]
        for name, pod in PODS.items()
    }
    # The last of two values of a variable counts.
    assert secrets.pop("kfm-init") == ["kfm-secrets", "kfm-owner"]
    assert set(map(tuple, secrets.values())) == {("kfm-secrets",)}
    options = parsed(PODS["kfm-init"]["containers"][0]["args"])
    assert (options["role"], options["retention_role"]) == ("kfm_deployment", "kfm_retention")
    assert VALUES["postgresql"]["postgresqlUsername"] == options["role"]
    assert SETTINGS["KFM_ALLOWED_HOSTS"]


@pytest.mark.clause("DAG-09")
def test_dagster_uses_the_database_in_which_kfm_init_creates_its_tables() -> None:
    configured, ours = VALUES["postgresql"], make_url(SECRETS["KFM_DAGSTER_DSN"])
    assert (configured["postgresqlScheme"], configured["postgresqlUsername"]) == (ours.drivername, ours.username)
    assert configured["postgresqlDatabase"] == ours.database
    assert configured["postgresqlParams"] == {"sslmode": "require", "plugin": "kfm_keep"}


@pytest.mark.clause("DAG-09")
def test_every_command_parses_and_every_variable_is_a_setting() -> None:
    for name in PODS:
        settings = loaded({**SETTINGS, **SECRETS})
        assert settings.env == "prod"
        assert all(place.startswith("s3://") for place in (settings.catalog, settings.storage, settings.lineage))
        [container] = PODS[name]["containers"]
        options = parsed(container["args"])
        if "ports" in container:
            assert (options["host"], options["port"]) == ("0.0.0.0", container["ports"][0]["containerPort"])
        assert container["image"] == f"{CODE['image']['repository']}:{CODE['image']['tag']}"


def test_the_code_server_accepts_its_options() -> None:
    # The chart starts the server with this command (deployment-user.yaml).
    served = ["dagster", "api", "grpc", "-h", "0.0.0.0", "-p", str(CODE["port"]), *CODE["dagsterApiGrpcArgs"]]
    assert parsed(served)["module_name"] == "kfm_dagster.definitions"
    web = VALUES["dagsterWebserver"]
    assert web["readinessProbe"]["httpGet"]["port"] == web["service"]["port"]


def test_every_pod_is_unprivileged_and_writes_only_to_ephemeral_volumes() -> None:
    ours = [(pod["securityContext"], pod["containers"][0], pod["volumes"]) for pod in PODS.values()]
    charts = (CODE, VALUES["dagsterWebserver"], VALUES["dagsterDaemon"])
    ours += [(chart["podSecurityContext"], chart, chart["volumes"]) for chart in charts]
    for pod, container, volumes in ours:
        assert pod["fsGroup"] == container["securityContext"]["runAsUser"] == 10001
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["volumeMounts"] == CODE["volumeMounts"]
        assert volumes == CODE["volumes"]
        assert all(volume["emptyDir"] == {} for volume in volumes)
    # Only the account to which the chart binds its role may start Jobs.
    assert {pod["serviceAccountName"] for pod in PODS.values()} == {"kfm"}
    assert all(pod["automountServiceAccountToken"] is False for pod in PODS.values())
