"""deploy/helm: the chart knows the values, Kubernetes the objects, Dagster the instance and the Job of a run.

Neither the chart nor its values.schema.json is here: `helm_values.yaml` beside this file has what was read of them, for
the keys that we use. One test asks the schemas of a chart themselves whether they take the file as a whole, where
KFM_DAGSTER_CHART names the folder of an unpacked one. What the templates make of the values is not shown here;
`helm install --dry-run` does that, on a machine with Helm.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema_rs
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
[SETTINGS] = [one["data"] for one in OBJECTS if one["kind"] == "ConfigMap"]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in OBJECTS if "template" in one.get("spec", {})
}
SCALARS = {"string": str, "boolean": bool, "integer": int}
SECRETS = {
    "KFM_WAL_DSN": "postgresql://kfm@db/kfm",
    "KFM_DAGSTER_DSN": "postgresql+psycopg2://kfm_deployment@db/dagster",
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key path that the chart knows, and what we have there."""
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


def made(kind: str, value: Mapping[str, Any]) -> Any:
    """An object of Kubernetes' client. Raises an error for a key that its class lacks, or has to have."""
    import kubernetes.client as k8s
    from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict

    model = getattr(k8s, kind)
    return k8s_model_from_dict(model, k8s_snake_case_dict(model, value))


def refusal(takes: str, value: Any) -> str:
    """Why the chart does not take a value; nothing where it does."""
    if takes in SCALARS:
        return "" if type(value) is SCALARS[takes] else f"no {takes}"
    if "|" in takes:
        return "" if value in takes.split(" | ") else f"none of {takes}"
    if item := re.fullmatch(r"list\[(\w+)\]", takes):
        return "; ".join(filter(None, (refusal(item[1], one) for one in value)))
    if takes != "any":
        made(takes.removesuffix(" with enabled"), {key: one for key, one in value.items() if key != "enabled"})
    return ""


@pytest.mark.clause("DAG-09")
def test_the_chart_knows_every_value() -> None:
    found = [(path, refusal(KNOWN.get(path, "none of the chart's"), value)) for path, value in leaves(VALUES)]
    assert [one for one in found if one[1]] == []
    # What is written down and not used is not held by anything.
    assert {path for path, _ in found} == set(KNOWN)


