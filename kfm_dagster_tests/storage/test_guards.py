"""The triggers of replays and backfills refuse what a person types by hand, on both databases, each by its rule.

Those of records, history, governance, cases and lineage are tripped in their rooms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.storage.test_constraints import ANOTHER, LATER, STANDING, T, insert

RUN = f"UPDATE replay_runs SET state = 'running', updated_at = '{LATER}'"
PAUSE = "UPDATE replay_runs SET state = 'paused', state_reason = 'x'"
SKIP = f"UPDATE replay_units SET state = 'skipped', skip_reason = 'x', decided_at = '{LATER}'"
CANCEL = f"UPDATE backfills SET state = 'cancelled', ended_at = '{LATER}'"
ASK = f"UPDATE backfill_days SET state = 'requested', requests = requests + 1, requested_at = '{LATER}'"
LIST = f"UPDATE backfill_days SET state = 'listed', listed_at = '{LATER}', created = 5, requeued = 5"
COUNT = "UPDATE backfill_days SET created = 5, requeued = 5"
WAIT = "UPDATE backfill_days SET state = 'waiting', requests = 0, requested_at = NULL"

GUARDS: list[tuple[Sequence[str], str, str]] = [
    ((RUN,), f"{PAUSE}, spec = '{{\"a\": 1}}'", "replay_runs_identity_is_immutable"),
    ((RUN,), f"{PAUSE}, actor = 'another'", "replay_runs_identity_is_immutable"),
    ((RUN,), f"{PAUSE}, change_ref = 'C-9'", "replay_runs_identity_is_immutable"),
    ((), "DELETE FROM replay_runs", "replay_runs_are_kept"),
    ((), SKIP, "replay_units_are_decided_once"),
    ((RUN, PAUSE), SKIP, "replay_units_are_decided_once"),
    ((RUN,), f"{SKIP}, batch = 9", "replay_units_are_decided_once"),
    ((RUN,), f"{SKIP}, selected_version = 9", "replay_units_are_decided_once"),
    ((RUN,), "UPDATE replay_units SET state = 'selected'", "replay_units_are_decided_once"),
    ((RUN, SKIP), SKIP, "replay_units_are_decided_once"),
    ((), "DELETE FROM replay_units", "replay_units_are_kept"),
    ((), "UPDATE backfills SET actor = 'another'", "backfills_only_end"),
    ((), f"{CANCEL}, reason = 'another'", "backfills_only_end"),
    ((CANCEL,), CANCEL, "backfills_only_end"),
    ((CANCEL,), "UPDATE backfills SET state = 'running', ended_at = NULL", "backfills_only_end"),
    ((), "DELETE FROM backfills", "backfills_are_kept"),
    ((), LIST, "backfill_days_only_go_on"),
    ((ASK,), WAIT, "backfill_days_only_go_on"),
    ((ASK, ASK), "UPDATE backfill_days SET requests = 1", "backfill_days_only_go_on"),
    ((ASK, COUNT), "UPDATE backfill_days SET created = 4", "backfill_days_only_go_on"),
    ((ASK, COUNT), "UPDATE backfill_days SET requeued = 4", "backfill_days_only_go_on"),
    ((ASK,), "UPDATE backfill_days SET day = '2025-12-04'", "backfill_days_only_go_on"),
    ((ASK, LIST), "UPDATE backfill_days SET listed = 9", "backfill_days_only_go_on"),
    ((), "DELETE FROM backfill_days", "backfill_days_are_kept"),
]
"""What is done first and is legal, what is typed then, and the rule that refuses it."""
KEPT = {
    "replay_runs": "replay_runs_are_kept",
    "replay_units": "replay_units_are_(kept|frozen)",
    "backfills": "backfills_are_kept",
    "backfill_days": "backfill_days_are_kept",
}
LEGAL = {
    ("planned", "running"), ("running", "paused"), ("running", "stopped"), ("running", "finished"),
    ("paused", "running"), ("paused", "stopped"), ("stopped", "running"),
}  # fmt: skip
WAY = {
    "planned": [],
    "running": ["running"],
    "paused": ["running", "paused"],
    "stopped": ["running", "stopped"],
    "finished": ["running", "finished"],
}
"""How a replay gets into each state."""


@pytest.fixture
def typed(database: Database) -> Iterator[Connection]:
    """A replay that is planned and a backfill that runs; nothing stays of what is typed."""
    rows: dict[str, dict[str, Any]] = {
        table: dict(STANDING[table][0])
        for table in ("nodd_wal_records", "replay_runs", "replay_units", "backfills", "backfill_days")
    }
    rows["replay_runs"]["state"] = "planned"
    with database.engine.begin() as connection:
        for table, row in rows.items():
            insert(connection, table, row)
    with database.engine.connect() as connection, connection.begin() as typing:
        yield connection
        typing.rollback()


def test_each_guard_refuses_by_its_rule(typed: Connection) -> None:
    for before, statement, rule in GUARDS:
        with typed.begin_nested() as savepoint:
            for earlier in before:
                typed.exec_driver_sql(earlier)
            with pytest.raises(DBAPIError, match=rule):
                typed.exec_driver_sql(statement)
            savepoint.rollback()


@pytest.mark.parametrize("table", KEPT)
def test_no_row_is_emptied_or_replaced(typed: Connection, table: str) -> None:
    take = f"TRUNCATE {table} CASCADE"
    if typed.dialect.name == "sqlite":
        take = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"
    with pytest.raises(DBAPIError, match=KEPT[table]):
        typed.exec_driver_sql(take)


def test_a_replay_begins_planned_and_a_unit_undecided_before_it_runs(typed: Connection) -> None:
    replay = {**STANDING["replay_runs"][0], **ANOTHER["replay_runs"]}
    planned = {**replay, "state": "planned"}
    unit = {**STANDING["replay_units"][0], "replay_run_id": "p2"}
    wrong = [
        (replay, "replay_begins_planned: p2: null > running"),
        ({**planned, "mismatches_seen": 1}, "replay_begins_planned"),
        ({**planned, "updated_at": LATER}, "replay_begins_planned"),
    ]
    for row, rule in wrong:
        with pytest.raises(DBAPIError, match=rule), typed.begin_nested():
            insert(typed, "replay_runs", row)
    insert(typed, "replay_runs", planned)
    decided = {**unit, "state": "skipped", "skip_reason": "x", "decided_at": T}
    with pytest.raises(DBAPIError, match="replay_units_are_frozen"), typed.begin_nested():
        insert(typed, "replay_units", decided)
    typed.exec_driver_sql(RUN)
    with pytest.raises(DBAPIError, match="replay_units_are_frozen"), typed.begin_nested():
        insert(typed, "replay_units", unit)


@pytest.mark.clause("RPL-05")
def test_every_change_of_a_replay_that_is_not_legal_is_refused_to_a_hand_too(typed: Connection) -> None:
    for before, after in itertools.product(ReplayState, ReplayState):
        with typed.begin_nested() as savepoint:
            for state in WAY[before]:
                _go(typed, state)
            if (before, after) in LEGAL:
                _go(typed, after)
            else:
                with pytest.raises(DBAPIError, match=f"illegal_transition: p1: {before} > {after}"):
                    _go(typed, after)
            savepoint.rollback()


def _go(connection: Connection, state: str) -> None:
    """Change the state with all that it needs, so that only the change itself can be refused."""
    values = {
        "state": str(state),
        "reason": "x" if state in {"paused", "stopped"} else None,
        "finished": LATER if state == "finished" else None,
    }
    connection.execute(
        sa.text("UPDATE replay_runs SET state = :state, state_reason = :reason, finished_at = :finished"), values
    )
