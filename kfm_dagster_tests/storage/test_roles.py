"""The roles of deployment and retention on PostgreSQL have exactly the rights that the product needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    ExitCode,
    IllegalTransitionError,
    SchemaVersionError,
)
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.database import MIGRATION_LOCK, Database
from kfm_dagster.storage.roles import DeploymentRoleError, grant_deployment_role, grant_retention_role
from kfm_dagster_tests.databases import as_role, ask, drop_role, execute, refusal
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import JANE, make_bench

pytestmark = pytest.mark.clause("SEC-07")

WORKING = {
    "metric_totals",
    "catalog_collections",
    "catalog_items",
    "catalog_pages",
    "outbox",
    "nodd_wal_leases",
}
"""Tables whose rows the product deletes; all other tables are evidence or never shrink. Only a trigger sums rows of
`metric_totals` (`test_guards.py`)."""
REFUSED = {"42501", "428C9"}
"""PostgreSQL's codes: insufficient privilege, and (checked first) a value for a generated key."""
SHADOW = """
    CREATE TEMPORARY TABLE metric_totals (LIKE metric_totals);
    CREATE TEMPORARY TABLE seen AS SELECT current_user AS name WHERE false;
    CREATE FUNCTION pg_temp.look() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO pg_temp.seen VALUES (current_user); RETURN NULL; END $$;
    CREATE TRIGGER look AFTER INSERT ON pg_temp.metric_totals FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.look();
"""
"""A role's temporary table that hides the schema's table, and records the user that writes."""


@pytest.fixture
def role(postgres_server: str) -> Iterator[str]:
    """The name of a role that does not exist yet; dropped afterwards with its grants."""
    name = f"kfm deploy %s {secrets.token_hex(4)}"  # a name that always needs quotes
    yield name
    drop_role(postgres_server, name)


@pytest.fixture
def owner(role: str, postgres_url: str) -> Iterator[Database]:
    """A migrated database, connected as its owner, with the rights granted to the role."""
    opened = Database.open(postgres_url)
    assert grant_deployment_role(opened, role)
    yield opened
    opened.dispose()


@pytest.fixture
def deployment_url(owner: Database, role: str, postgres_url: str) -> str:
    """The URL of a deployment's connection."""
    return as_role(postgres_url, role)


@pytest.fixture
def deployment(deployment_url: str) -> Iterator[Database]:
    """The same database, connected as the deployment."""
    opened = Database.open(deployment_url)
    yield opened
    opened.dispose()


@pytest.fixture
def retention(owner: Database, deployment_url: str, retention_role: str) -> Iterator[Database]:
    """The same database, connected as the role of retention."""
    grant_retention_role(owner, retention_role)
    opened = Database.open(as_role(deployment_url, retention_role))
    yield opened
    opened.dispose()


def tables(database: Database) -> set[str]:
    """Return the tables and views of the schema."""
    inspector = sa.inspect(database.engine)
    return {*inspector.get_table_names(), *inspector.get_view_names()}


def test_the_rights_of_the_role_are_defined_for_every_table(owner: Database) -> None:
    with owner.snapshot() as tx:
        decided = [row.relation for row in tx.run("roles.decisions", role="x")]
    assert sorted(decided) == sorted(tables(owner))


@pytest.mark.clause("BEY-10")
def test_every_forbidden_statement_is_refused_on_every_table(
    owner: Database, deployment: Database, retention: Database
) -> None:
    accepted, schema = [], sa.inspect(owner.engine)
    for table in sorted(schema.get_table_names()):
        of_both = [
            f"TRUNCATE {table} CASCADE",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
            f"ALTER TABLE {table} ADD COLUMN more text",
            f"CREATE TRIGGER t BEFORE DELETE ON {table} EXECUTE FUNCTION kfm_refuse('x')",
            f"CREATE RULE r AS ON DELETE TO {table} DO INSTEAD NOTHING",
            f"DROP TABLE {table} CASCADE",
        ]
        of_deployment = [
            *([] if table in WORKING else [f"DELETE FROM {table}"]),
            *(f"UPDATE {table} SET {column} = {column}" for column in _frozen(owner, table)),
        ]
        # Retention only adds rows to the governance log.
        of_retention = [
            f"DELETE FROM {table}",
            *(f"UPDATE {table} SET {column['name']} = {column['name']}" for column in schema.get_columns(table)),
            *([] if table == "governance_log" else [f"INSERT INTO {table} DEFAULT VALUES"]),
        ]
        for database, typed in ((deployment, of_both + of_deployment), (retention, of_both + of_retention)):
            accepted += [statement for statement in typed if refusal(database, statement) not in REFUSED]
    assert accepted == []


