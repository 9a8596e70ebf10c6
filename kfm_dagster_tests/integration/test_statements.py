"""Every named statement is valid on both databases and permitted to a deployment's role."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import sql_root, statement, typed_statement
from kfm_dagster_tests import databases
from kfm_dagster_tests.databases import BOTH_DATABASES

NAMES = [
    f"{file.name.removesuffix('.sql')}.{name}"
    for file in sorted((sql_root() / "queries").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".sql")
    for name in dict.fromkeys(re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
]
COMMAND = re.compile(r"(?:\s*--.*\n)*\s*(?:WITH|SELECT|INSERT|UPDATE|DELETE)\b")
"""Statements that EXPLAIN accepts. The others lock, set a transaction's mode, or create a table."""

ONE_SERVER = ("backups.", "roles.")
"""Files with statements only for PostgreSQL: SQLite has no roles and no archive."""
VALUES = re.compile(r"\bVALUES \((.*?)\)(?=\s*(?:ON CONFLICT|RETURNING|\Z))", re.DOTALL)
DECODED = {1184: "DateTime", 3802: "JSON"}
"""PostgreSQL's type numbers of decoded columns (pg_type.dat): timestamptz and jsonb."""


@BOTH_DATABASES
def test_every_statement_is_valid_on_both_databases_and_permitted_to_a_deployment(database_url: str) -> None:
    """Because of this test, tests of Python code that works on rows need only one database."""
    database = Database.open(database_url)
    refused: dict[str, str] = {}
    explained = 0
    with database.engine.connect() as connection:
        for name in NAMES:
            text = statement(database.dialect, name)
            if not COMMAND.match(text.text) or (name.startswith(ONE_SERVER) and database.dialect == "sqlite"):
                continue
            explained += 1
            nothing = dict.fromkeys(text.compile().params)
            with connection.begin():
                try:
                    connection.execute(sa.text(f"EXPLAIN {text.text}"), nothing)
                except sa.exc.DBAPIError as error:
                    refused[name] = str(error.orig)
    database.dispose()
    # Only the owner migrates (docs/adr/021).
    assert set(refused) == ({"schema.record"} if database.dialect == "postgresql" else set()), refused
    assert explained > 240


def test_every_time_and_json_column_of_a_row_is_decoded_on_both_databases(postgres_url: str, tmp_path: Path) -> None:
    """PostgreSQL reports the columns' types; on SQLite, columns are decoded by the same names."""
    postgresql = Database.open(postgres_url)
    sqlite = Database.open(databases.migrated_sqlite(tmp_path / "kfm.db"))
    wrong: dict[str, Any] = {}
    columns_decoded = 0
    for name in NAMES:
        if name.startswith(ONE_SERVER):
            continue
        expected = {column: DECODED[code] for column, code in _columns(postgresql, name) if code in DECODED}
        columns_decoded += len(expected)
        for database in (sqlite, postgresql):
            typed = getattr(typed_statement(database.dialect, name), "selected_columns", ())
            types = {column.name: type(column.type).__name__ for column in typed}
            decoded = {column: types[column] for column, _ in _columns(database, name) if column in types}
            if decoded != expected:
                wrong[f"{database.dialect} {name}"] = (decoded, expected)
    postgresql.dispose()
    sqlite.dispose()
    assert wrong == {}
    assert columns_decoded > 180


def _columns(database: Database, name: str) -> list[tuple[str, int | None]]:
    """Return names and type numbers of a statement's columns; empty if it returns no rows.

    The statement runs with null parameters and inserts no row: its VALUES become a SELECT of no row.
    """
    text = statement(database.dialect, name)
    if not COMMAND.match(text.text) or ("INSERT INTO" in text.text and "RETURNING" not in text.text):
        return []
    selecting = sa.text(VALUES.sub(r"SELECT \1 WHERE FALSE", text.text))
    parameters = {parameter: 1 if parameter in {"limit", "most"} else None for parameter in selecting.compile().params}
    with database.engine.connect() as connection, connection.execute(selecting, parameters) as result:
        return [(column[0], column[1]) for column in result.cursor.description or ()] if result.returns_rows else []
