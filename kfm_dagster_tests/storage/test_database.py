"""Opening, migrating and refusing databases; schema, macros, and SQLite's query plans."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import TextClause
from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError, ExitCode, NoLedgerError, SchemaVersionError
from kfm_dagster.settings import Settings
from kfm_dagster.storage import database as module
from kfm_dagster.storage import macros
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import Migration, migrations, sql_root, statement
from kfm_dagster_tests import databases
from kfm_dagster_tests.integration.test_statements import COMMAND, NAMES, ONE_SERVER


def test_an_edited_migration_is_refused_unless_the_edit_is_a_comment_or_white_space(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = migrations(database.dialect)
    edits = {" -- it's a comment\n": True, "\n": True, " ": True, " '-- a text'": False, " x": False}
    for edit, allowed in edits.items():
        edited = Migration(
            number=first.number, name=first.name, statements=(*first.statements[:-1], first.statements[-1] + edit)
        )
        monkeypatch.setattr(module, "migrations", lambda _, edited=edited: (edited,))
        with nullcontext() if allowed else pytest.raises(SchemaVersionError, match="edited afterwards"):
            Database.open(database_url).dispose()


def test_a_corrupt_database_file_gives_an_error_in_one_line_and_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "kfm.db"
    Database.open(f"sqlite:///{file}").dispose()
    whole = file.read_bytes()
    # A file of another format, and a file whose pages are overwritten after an intact header.
    for damaged in (b"garbage\n", whole[:100] + b"\xff" * (len(whole) - 100)):
        file.write_bytes(damaged)
        for read_only in (True, False):
            with pytest.raises(DatabaseUnavailableError, match=r"kfm\.db: .*(not a data|malformed).*backup") as refused:
                Database.open(f"sqlite:///{file}", read_only=read_only)
            assert "\n" not in str(refused.value)
        assert file.read_bytes() == damaged


def test_a_database_whose_folder_cannot_be_created_gives_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/new: Not a directory; next: correct KFM_HOME or KFM_WAL_DSN"):
        Database.open(f"sqlite:///{tmp_path / 'file' / 'new' / 'kfm.db'}")


AWAY = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())"}
FULL = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$",
    "sqlite": "CREATE TABLE more AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000) "
    "SELECT i, hex(randomblob(100)) AS held FROM n",
}


@pytest.mark.parametrize(
    ("typed", "failure"),
    [
        (AWAY, "does not answer; observed .*:.* connection"),
        (FULL, "disk is full; observed .*(extend|is full)"),
    ],
)
def test_a_database_lost_or_full_in_a_transaction_gives_an_error_in_one_line_without_the_statement(
    database: Database, typed: dict[str, str], failure: str
) -> None:
    if database.dialect not in typed:
        pytest.skip("SQLite has no server that can end a connection")
    if database.dialect == "sqlite":
        # The limit does not truncate the file; it only prevents further pages.
        sa.event.listen(
            database.engine, "begin", lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1")
        )
    for ask in (database.transaction, database.snapshot):
        with pytest.raises(DatabaseUnavailableError, match=failure) as lost, ask() as tx:
            tx.connection.exec_driver_sql(typed[database.dialect])
        assert "\n" not in str(lost.value)
        assert not re.search(r"\[SQL|SELECT|DO \$\$", str(lost.value))
        # A log shows chained errors, so the statement must not be in a chained error either.
        assert lost.value.__cause__ is None
        assert lost.value.__suppress_context__
    with database.snapshot() as tx:
        assert tx.run("schema.applied").all()


def test_times_of_rows_are_in_utc_in_a_session_of_any_zone(database: Database) -> None:
    switch = {"dataset": "goes-abi", "actor": "jane", "reason": "storm", "change_ref": "CHG-1", "expires_at": None}
    with database.transaction() as tx:
        if database.dialect == "postgresql":
            tx.connection.exec_driver_sql("SET TIME ZONE 'Asia/Tokyo'")
        tx.run("governance.engage", switch, at="2025-12-03T00:00:00.000000Z")
        row = tx.run("governance.engaged", at="2025-12-04T00:00:00.000000Z").one()
    assert (row.engaged_at, row.engaged_at.tzinfo) == (datetime(2025, 12, 3, tzinfo=UTC), UTC)
    assert row.expires_at is None


def test_a_read_only_connection_cannot_write(database_url: str) -> None:
    looking = Database.open(database_url, read_only=True)
    with looking.snapshot() as tx:
        assert tx.run("schema.applied").all()
    # Neither a transaction nor a snapshot can write.
    for opening in (looking.transaction, looking.snapshot):
        with pytest.raises(DBAPIError, match=r"read-?only"), opening() as tx:
            tx.run("schema.record", number=9999, name="x", sha256="y")
    looking.dispose()


def test_reading_a_missing_database_creates_no_database(empty_database_url: str, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NoLedgerError, match="there is no ledger yet"):
            Database.open(empty_database_url, read_only=True)
    if empty_database_url.startswith("sqlite"):
        with pytest.raises(NoLedgerError, match=r"such\.db"):
            Database.open(f"sqlite:///{tmp_path / 'no' / 'such.db'}", read_only=True)
        assert not (tmp_path / "no").exists()


def test_sqlite_is_opened_for_concurrent_durable_use(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    with database.transaction() as tx:
        assert tx.connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        other = sqlite3.connect(tmp_path / "kfm.db", timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()
    database.dispose()


def test_actions_of_a_rolled_back_savepoint_do_not_run_after_the_commit(database: Database) -> None:
    done: list[str] = []
    with database.transaction() as tx:
        tx.after_commit(lambda: done.append("before"))
        with suppress(KeyError), tx.nested():
            tx.after_commit(lambda: done.append("taken back"))
            raise KeyError
        with tx.nested():
            tx.after_commit(lambda: done.append("kept"))
        assert done == []
    assert done == ["before", "kept"]


@pytest.mark.clause("DAG-14")
@pytest.mark.parametrize(("query", "backends"), [("", 2), ("plugin=kfm_keep", 1)], ids=["plain", "kept"])
def test_a_url_with_the_plugin_reuses_one_connection(
    query: str, backends: int, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = f"{empty_postgres_url}{'&' if '?' in empty_postgres_url else '?'}{query}".rstrip("?&")
    monkeypatch.setenv("KFM_DAGSTER_DSN", joined)
    engine = sa.create_engine(Settings.load().dagster_dsn, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    pids = set()
    for _ in range(2):
        with engine.connect() as connection:
            pids.add(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    engine.dispose()
    assert len(pids) == backends


SECOND = """
-- A second release.
ALTER TABLE kill_switches ADD COLUMN asked_by @id;