@pytest.mark.clause("BEY-10")
def test_a_role_that_was_a_deployments_keeps_none_of_the_deployments_rights(
    owner: Database, deployment: Database, role: str
) -> None:
    grant_retention_role(owner, role)
    for statement in ("DELETE FROM outbox", "UPDATE nodd_wal_records SET status = status"):
        assert refusal(deployment, statement) == "42501"


def test_neither_a_setting_nor_a_change_of_role_disables_the_guards(owner: Database, deployment: Database) -> None:
    [superuser] = ask(owner, "SELECT current_user")
    typed = ["SET session_replication_role = 'replica'", f"SET ROLE {superuser}", "SET SESSION AUTHORIZATION DEFAULT"]
    assert [refusal(deployment, statement) for statement in typed] == ["42501", "42501", None]
    with deployment.transaction() as tx, pytest.raises(DBAPIError, match="history_is_written_by_the_ledger"):
        tx.connection.exec_driver_sql(
            "INSERT INTO nodd_wal_transitions (wal_id, version, at, actor, to_status, reason, attempts, fields) "
            "VALUES ('x', 1, now(), 'x', 'succeeded', 'x', 1, '{}')"
        )
    with deployment.transaction() as tx, pytest.raises(DBAPIError, match="moves_are_counted_by_the_ledger"):
        tx.connection.exec_driver_sql("INSERT INTO metric_totals VALUES ('nodd_wal_moves', 'd', 'succeeded', 1)")


def test_no_function_gives_a_role_the_owner_s_rights_or_uses_the_role_s_own_tables(
    owner: Database, deployment: Database, contracts: Any
) -> None:
    """A role's temporary table precedes the schema's in functions without a search path."""
    of_ours = "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    assert ask(owner, f"{of_ours} AND prosecdef") == []
    path = "'search_path=public, pg_temp' = ANY(coalesce(proconfig, '{}'))"
    looking = f"{of_ours} AND proname <> 'kfm_refuse' AND NOT {path}"
    assert ask(owner, looking) == []
    with deployment.transaction() as tx:
        tx.connection.exec_driver_sql(SHADOW)
        make_bench(deployment, contracts).ledger.ensure([envelope(1)], tx=tx)
        assert tx.connection.exec_driver_sql("SELECT name FROM pg_temp.seen").all() == []
        assert tx.connection.exec_driver_sql("SELECT sum(amount) FROM public.metric_totals").scalar_one() == 1


@pytest.mark.clause("WSM-21")
def test_a_role_s_own_table_does_not_change_a_prod_database_s_environment(deployment: Database, contracts: Any) -> None:
    bench = make_bench(deployment, contracts)
    bench.bring_to("quarantined", envelope())
    bench.ledger.review.work_in(Settings(env=Environment.PROD))
    shadow = "CREATE TEMPORARY TABLE deployment (LIKE deployment)"
    released = {"from_status": Status.QUARANTINED, "action": GovernanceAction.RELEASE, "decision": JANE}
    with deployment.transaction() as tx:
        tx.connection.exec_driver_sql(shadow)
        with pytest.raises(IllegalTransitionError, match="override_is_reviewed"):
            bench.ledger.override({envelope().wal_id: 2}, **released, tx=tx)


def test_granting_again_restores_a_role_s_rights_and_revokes_other_rights(
    owner: Database, deployment: Database, role: str
) -> None:
    with owner.transaction() as tx:
        tx.connection.exec_driver_sql(f'GRANT ALL ON governance_log TO "{role}"'.replace("%", "%%"))
        tx.connection.exec_driver_sql(f'REVOKE INSERT ON governance_log FROM "{role}"'.replace("%", "%%"))
    assert refusal(deployment, "TRUNCATE governance_log") != "42501"
    assert grant_deployment_role(owner, role) is False
    assert refusal(deployment, "TRUNCATE governance_log") == "42501"
    with deployment.engine.connect() as connection:
        may = "SELECT has_table_privilege(current_user, 'governance_log', 'INSERT')"
        assert connection.exec_driver_sql(may).scalar_one()