def overlaid(chart: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """A chart's values with ours over them, as Helm shows them to the schema: it requires keys that ours leave out."""
    values = {**chart, **ours}
    for key in chart.keys() & ours.keys():
        if isinstance(chart[key], Mapping) and isinstance(ours[key], Mapping):
            values[key] = overlaid(chart[key], ours[key])
    return values


def local(schema: Any) -> Any:
    """A schema without its references to an outside host: to definitions of Kubernetes, which `made` has checked."""
    if isinstance(schema, list):
        return [local(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: local(one) for key, one in schema.items() if key != "$ref" or one.startswith("#")}


def refused(chart: Path, ours: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Path and message of all that is wrong with our values for a chart, and for the subchart of it that we enable."""
    name = "dagster-user-deployments"
    schema, values = schema_and_values(chart, ours)
    # Helm gives a subchart what is under its name, and `global`.
    sub, given = schema_and_values(chart / "charts" / name, {**values[name], "global": values["global"]})
    # The schema takes a key of the top that it does not know, and the templates of such a chart pass it over.
    found = [(key, "no property of the schema") for key in ours if key not in schema["properties"]]
    for of, by, what in (("", schema, values), (f"{name}: ", sub, given)):
        errors = jsonschema_rs.validator_for(by, offline=True).iter_errors(what)
        found += [(of + "/".join(map(str, error.instance_path)), error.message) for error in errors]
    return found


def schema_and_values(chart: Path, ours: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    schema = local(json.loads((chart / "values.schema.json").read_text(encoding="utf-8")))
    return schema, overlaid(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")), ours)


@pytest.mark.clause("DAG-09")
def test_the_schemas_of_an_unpacked_chart_take_the_values() -> None:
    if not (named := os.environ.get("KFM_DAGSTER_CHART")):
        pytest.skip("KFM_DAGSTER_CHART names no folder that `helm pull dagster/dagster --version 1.13.27 --untar` made")
    assert refused(Path(named), VALUES) == []
    # They refuse, too: keys that the chart has not, and another type.
    wrong = {**deepcopy(VALUES), "concurrencies": {}}
    wrong["dagsterWebserver"]["replicas"] = 1
    wrong["dagster-user-deployments"]["deployments"][0]["port"] = "4000"
    assert {path for path, _ in refused(Path(named), wrong)} == {
        "concurrencies",
        "dagsterWebserver",
        "dagster-user-deployments/deployments/0/port",
        "dagster-user-deployments: deployments/0/port",
    }


def test_kubernetes_knows_every_object() -> None:
    for one in OBJECTS:
        assert made(f"V1{one['kind']}", one).metadata.name == one["metadata"]["name"]


def instance() -> dict[str, Any]:
    """The dagster.yaml that the chart's template (configmap-instance.yaml) makes, but for Dagster's own storage."""
    values = deepcopy(VALUES)
    daemon, run = values["dagsterDaemon"], values["runLauncher"]["config"]["k8sRunLauncher"]
    queued = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    names = {key: [one["name"] for one in run[key]] for key in ("envConfigMaps", "envSecrets")}
    launched = {
        **{key: run[key] for key in ("imagePullPolicy", "loadInclusterConfig", "volumes", "volumeMounts")},
        **{key: run[key] for key in ("securityContext", "resources")},
        "runK8sConfig": {snake(key): one for key, one in run["runK8sConfig"].items()},
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
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", key)


def snaked(values: Mapping[str, Any]) -> dict[str, Any]:
    return {snake(key): value for key, value in values.items()}


@pytest.mark.clause("DAG-09")
def test_the_instance_is_that_of_one_machine_with_the_launcher_of_kubernetes() -> None:
    ours, every = instance(), yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    # -1 keeps: what one machine's file says by leaving it out.
    assert [one["purge_after_days"].pop("started") for one in ours["retention"].values()] == [-1, -1]
    # 0, which the file of one machine has by default.
    assert ours["run_monitoring"].pop("max_resume_run_attempts") == 0
    logs = ours.pop("compute_logs")
    assert f"s3://{logs['bucket']}" == SETTINGS["KFM_COMPUTE_LOGS_URL"]
    assert f"{VALUES['global']['dagsterHome']}/storage" == logs["local_dir"]
    ours.pop("run_launcher")
    assert ours == every


@pytest.mark.clause("DAG-09")
def test_a_run_is_a_job_without_a_right_in_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    given = [one.config_map_ref or one.secret_ref for one in container.env_from]
    assert [one.name for one in given] == ["kfm-settings", "kfm-secrets"]
    assert (container.resources.requests["cpu"], container.resources.limits["memory"]) == ("1", "4Gi")
    secret = {one.name: one.value_from.secret_key_ref for one in container.env if one.value_from}["DAGSTER_PG_PASSWORD"]
    assert (secret.name, secret.key) == ("kfm-postgresql", "postgresql-password")


@pytest.mark.clause("SEC-15")
def test_init_alone_is_given_the_owners_secret_and_makes_the_roles_of_the_others() -> None:
    secrets = {
        name: [one["secretRef"]["name"] for one in pod["containers"][0]["envFrom"] if "secretRef" in one]
        for name, pod in PODS.items()
    }
    # Of two values of a variable the last one counts.
    assert secrets.pop("kfm-init") == ["kfm-secrets", "kfm-owner"]
    assert set(map(tuple, secrets.values())) == {("kfm-secrets",)}
    options = parsed(PODS["kfm-init"]["containers"][0]["args"])
    assert (options["role"], options["retention_role"]) == ("kfm_deployment", "kfm_retention")
    assert VALUES["postgresql"]["postgresqlUsername"] == options["role"]
    [settings] = [one["data"] for one in OBJECTS if one["kind"] == "ConfigMap"]
    assert settings["KFM_ALLOWED_HOSTS"]


@pytest.mark.clause("DAG-09")
def test_dagsters_tables_are_found_where_kfm_init_makes_them() -> None:
    given, ours = VALUES["postgresql"], make_url(SECRETS["KFM_DAGSTER_DSN"])
    assert (given["postgresqlScheme"], given["postgresqlUsername"]) == (ours.drivername, ours.username)
    assert given["postgresqlDatabase"] == ours.database
    assert given["postgresqlParams"] == {"sslmode": "require", "plugin": "kfm_keep"}


@pytest.mark.clause("DAG-09")
def test_every_command_is_one_and_every_variable_a_setting() -> None:
    for name in PODS:
        settings = loaded({**SETTINGS, **SECRETS})
        assert settings.env == "prod"
        assert all(place.startswith("s3://") for place in (settings.catalog, settings.storage, settings.lineage))
        [container] = PODS[name]["containers"]
        options = parsed(container["args"])
        if "ports" in container:
            assert (options["host"], options["port"]) == ("0.0.0.0", container["ports"][0]["containerPort"])
        assert container["image"] == f"{CODE['image']['repository']}:{CODE['image']['tag']}"


def test_the_code_server_is_called_with_options_that_it_has() -> None:
    # As the chart does it (deployment-user.yaml).
    served = ["dagster", "api", "grpc", "-h", "0.0.0.0", "-p", str(CODE["port"]), *CODE["dagsterApiGrpcArgs"]]
    assert parsed(served)["module_name"] == "kfm_dagster.definitions"
    web = VALUES["dagsterWebserver"]
    assert web["readinessProbe"]["httpGet"]["port"] == web["service"]["port"]


def test_every_pod_is_without_root_and_writes_to_what_ends_with_it() -> None:
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
    # The right to start Jobs is that of the one account that the chart binds its role to.
    assert {pod["serviceAccountName"] for pod in PODS.values()} == {"kfm"}
    assert all(pod["automountServiceAccountToken"] is False for pod in PODS.values())
