"""Which database errors count as refusals of a value; the class of the error's code decides."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from kfm_dagster.storage.database import Database
from kfm_dagster.storage.refusal import MAX_REASON, refusal_of

TABLE = "CREATE TEMPORARY TABLE refusing (number INTEGER PRIMARY KEY, name TEXT UNIQUE)"
ROW = "INSERT INTO refusing VALUES (1, 'a')"
REFUSED = {
    "sqlite": {
        "a constraint": (ROW, ROW),
        "a value of another type": ("INSERT INTO refusing VALUES ('a number', 'a')",),
        "a value too large": ("SELECT zeroblob(2000000000)",),
        "a rule of a trigger": ("SELECT json_extract('{}', 'no path')",),
    },
    "postgresql": {
        "a data exception": ("SELECT CAST('a number' AS INTEGER)",),
        "a constraint": (ROW, ROW),
        "a row too large for its index": (
            "INSERT INTO refusing SELECT 2, string_agg(md5(i::text), '') FROM generate_series(1, 1000) AS i",
        ),
    },
}


def test_a_database_error_about_a_value_is_a_refusal_in_one_line(database: Database) -> None:
    reasons = {}
    for name, statements in REFUSED[database.dialect].items():
        reasons[name] = refusal_of(failure(database, *statements))
    assert [name for name, reason in reasons.items() if reason is None] == []
    assert all(reason and "\n" not in reason and len(reason) <= MAX_REASON for reason in reasons.values())


@pytest.mark.parametrize("statement", ["SELECT nothing FROM nowhere", "SELECT FROM WHERE"])
def test_an_invalid_statement_is_not_a_refusal(statement: str, database: Database) -> None:
    assert refusal_of(failure(database, statement)) is None


def failure(database: Database, *statements: str) -> DBAPIError:
    """Create the table, run the statements, and return the error of the last statement."""
    with database.engine.connect() as connection:
        for statement in (TABLE, *statements[:-1]):
            connection.exec_driver_sql(statement)
        with pytest.raises(DBAPIError) as failed:
            connection.exec_driver_sql(statements[-1]).all()
        return failed.value