def test_a_role_that_could_alter_evidence_is_granted_no_right(owner: Database, role: str) -> None:
    quoted = f'"{role}"'.replace("%", "%%")
    [superuser] = ask(owner, "SELECT current_user")
    ways = {
        f"ALTER ROLE {quoted} SUPERUSER": f"ALTER ROLE {quoted} NOSUPERUSER",
        f"GRANT {superuser} TO {quoted}": f"REVOKE {superuser} FROM {quoted}",
        f"GRANT pg_write_all_data TO {quoted}": f"REVOKE pg_write_all_data FROM {quoted}",
        "GRANT TRUNCATE ON stage_audit TO PUBLIC": "REVOKE TRUNCATE ON stage_audit FROM PUBLIC",
    }
    for way, back in ways.items():
        with owner.transaction() as tx:
            tx.connection.exec_driver_sql(way)
            tx.connection.exec_driver_sql(f"REVOKE ALL ON run_state FROM {quoted}")
        with pytest.raises(DeploymentRoleError, match="could alter evidence; observed") as refused:
            grant_deployment_role(owner, role)
        assert refused.value.exit_code is ExitCode.REFUSED
        with owner.transaction() as tx:
            tx.connection.exec_driver_sql(back)
        acl = "SELECT count(*) FROM pg_class, aclexplode(relacl) WHERE relname = 'run_state' AND grantee <> relowner"
        assert ask(owner, acl) == [0], way
    with pytest.raises(DeploymentRoleError, match="could alter evidence"):
        grant_deployment_role(owner, superuser)


def test_only_the_owner_grants_rights_and_only_on_postgresql_and_to_a_valid_name(
    owner: Database, deployment: Database, role: str, tmp_path: Path
) -> None:
    sqlite = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    for database, names, why in (
        (owner, ("", "x" * 64, "é" * 32, "a\0b"), "name of the role is not valid"),
        (deployment, (role, "another"), "connect as the owner"),
        (sqlite, ("deploy",), "only PostgreSQL has roles; observed sqlite"),
    ):
        for name in names:
            with pytest.raises(DeploymentRoleError if database is deployment else ConfigurationError, match=why):
                grant_deployment_role(database, name)
    sqlite.dispose()


@pytest.mark.clause("BEY-10")
def test_a_role_does_not_migrate_and_the_error_names_the_command_that_migrates(
    owner: Database, deployment_url: str, role: str, retention_role: str
) -> None:
    grant_retention_role(owner, retention_role)
    with owner.transaction() as tx:
        newest = tx.connection.exec_driver_sql("SELECT max(number) FROM schema_version").scalar_one()
        tx.connection.exec_driver_sql(f"DELETE FROM schema_version WHERE number = {newest}")
    for url, option in (
        (deployment_url, f"--role {role}"),
        (as_role(deployment_url, retention_role), f"--retention-role {retention_role}"),
    ):
        with pytest.raises(SchemaVersionError) as refused:
            Database.open(url)
        assert str(refused.value) == (
            "the database has an older schema than this release needs, and this role may not migrate it; "
            f"observed schema {newest - 1}; expected {newest}; next: run kfm init {option} as the owner"
        )


@pytest.mark.usefixtures("owner")
def test_an_empty_database_must_first_be_migrated_by_its_owner(empty_postgres_url: str, role: str) -> None:
    execute(empty_postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # the default since PostgreSQL 15
    with pytest.raises(SchemaVersionError, match="this role may not migrate it; observed schema 0"):
        Database.open(as_role(empty_postgres_url, role))


def test_a_table_without_rights_gives_an_error_in_one_line(owner: Database, deployment_url: str, role: str) -> None:
    with owner.transaction() as tx:
        tx.connection.exec_driver_sql("CREATE TABLE newer (x integer)")
    with pytest.raises(DatabaseUnavailableError, match=r"no access to newer; .* next: run kfm init --role"):
        Database.open(deployment_url)
    with owner.transaction() as tx:
        tx.connection.exec_driver_sql("DROP TABLE newer")
        tx.connection.exec_driver_sql(f'REVOKE ALL ON schema_version FROM "{role}"'.replace("%", "%%"))
    with pytest.raises(
        DatabaseUnavailableError, match=r"lacks rights .*denied.* run kfm init --role NAME as the owner"
    ):
        Database.open(deployment_url)


def test_opening_a_database_that_is_up_to_date_waits_for_no_migration(owner: Database) -> None:
    url = owner.engine.url.update_query_dict({"options": "-c lock_timeout=1s"})
    with owner.transaction() as tx:
        tx.connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        Database.open(url.render_as_string(hide_password=False)).dispose()


def _frozen(owner: Database, table: str) -> list[str]:
    """Return the columns that the role may not change: all except the columns that `roles.decisions` grants."""
    with owner.snapshot() as tx:
        [text] = [row.statement for row in tx.run("roles.decisions", role="x") if row.relation == table]
    granted = text.rpartition("UPDATE (")[2].partition(")")[0].split(", ") if "UPDATE (" in text else []
    columns = {column["name"] for column in sa.inspect(owner.engine).get_columns(table)}
    assert set(granted) <= columns
    return sorted(columns - set(granted))