CREATE TABLE second_things (
    thing_id @serial(second_things_one_row_per_thing),
    made_at @time NOT NULL,
    CONSTRAINT second_things_are_of_now CHECK (made_at > '2020-01-01T00:00:00.000000Z')
) @strict;

-- postgresql: only to test that this part is run.
CREATE INDEX second_things_by_time ON second_things (made_at);

@append_only(second_things, second_things_are_kept, (thing_id));
"""


def second_release(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a later release."""
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
        inspector = sa.inspect(database.engine)
        # SQLite reports the row id key as nullable, which it is not.
        return {
            name: [
                (column["name"], column["nullable"] and column["name"] not in keys)
                for keys in [inspector.get_pk_constraint(name)["constrained_columns"]]
                for column in inspector.get_columns(name)
            ]
            for name in (*inspector.get_table_names(), *inspector.get_view_names())
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
    indexes = {}
    for dialect, query in queries.items():
        with both[dialect].snapshot() as tx:
            indexes[dialect] = set(tx.connection.exec_driver_sql(query).scalars())
    assert indexes["sqlite"] == indexes["postgresql"]


def test_both_databases_refuse_by_the_same_rules() -> None:
    def rules(dialect: str) -> set[str]:
        [first] = migrations(dialect)
        texts = "\n".join(first.statements)
        return set(re.findall(r"(?:RAISE\(ABORT, |kfm_refuse\(|EXCEPTION '%', )'(\w+)", texts))

    # Only SQLite refuses INSERT OR REPLACE, which bypasses keys, and connections without foreign keys.
    # Only PostgreSQL refuses hand-typed counts by a role, since SQLite has no roles.
    assert rules("sqlite") ^ rules("postgresql") == {
        "deployment_has_one_id", "foreign_keys_are_on", "kill_switches_one_open_per_dataset",
        "lineage_emissions_id_names_one_unit", "moves_are_counted_by_the_ledger", "unit_has_one_record",
    }  # fmt: skip


@pytest.mark.clause("WAL-15")
def test_a_database_of_the_first_release_migrates_and_keeps_its_rows(
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
        Database.open(database_url).dispose()  # a second opening does not migrate again
    with pytest.raises(SchemaVersionError, match=r"newer schema.*observed schema 2; expected at most 1; next: run"):
        Database.open(database_url)


@pytest.mark.clause("WAL-15")
def test_a_database_that_lacks_a_migration_is_not_read(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "migrations", second_release)
    with pytest.raises(SchemaVersionError, match=r"older schema .* observed schema 1; expected 2; next: .* kfm init"):
        Database.open(database_url, read_only=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_from_before_the_first_release_is_refused_and_stays_unchanged(
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


GROWING = {
    "announcements",
    "catalog_changes",
    "catalog_items",
    "catalog_promotions",
    "etl_wal",
    "lineage_emissions",
    "nodd_wal_delivery_units",
    "nodd_wal_deliveries",
    "nodd_wal_outcomes",
    "nodd_wal_records",
    "nodd_wal_supersessions",
    "nodd_wal_transitions",
    "replay_units",
    "stage_state",
}
"""Tables with a row for each unit, message or Item; and large tables with a row for each step of a batch."""
WHOLE = {
    "announcements.status": "a count, when a person asks for the state of a subscription",
    "catalog.all_contents": "the API's rebuild compares every Item",
    "catalog.drop_empty_collection": "stops at the first Item",
    "deliveries.conservation": "the sum over everything that was received",
    "deliveries.counts": "a count of everything that was received",
    "deliveries.duplicates": "a count of everything that was received",
    "explanation.runs_beginning": "a person asks for it",
    "explanation.latest_run": "reads from the end to the newest ingest",
    "exports.activities": "an export of everything",
    "exports.artifacts": "an export of everything",
    "exports.claims": "an export of everything",
    "exports.collections": "an export of everything",
    "exports.generations": "an export of everything",
    "exports.inputs": "an export of everything",
    "exports.items": "an export of everything",
    "exports.latest_run": "an export of everything",
    "exports.objects": "an export of everything",
    "ledger.counts": "proves the stored counts",
    "reports.ledger_span": "the first and the last event of everything",
    "retention.artifacts": "once a day",
    "retention.landing": "once a day",
}
"""Statements that must read a growing table completely, with the reason."""
GROWN = {"etl_wal_applied", "etl_wal_content_is_applied_once", "replay_units_by_decision"}
"""Partial indexes that grow with their table; other partial indexes cover active rows and can be read completely."""
PARTIAL = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) [^;]*\bWHERE\b", re.MULTILINE)


@pytest.fixture
def blind(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    file = tmp_path / "kfm.db"
    Database.open(f"sqlite:///{file}").dispose()
    # Without the product's settings: with them, plans include lookups of foreign keys, which only a violation executes.
    with closing(sqlite3.connect(file)) as connection:
        yield connection


def test_only_listed_statements_read_a_growing_table_completely(
    blind: sqlite3.Connection,
) -> None:
    schema = "\n".join(file.read_text(encoding="utf-8") for file in (sql_root() / "schema").iterdir())
    partial = set(PARTIAL.findall(schema)) - GROWN
    whole_reads: dict[str, list[str]] = {}
    for name, query in _statements():
        plan = blind.execute(f"EXPLAIN QUERY PLAN {query.text}", dict.fromkeys(query.compile().params)).fetchall()
        if reads := [line for *_, line in plan if _is_whole(line, query.text, partial)]:
            whole_reads[name] = reads
    assert {name: reads for name, reads in whole_reads.items() if name not in WHOLE} == {}
    assert WHOLE.keys() - whole_reads.keys() == set()


def _statements() -> Iterator[tuple[str, TextClause]]:
    """Yield every query of SQLite by name."""
    for name in NAMES:
        with suppress(ConfigurationError):  # a statement only for PostgreSQL
            query = statement("sqlite", name)
            if COMMAND.match(query.text) and not name.startswith(ONE_SERVER):
                yield name, query


def _is_whole(line: str, text: str, partial: set[str]) -> bool:
    """Return whether a plan's line reads all rows of a growing table, or all rows of a collection in it."""
    aliases = {alias: table for table, alias in re.findall(r"(\w+) AS (\w+)", text)}
    read = re.match(r"(SCAN|SEARCH) (\w+)(?:.*? INDEX (\w+))?", line)
    if read is None or aliases.get(read[2], read[2]) not in GROWING or read[3] in partial:
        return False
    return read[1] == "SCAN" or line.endswith("(collection_id=?)")


def test_a_macro_is_replaced_by_the_database_s_text() -> None:
    for text, sqlite, postgresql in [
        ("at @time NOT NULL", "at text NOT NULL", "at timestamptz NOT NULL"),
        ("x = @json_type(@as_json(y))", "x = json_type(y)", "x = jsonb_typeof(CAST(y AS jsonb))"),
        ("@pairs(n, a, b)", "'a', n.a, 'b', n.b", "'a', n.a, 'b', n.b"),
        ("@changed(a)", "(NEW.a) IS DISTINCT FROM (OLD.a)", "(NEW.a) IS DISTINCT FROM (OLD.a)"),
        ("a @sqlite(b, (c, ')'))", "a b, (c, ')')", "a "),
        ("'@time' -- @time it's", "'@time' -- @time it's", "'@time' -- @time it's"),
    ]:
        assert (macros.render(text, "sqlite"), macros.render(text, "postgresql")) == (sqlite, postgresql)


def test_a_macro_that_is_wrong_is_refused() -> None:
    for text, why in [("x @tmie", "unknown SQL macro"), ("@sha256(x", "is not closed")]:
        with pytest.raises(ConfigurationError, match=why):
            macros.render(text, "sqlite")


def test_a_statement_marked_for_one_database_is_left_out_for_the_other() -> None:
    text = "SELECT 1;\n\n-- sqlite: it has no locks.\nSELECT 2;\nBEGIN\n    SELECT 3;\nEND;\n-- The end.\n"
    assert macros.statements(text, "postgresql") == ["SELECT 1", "BEGIN\n    SELECT 3;\nEND"]
    assert macros.statements(text, "sqlite") == [
        "SELECT 1", "-- sqlite: it has no locks.\nSELECT 2", "BEGIN\n    SELECT 3;\nEND",
    ]  # fmt: skip


def test_every_statement_for_one_database_or_in_two_forms_states_its_reasons() -> None:
    for file in (*_files("schema"), *_files("queries")):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"^-- (?:sqlite|postgresql):?(?: .{0,20})?$", text, re.MULTILINE | re.IGNORECASE) == []
        forms = defaultdict(list)
        for name, first in re.findall(r"^-- name: (\w+)\n(.*)$", text, re.MULTILINE):
            forms[name].append(re.match(r"-- (sqlite|postgresql): (?=.{20})", first))
        for name, variants in forms.items():
            of_one = [match[1] for match in variants if match]
            assert of_one in ([], ["sqlite", "postgresql"]), f"{file.name}: {name}"
            assert len(variants) == max(1, len(of_one)), f"{file.name}: {name}"


def test_every_macro_is_documented_and_used() -> None:
    documented = set(re.findall(r"`@(\w+)", str(macros.__doc__))) - {"name"}
    texts = "\n".join(file.read_text(encoding="utf-8") for file in (*_files("schema"), *_files("queries")))
    used = set(re.findall(r"(?<![\w'])@([a-z_0-9]+)", texts)) - {"macro"}
    assert documented == used


def _files(folder: str) -> list[Traversable]:
    return [file for file in (sql_root() / folder).iterdir() if file.name.endswith(".sql")]
