"""`kfm init` migrates the databases of ledger and Dagster once; with a missing requirement it changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import sqlalchemy as sa

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.demo.cloud import EmbeddedCloud, create_queues
from kfm_dagster.errors import ExitCode
from kfm_dagster.governance.log import Decision
from kfm_dagster.settings import Environment, environment
from kfm_dagster.storage.roots import Root
from kfm_dagster_tests import databases
from kfm_dagster_tests.commands import Call, state_of, words_of
from kfm_dagster_tests.databases import as_role
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def cloud(cloud: EmbeddedCloud) -> EmbeddedCloud:
    """A cloud with a queue and the bucket `there`."""
    create_queues(
        cloud.client("sqs"),
        primary_queue=cloud.primary_queue,
        dlq=cloud.dlq,
        visibility_timeout=900,
        max_receive_count=5,
    )
    cloud.client("s3").create_bucket(Bucket="there")
    return cloud


@pytest.fixture
def outside(cloud: EmbeddedCloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of the cloud."""
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


def heads(url: str) -> list[str]:
    """Return the versions of Dagster's schema."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    engine.dispose()
    return list(versions)


@pytest.mark.clause("DAG-13")
@pytest.mark.timeout(HANG_SECONDS)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_parallel_inits_migrate_both_databases_once_and_a_third_changes_nothing(
    kind: str, outside: None, call: Call, home: Path, request: pytest.FixtureRequest
) -> None:
    named = (
        {}
        if kind == "sqlite"
        else dict.fromkeys(("KFM_WAL_DSN", "KFM_DAGSTER_DSN"), request.getfixturevalue("empty_postgres_url"))
    )
    processes = [_init(named) for _ in range(2)]
    outputs = [process.communicate(timeout=HANG_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    done = [json.loads(text) for text in outputs]
    assert sorted(result["dagster"]["dagster.yaml"] for result in done) == ["kept", "written"]
    assert done[0]["ledger"] == done[1]["ledger"]
    if kind == "sqlite":
        files = {str(path.relative_to(home)) for path in home.rglob("*.db")}
        assert {"kfm.db", "dagster/history/runs.db", "dagster/schedules/schedules.db"} <= files
        assert len(heads(f"sqlite:///{home / 'dagster' / 'history' / 'runs.db'}")) == 1
    else:
        assert not list(home.rglob("*.db"))
        assert len(heads(named["KFM_DAGSTER_DSN"])) == 1
    (home / "dagster" / "dagster.yaml").write_text((home / "dagster" / "dagster.yaml").read_text() + "# ours\n")
    with environment(named):
        third = call("init", "--json")
    assert third.document == {**done[0], "dagster": {**done[0]["dagster"], "dagster.yaml": "kept"}}
    assert (home / "dagster" / "dagster.yaml").read_text().endswith("# ours\n")


@pytest.mark.timeout(HANG_SECONDS)
def test_two_parallel_inits_install_pgstac_once(outside: None, home: Path, postgis_server: str) -> None:
    with databases.created(postgis_server) as url:
        processes = [_init({"KFM_STAC_API_DSN": url}) for _ in range(2)]
        outputs = [process.communicate(timeout=HANG_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    [installed] = {json.loads(text)["stac api"]["pgstac"] for text in outputs}
    assert installed.startswith("0.10.")


@pytest.mark.clause("SEC-11")
def test_roots_of_an_older_home_are_adopted_on_request_but_roots_of_another_deployment_never(
    outside: None, call: Call, home: Path
) -> None:
    item = home / "catalog" / "goes-abi" / "collection.json"
    item.parent.mkdir(parents=True)
    item.write_text("{}")
    before = state_of(home)
    call("init").refused("kfm init --adopt", code=ExitCode.REFUSED)
    assert state_of(home) == before
    assert call("init", "--adopt").code == call("init").code == ExitCode.DONE
    for file in home.glob("kfm.db*"):
        file.unlink()
    before = state_of(home)
    for arguments in ((), ("--adopt",)):
        call("init", *arguments).refused("is another deployment's", code=ExitCode.REFUSED)
    assert state_of(home) == before


@pytest.mark.clause("SEC-11")
def test_ingesting_commands_refuse_a_root_of_another_deployment(outside: None, call: Call, home: Path) -> None:
    Root(name="lineage", setting="KFM_LINEAGE_URL", location=str(home / "lineage")).mark("1" * 32)
    for command in ("worker", "drain", "ui --cloud aws --port 39871"):
        refused = call(*command.split())
        assert (refused.code, "is another deployment's" in refused.err) == (ExitCode.REFUSED, True), command
        assert not (home / "dagster").exists(), command


def _init(variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BIN / "kfm", "init", "--json"], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.clause("DAG-13")
def test_a_missing_requirement_is_reported_in_one_line_before_anything_is_created_or_started(
    outside: None, call: Call, home: Path
) -> None:
    no_bucket = "cannot be used; observed there is no such bucket"
    missing = {
        "KFM_STORAGE_URL=s3://gone/x": f"storage s3://gone/x {no_bucket}",
        "KFM_CATALOG_URL=s3://gone": f"catalog s3://gone {no_bucket}",
        "KFM_LINEAGE_URL=s3://gone": f"lineage s3://gone {no_bucket}",
        "KFM_COMPUTE_LOGS_URL=s3://gone/x": f"compute logs s3://gone/x {no_bucket}",
        "KFM_RUN_STATE=delta+s3://gone/y": f"run-state s3://gone/y {no_bucket}",
        "KFM_CATALOG_URL=/proc/kfm": "catalog /proc/kfm cannot be used",
        "KFM_SQS_PRIMARY_QUEUE=gone": "there is no such queue; observed gone",
        "KFM_WAL_DSN=postgresql://kfm@127.0.0.1:1/kfm": "the database does not answer",
    }
    for (variable, expected), command in product(missing.items(), ("init", "drain", "ui --cloud aws --port 39871")):
        with environment(words_of(variable)[0]):
            answer = call(*command.split())
        assert answer.code == ExitCode.DEPENDENCY_UNAVAILABLE, (variable, command)
        [line] = [line for line in answer.err.splitlines() if line.startswith("kfm: ")]
        assert expected in line
        assert "Traceback" not in answer.err
        assert not list(home.rglob("*.db"))
        assert not (home / "dagster").exists()


@pytest.mark.clause("DAG-13")
def test_all_missing_requirements_are_listed_together(
    outside: None, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_CATALOG_URL", "s3://gone")
    monkeypatch.setenv("KFM_STORAGE_URL", "s3://there/prefix")
    monkeypatch.setenv("KFM_SQS_PRIMARY_QUEUE", "gone")
    [line] = call("init").err.splitlines()
    assert "catalog s3://gone cannot be used" in line
    assert "there is no such queue" in line
    assert "s3://there" not in line


@pytest.mark.clause("DAG-09")
def test_a_dagster_yaml_with_file_storage_is_refused_if_a_database_is_set(
    outside: None, call: Call, home: Path, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("init").code == ExitCode.DONE
    monkeypatch.setenv("KFM_DAGSTER_DSN", empty_postgres_url)
    call("init").refused(f"{home / 'dagster' / 'dagster.yaml'} names no storage")
    (home / "dagster" / "dagster.yaml").unlink()
    assert call("init").code == ExitCode.DONE
    assert len(heads(empty_postgres_url)) == 1


@pytest.mark.clause("SEC-07")
def test_the_deployments_role_gets_its_rights_and_opens_the_ledger(
    outside: None, call: Call, empty_postgres_url: str, deployment_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_WAL_DSN", empty_postgres_url)
    answers = [call("init", "--role", deployment_role, "--json") for _ in range(2)]
    assert [answer.code for answer in answers] == [ExitCode.DONE] * 2
    assert f"{deployment_role} (was there)" in answers[1].out
    monkeypatch.setenv("KFM_WAL_DSN", as_role(empty_postgres_url, deployment_role))
    assert call("wal", "list", "--json").code == ExitCode.DONE


@pytest.mark.clause("SEC-07")
def test_folders_are_private_and_the_catalog_is_readable_for_its_server(
    outside: None, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    umask = os.umask(0o022)
    for name in ("storage", "catalog", "lineage"):
        monkeypatch.setenv(f"KFM_{name.upper()}_URL", str(tmp_path / "stores" / name))
    (tmp_path / "stores").mkdir()
    try:
        assert call("init").code == ExitCode.DONE
    finally:
        os.umask(umask)
    modes = {folder.name: oct(folder.stat().st_mode & 0o777) for folder in (tmp_path / "stores").iterdir()}
    assert modes == {"storage": "0o700", "catalog": "0o755", "lineage": "0o700"}


@pytest.mark.clause("WSM-21")
def test_init_in_prod_marks_the_database_as_prod_for_every_client(
    outside: None, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for env, required in (("stage", False), ("prod", True), ("dev", True)):
        monkeypatch.setenv("KFM_ENV", env)
        assert call("init").code == ExitCode.DONE
        with opened_pipeline() as pipeline:
            client = pipeline.settings.model_copy(update={"env": Environment.DEV})
            assert own_tx(pipeline.ledger.review).required(client, Decision(actor="ada", reason="drill")) is required


@pytest.mark.clause("SEC-07", "BEY-10")
def test_the_retention_role_gets_its_rights_and_works_with_its_own_dsn(
    outside: None, call: Call, empty_postgres_url: str, deployment_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_WAL_DSN", empty_postgres_url)
    refused = call("init", "--role", deployment_role, "--retention-role", deployment_role)
    refused.refused("retention needs a role of its own")
    printed = call("init", "--retention-role", deployment_role, "--json")
    assert (printed.code, f'"retention role": "{deployment_role} (' in printed.out) == (ExitCode.DONE, True)
    monkeypatch.setenv("KFM_RETENTION_DSN", as_role(empty_postgres_url, deployment_role))
    assert call("retention", "plan", "--json").code == ExitCode.DONE
    monkeypatch.setenv("KFM_RETENTION_DSN", as_role(empty_postgres_url, "nobody at all"))
    assert call("retention", "plan", "--json").code == ExitCode.DEPENDENCY_UNAVAILABLE
