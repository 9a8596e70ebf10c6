"""The schema: one text for both databases, which later releases migrate and which nothing older is taken for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.errors import ExitCode, SchemaVersionError
from kfm_dagster.storage import database as module
from kfm_dagster.storage import macros
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import Migration, migrations
from kfm_dagster_tests import databases

SECOND = """
-- A second release.
ALTER TABLE kill_switches ADD COLUMN asked_by @id;

CREATE TABLE second_things (
    thing_id @serial(second_things_one_row_per_thing),
    made_at @time NOT NULL,
    CONSTRAINT second_things_are_of_now CHECK (made_at > '2020-01-01T00:00:00.000000Z')
) @strict;

-- postgresql: only to see that its part is run.
CREATE INDEX second_things_by_time ON second_things (made_at);

@append_only(second_things, second_things_are_kept, (thing_id));
"""


def second_release(dialect: str) -> tuple[Migration, ...]:
    """The migrations of a release after this one."""
    statements = tuple(macros.statements(SECOND, dialect))
    return (*migrations(dialect), Migration(number=2, name="second", statements=statements))


@pytest.fixture
def both(tmp_path: Path, postgres_url: str) -> Iterator[dict[str, Database]]:
    opened = {
        "sqlite": Database.open(databases.migrated_sqlite(tmp_path / "kfm.db")),
        "postgresql": Database.open(postgres_url),
    }
    yield opened
    for database in opened.values():
        database.dispose()


def test_both_databases_have_the_same_tables_and_columns(both: dict[str, Database]) -> None:
    def described(database: Database) -> dict[str, Any]:
        found = sa.inspect(database.engine)
        # SQLite calls the key that is the row id nullable, which it is not.
        return {
            relation: [(column["name"], column["nullable"] and not column["primary_key"]) for column in columns]
            for relation, columns in (
                (one, _with_keys(found, one)) for one in (*found.get_table_names(), *found.get_view_names())
            )
        }

    assert described(both["sqlite"]) == described(both["postgresql"])


def test_both_databases_have_the_same_indexes(both: dict[str, Database]) -> None:
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
        "postgresql": (
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' "
            "AND indexname NOT IN (SELECT conname FROM pg_constraint)"
        ),
    }
    found = {}
    for dialect, query in queries.items():
        with both[dialect].snapshot() as tx:
            found[dialect] = set(tx.connection.exec_driver_sql(query).scalars())
    assert found["sqlite"] == found["postgresql"]


def test_both_databases_refuse_by_the_same_rules() -> None:
    def rules(dialect: str) -> set[str]:
        [first] = migrations(dialect)
        texts = "\n".join(first.statements)
        return set(re.findall(r"(?:RAISE\(ABORT, |kfm_refuse\(|EXCEPTION '%', )'(\w+)", texts))

    # SQLite alone refuses INSERT OR REPLACE, which passes by a key, and connections without foreign keys.
    # PostgreSQL alone refuses a role that counts by hand: a file has no roles.
    assert rules("sqlite") ^ rules("postgresql") == {
        "deployment_has_one_id", "foreign_keys_are_on", "kill_switches_one_open_per_dataset",
        "lineage_emissions_id_names_one_unit", "moves_are_counted_by_the_ledger", "unit_has_one_record",
    }  # fmt: skip


@pytest.mark.clause("WAL-15")
def test_a_database_of_the_first_release_migrates_and_keeps_what_it_holds(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Database.open(database_url)
    with first.transaction() as tx:
        tx.run("schema.applied").all()
        tx.connection.exec_driver_sql(
            "INSERT INTO kill_switches (dataset, engaged_at, engaged_by, reason) "
            "VALUES ('goes-abi', '2025-12-03T00:00:00.000000Z', 'jane', 'storm')"
        )
        before = tx.connection.exec_driver_sql("SELECT * FROM kill_switches").mappings().one()
    first.dispose()

    with monkeypatch.context() as released:
        released.setattr(module, "migrations", second_release)
        second = Database.open(database_url)
        with second.transaction() as tx:
            after = tx.connection.exec_driver_sql("SELECT * FROM kill_switches").mappings().one()
            assert dict(after) == {**before, "asked_by": None}
            tx.connection.exec_driver_sql("INSERT INTO second_things (made_at) VALUES ('2025-12-03T00:00:00.000000Z')")
        for typed, rule in {
            "DELETE FROM second_things": "second_things_are_kept",
            "INSERT INTO second_things (made_at) VALUES ('1999-12-03T00:00:00.000000Z')": "second_things_are_of_now",
        }.items():
            with pytest.raises(sa.exc.DBAPIError, match=rule), second.transaction() as tx:
                tx.connection.exec_driver_sql(typed)
        assert second.schema() == 2
        second.dispose()
        Database.open(database_url).dispose()  # once
    with pytest.raises(SchemaVersionError, match=r"newer schema.*observed schema 2; expected at most 1; next: run"):
        Database.open(database_url)


@pytest.mark.clause("WAL-15")
def test_a_database_that_lacks_a_migration_is_not_looked_into(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = ("CREATE TABLE second_things (thing_id integer)",)
    later = Migration(number=2, name="second", statements=statements)
    monkeypatch.setattr(module, "migrations", lambda dialect: (*migrations(dialect), later))
    with pytest.raises(SchemaVersionError, match=r"older schema .* observed schema 1; expected 2; next: .* kfm init"):
        Database.open(database_url, read_only=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_from_before_the_first_release_is_refused_and_left_as_it_is(
    empty_database_url: str, read_only: bool
) -> None:
    engine = sa.create_engine(empty_database_url)
    with engine.begin() as connection:
        tx = module.Transaction(connection)
        tx.run("schema.create_version_table")
        for number, name in enumerate(("run_state", "ledger", "catalog"), start=1):
            tx.run("schema.record", number=number, name=name, sha256="0" * 64)
        connection.exec_driver_sql("CREATE TABLE run_state (dataset_id text)")
        before = sa.inspect(connection).get_table_names()
    with pytest.raises(SchemaVersionError) as refused:
        Database.open(empty_database_url, read_only=read_only)
    assert str(refused.value) == (
        "the database was made by a pre-release and cannot be upgraded; observed schema 3, which begins "
        "with run_state; expected a schema that begins with first_schema (0.1.0); next: name another database "
        "(KFM_HOME or KFM_WAL_DSN) and ingest again; this database stays unchanged"
    )
    assert refused.value.exit_code is ExitCode.REFUSED
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == before
        assert len(module.Transaction(connection).run("schema.applied").all()) == 3
    engine.dispose()


def _with_keys(found: sa.Inspector, relation: str) -> list[dict[str, Any]]:
    keys = found.get_pk_constraint(relation)["constrained_columns"] if relation in found.get_table_names() else []
    return [{**column, "primary_key": column["name"] in keys} for column in found.get_columns(relation)]
