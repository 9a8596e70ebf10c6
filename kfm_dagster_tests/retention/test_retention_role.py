"""The role of retention on a real PostgreSQL: it reads, adds to the governance log, and deletes bodies alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.errors import SchemaVersionError
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roles import grant_deployment_role, grant_retention_role
from kfm_dagster_tests.databases import as_role, ask, refusal
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import make_bench

pytestmark = pytest.mark.clause("BEY-10", "SEC-07")

NO_RIGHT = "42501"
"""PostgreSQL's insufficient_privilege."""


@pytest.fixture
def owner(postgres_url: str, retention_role: str, contracts: Any) -> Iterator[Database]:
    """A migrated database with a unit in quarantine, connected as its owner; the role has its rights."""
    opened = Database.open(postgres_url)
    grant_retention_role(opened, retention_role)
    make_bench(opened, contracts).bring_to("quarantined", envelope())
    yield opened
    opened.dispose()


@pytest.fixture
def retention(owner: Database, postgres_url: str, retention_role: str) -> Iterator[Database]:
    """The same database, connected as the role."""
    opened = Database.open(as_role(postgres_url, retention_role))
    yield opened
    opened.dispose()


def test_the_role_deletes_and_changes_no_row_of_any_table(owner: Database, retention: Database) -> None:
    looked_at = sa.inspect(owner.engine)
    tables = looked_at.get_table_names()
    assert {"nodd_wal_records", "nodd_wal_transitions", "governance_log", "quarantine_cases"} <= set(tables)
    let_in = []
    for table in tables:
        column = looked_at.get_columns(table)[-1]["name"]  # the first may be a number that only the database gives
        typed = [
            f"DELETE FROM {table}",
            f"UPDATE {table} SET {column} = {column}",
            f"TRUNCATE {table} CASCADE",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
            f"DROP TABLE {table} CASCADE",
            *([] if table == "governance_log" else [f"INSERT INTO {table} DEFAULT VALUES"]),
        ]
        let_in += [one for one in typed if refusal(retention, one) != NO_RIGHT]
    assert let_in == []
    [kept] = ask(retention, "SELECT count(*) FROM nodd_wal_records")
    assert kept == 1


def test_a_role_that_was_a_deployments_keeps_nothing_of_it(
    owner: Database, retention: Database, retention_role: str
) -> None:
    grant_deployment_role(owner, retention_role)
    grant_retention_role(owner, retention_role)
    assert refusal(retention, "DELETE FROM outbox") == NO_RIGHT
    assert refusal(retention, "UPDATE nodd_wal_records SET status = status") == NO_RIGHT


def test_a_role_that_lacks_a_newer_schema_is_told_which_rights_are_its_own(
    owner: Database, postgres_url: str, retention_role: str
) -> None:
    with owner.transaction() as tx:
        newest = tx.connection.exec_driver_sql("SELECT max(number) FROM schema_version").scalar_one()
        tx.connection.exec_driver_sql(f"DELETE FROM schema_version WHERE number = {newest}")
    with pytest.raises(SchemaVersionError) as refused:
        Database.open(as_role(postgres_url, retention_role))
    assert str(refused.value).endswith(f"next: run kfm init --retention-role {retention_role} as the owner")
