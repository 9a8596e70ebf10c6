"""Every named statement is one that both databases understand and a deployment may run, over the schema as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import sql_root, statement, typed_statement
from kfm_dagster_tests import databases

NAMES = [
    f"{file.name.removesuffix('.sql')}.{name}"
    for file in sorted((sql_root() / "queries").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".sql")
    for name in dict.fromkeys(re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
]
COMMAND = re.compile(r"(?:\s*--.*\n)*\s*(?:WITH|SELECT|INSERT|UPDATE|DELETE)\b")
"""What EXPLAIN takes. The rest makes or grants; a database is not opened without it."""

ONE_SERVER = ("backups.", "roles.")
"""The rooms whose statements are PostgreSQL's alone: SQLite has no roles, and archives nothing."""
VALUES = re.compile(r"\bVALUES \((.*?)\)(?=\s*(?:ON CONFLICT|RETURNING|\Z))", re.DOTALL)
DECODED = {1184: "DateTime", 3802: "JSON"}
"""PostgreSQL's numbers of the types that rows have decoded (pg_type.dat): timestamptz and jsonb."""


def test_both_databases_understand_every_statement_and_let_a_deployment_run_it(database_url: str) -> None:
    """So that a test of what Python does with the rows needs one database only."""
    database = Database.open(database_url)
    refused: dict[str, str] = {}
    explained = 0
    with database.engine.connect() as connection:
        for name in NAMES:
            asked = statement(database.dialect, name)
            if not COMMAND.match(asked.text) or (name.startswith(ONE_SERVER) and database.dialect == "sqlite"):
                continue
            explained += 1
            nothing = dict.fromkeys(asked.compile().params)
            with connection.begin():
                try:
                    connection.execute(sa.text(f"EXPLAIN {asked.text}"), nothing)
                except sa.exc.DBAPIError as error:
                    refused[name] = str(error.orig)
    database.dispose()
    # Migrating is the owner's (docs/adr/021).
    assert set(refused) == ({"schema.record"} if database.dialect == "postgresql" else set()), refused
    assert explained > 240


def test_every_time_and_json_of_a_row_is_decoded_on_both_databases(postgres_url: str, tmp_path: Path) -> None:
    """PostgreSQL says which columns these are; that SQLite has them by these names is what decodes them there."""
    postgresql = Database.open(postgres_url)
    sqlite = Database.open(databases.migrated_sqlite(tmp_path / "kfm.db"))
    wrong: dict[str, Any] = {}
    found = 0
    for name in NAMES:
        if name.startswith(ONE_SERVER):
            continue
        given = {column: DECODED[code] for column, code in _columns(postgresql, name) if code in DECODED}
        found += len(given)
        for database in (sqlite, postgresql):
            typed = getattr(typed_statement(database.dialect, name), "selected_columns", ())
            types = {column.name: type(column.type).__name__ for column in typed}
            decoded = {column: types[column] for column, _ in _columns(database, name) if column in types}
            if decoded != given:
                wrong[f"{database.dialect} {name}"] = (decoded, given)
    postgresql.dispose()
    sqlite.dispose()
    assert wrong == {}
    assert found > 180


def _columns(database: Database, name: str) -> list[tuple[str, int | None]]:
    """Return the names, and PostgreSQL's numbers of the types, of what a statement gives; empty where it gives no rows.

    It runs with nothing given, and inserts nothing: what names its values is made to select them of no row.
    """
    asked = statement(database.dialect, name)
    if not COMMAND.match(asked.text) or ("INSERT INTO" in asked.text and "RETURNING" not in asked.text):
        return []
    selecting = sa.text(VALUES.sub(r"SELECT \1 WHERE FALSE", asked.text))
    given = {parameter: 1 if parameter in {"limit", "most"} else None for parameter in selecting.compile().params}
    with database.engine.connect() as connection, connection.execute(selecting, given) as result:
        return [(column[0], column[1]) for column in result.cursor.description or ()] if result.returns_rows else []
