"""Every named statement is one that both databases understand and a deployment may run, over the schema as it is."""

from __future__ import annotations

import re

import sqlalchemy as sa

from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import sql_root, statement

NAMES = [
    f"{file.name.removesuffix('.sql')}.{name}"
    for file in sorted((sql_root() / "queries").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".sql")
    for name in dict.fromkeys(re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
]
COMMAND = re.compile(r"(?:\s*--.*\n)*\s*(?:WITH|SELECT|INSERT|UPDATE|DELETE)\b")
"""What EXPLAIN takes. The rest makes or grants; a database is not opened without it."""

ONE_SERVER = "roles"
"""The room whose statements are PostgreSQL's alone: SQLite has no roles."""


def test_both_databases_understand_every_statement_and_let_a_deployment_run_it(database_url: str) -> None:
    """So that a test of what Python does with the rows needs one database only."""
    database = Database.open(database_url)
    refused: dict[str, str] = {}
    explained = 0
    with database.engine.connect() as connection:
        for name in NAMES:
            asked = statement(database.dialect, name)
            if not COMMAND.match(asked.text) or (name.startswith(f"{ONE_SERVER}.") and database.dialect == "sqlite"):
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
