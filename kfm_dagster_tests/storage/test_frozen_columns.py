"""Every column that may not change is refused by its table's guard, one at a time, on both databases.

A column that no list names may not change, so one that a migration adds needs a guard, or a place in the list. Records
themselves have the same test in `ledger/test_ledger_state_machine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from kfm_dagster.storage.database import Database
from kfm_dagster_tests.storage.test_constraints import (
    ANOTHER,
    DAY,
    EVIDENCE,
    HASH,
    LATER,
    ONE,
    STANDING,
    THREE,
    T,
    insert,
)


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A table's guard: `change` is one that it lets through, `moving` are the columns that it lets change at all."""

    rule: str
    change: Mapping[str, Any]
    moving: frozenset[str]


GUARDED = {
    "replay_runs": Guarded(
        rule="replay_runs_identity_is_immutable",
        change={"state": "paused", "state_reason": "x"},
        moving=frozenset({"state", "state_reason", "mismatches_seen", "updated_at", "finished_at"}),
    ),
    "replay_units": Guarded(
        rule="replay_units_are_decided_once",
        change={"state": "skipped", "skip_reason": "x", "decided_at": LATER},
        moving=frozenset({"state", "skip_reason", "admitted_version", "decided_at"}),
    ),
    "backfills": Guarded(
        rule="backfills_only_end",
        change={"state": "cancelled", "ended_at": LATER},
        moving=frozenset({"state", "ended_at"}),
    ),
    "backfill_days": Guarded(
        rule="backfill_days_only_go_on",
        change={"state": "requested", "requests": 1, "requested_at": LATER},
        moving=frozenset({"state", "requests", "requested_at", "listed_at", "listed", "created", "requeued"}),
    ),
    "kill_switches": Guarded(
        rule="kill_switches_only_close",
        change={"released_at": LATER, "released_by": "p", "release_reason": "x"},
        moving=frozenset({"released_at", "released_by", "release_reason"}),
    ),
    "quarantine_cases": Guarded(
        rule="cases_are_filled_and_closed_once",
        change=EVIDENCE,
        moving=frozenset({*EVIDENCE, "state", "closed_at", "closing_entry"}),
    ),
    "announcements": Guarded(
        rule="announcements_go_on",
        change={"attempts": 1},
        moving=frozenset(
            {
                "change_id",
                "kind",
                "event_id",
                "state",
                "known",
                "attempts",
                "failing_since",
                "last_error",
                "body",
                "taken",
                "taken_at",
            }
        ),
    ),
    "lineage_batches": Guarded(
        rule="lineage_batches_only_go_on",
        change={"state": "published", "published_at": LATER},
        moving=frozenset({"state", "published_at", "delivery"}),
    ),
    "lineage_outbox": Guarded(
        rule="lineage_outbox_keeps_its_content",
        change={"attempts": 1},
        moving=frozenset({"attempts", "next_attempt_at", "last_error", "events_done", "not_taken"}),
    ),
}
KEPT_ONCE_THERE = {
    "quarantine_cases": ("cases_are_filled_and_closed_once", frozenset(EVIDENCE)),
    "lineage_batches": ("lineage_batches_only_go_on", frozenset({"state", "published_at"})),
}
"""Columns that are filled once, after which they are kept, too."""
OTHER = {T: LATER, DAY: "2025-12-04", HASH: "b" * 64, ONE: THREE, "{}": '{"a": 1}', "p1": "p2"}
"""Another value for each that the rows have, of a type that PostgreSQL takes."""
GENERATED = "can only be updated to DEFAULT"
"""What PostgreSQL says first of a key that it makes itself."""


@pytest.mark.clause("SEC-02")
@pytest.mark.parametrize("table", GUARDED)
def test_each_column_that_may_not_change_is_refused_by_the_guard_of_its_table(database: Database, table: str) -> None:
    guarded = GUARDED[table]
    with database.engine.connect() as connection, connection.begin() as typing:
        _fill(connection)
        row = STANDING[table][0]
        columns = {column["name"] for column in sa.inspect(connection).get_columns(table)}
        assert guarded.moving < columns
        for column in sorted(columns - guarded.moving):
            with pytest.raises(DBAPIError, match=f"{guarded.rule}|{GENERATED}"), connection.begin_nested():
                _type(connection, table, {**guarded.change, column: _other(column, row.get(column))})
        _type(connection, table, guarded.change)
        if table in KEPT_ONCE_THERE:
            rule, kept = KEPT_ONCE_THERE[table]
            for column in sorted(kept):
                with pytest.raises(DBAPIError, match=rule), connection.begin_nested():
                    _type(connection, table, {column: None})
        typing.rollback()


def _fill(connection: Connection) -> None:
    """Put the standing rows of every table there, with every guard off meanwhile."""
    guards: list[str] = []
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all()
        guards = [sql for _, sql in found]
        for name, _ in found:
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
    else:
        guards = [f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in STANDING]
        for table in STANDING:
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    for table, rows in STANDING.items():
        for row in rows:
            insert(connection, table, row)
    # For a unit to be moved to: a replay that runs, too.
    insert(connection, "replay_runs", {**STANDING["replay_runs"][0], **ANOTHER["replay_runs"]})
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    for guard in guards:
        connection.exec_driver_sql(guard)


def _type(connection: Connection, table: str, change: Mapping[str, Any]) -> None:
    """Change a table's first row as a person would by hand."""
    row = STANDING[table][0]
    key = [name for name in sa.inspect(connection).get_pk_constraint(table)["constrained_columns"] if name in row]
    statement = sa.update(sa.table(table, *map(sa.column, change))).values(dict(change))
    connection.execute(statement.where(*(sa.column(name) == row[name] for name in key)))


def _other(column: str, value: Any) -> Any:
    """A value that the column could have and has not."""
    if value is None:
        return LATER if column.endswith("_at") else 9 if column.endswith("_id") else "another"
    if isinstance(value, bytes):
        return value + b"y"
    if isinstance(value, int):
        return value + 7
    return OTHER.get(value, "another")
