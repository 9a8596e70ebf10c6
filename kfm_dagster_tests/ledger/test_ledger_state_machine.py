"""Python and both databases enforce the same state machine independently."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from kfm_dagster.alerts.plan import Level
from kfm_dagster.alerts.store import AlertState
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Priority, ProvenanceStatus, StacStatus
from kfm_dagster.errors import IllegalTransitionError
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import (
    OVERRIDES,
    TRANSITIONS,
    Status,
    check_transition,
    why_not_succeeded,
)
from kfm_dagster.storage.statements import migrations
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import LEGAL, Bench
from kfm_dagster_tests.storage.test_constraints import DAY, LATER, STANDING, TWO, T, insert

STATES = ("pending", "in_progress", "succeeded", "failed", "quarantined")
PAIRS = sorted(itertools.product((None, *STATES), (None, *STATES)), key=str)
COMPLETE = {
    "integrity_status": "ok",
    "metadata_status": "suspect",
    "stac_status": "no-op",
    "provenance_status": "partial",
}
# This change meets every other requirement of a transition, so that only the pair of statuses can be illegal.
MOVE = """
UPDATE nodd_wal_records SET
    status = :to, version = version + 1, updated_at = :later, changed_by = 'person', change_reason = 'by hand',
    attempts = attempts + CASE WHEN :to = 'in_progress' THEN 1 ELSE 0 END,
    last_attempt_at = CASE WHEN :to = 'in_progress' THEN :stamp ELSE last_attempt_at END,
    ingest_run_id = 'by-hand', worker_id = 'person', replay_reason = 'test', next_attempt_at = NULL,
    last_error_code = CASE WHEN :to IN ('failed', 'quarantined') THEN 'by_hand' END,
    integrity_status = CASE WHEN status = 'in_progress' THEN 'ok' ELSE integrity_status END,
    metadata_status = CASE WHEN status = 'in_progress' THEN 'ok' ELSE metadata_status END,
    stac_status = CASE WHEN status = 'in_progress' THEN 'created' ELSE stac_status END,
    provenance_status = CASE WHEN status = 'in_progress' THEN 'ok' ELSE provenance_status END
WHERE wal_id = :wal_id
"""
RECORD = STANDING["nodd_wal_records"][0]


def type_record(bench: Bench, *, verb: str = "", **changes: Any) -> None:
    """Insert the record of a newly announced unit, with changes."""
    with bench.database.engine.begin() as connection:
        insert(connection, "nodd_wal_records", {**RECORD, **changes}, verb=verb)


def type_pair(bench: Bench, unit: Envelope, before: str | None, after: str | None) -> None:
    if before is None:
        type_record(bench, wal_id=unit.wal_id, object_uri=unit.object_uri, status=after)
        return
    # psycopg2 writes values as text into the statement, so PostgreSQL needs a cast of each.
    stamp = "CAST(:later AS timestamptz)" if bench.database.dialect == "postgresql" else ":later"
    move = MOVE.replace(":stamp", stamp).replace("= :to,", "= CAST(:to AS text),")
    bench.type_by_hand(move, to=after, later=LATER, wal_id=unit.wal_id)


def refusal_of(action: Callable[[], object]) -> str | None:
    """Return the database's refusal of an action, or None if it accepts it."""
    try:
        action()
    except DBAPIError as error:
        return str(error.orig)
    return None


@pytest.mark.clause("WSM-02")
def test_python_refuses_every_transition_that_is_not_legal() -> None:
    for before, after in itertools.product((None, *STATES), STATES):
        begin, end = Status(before) if before else None, Status(after)
        if (before, after) in LEGAL:
            check_transition("w-1", begin, end)
            continue
        with pytest.raises(IllegalTransitionError, match=f"w-1: {before or 'null'} > {after}") as refused:
            check_transition("w-1", begin, end)
        # The error names the allowed transitions: automatic ones and governed overrides.
        overrides = {(rule.from_status, rule.to_status) for rule in OVERRIDES}
        allowed = {f"{start or 'null'} > {to} (" for start, to in LEGAL | overrides if start == before}
        expected = str(refused.value.expected)
        assert (before, after) in overrides or {part for part in allowed if part in expected} == allowed != set()


@pytest.mark.clause("WSM-01", "WSM-02")
def test_hand_typed_sql_is_refused_for_every_transition_that_is_not_legal(bench: Bench) -> None:
    accepted = set()
    for number, (before, after) in enumerate(PAIRS):
        unit = envelope(number)
        if before is not None:
            bench.bring_to(before, unit)
        as_it_was = bench.ledger.get(unit.wal_id)
        refused = refusal_of(partial(type_pair, bench, unit, before, after))
        if refused is None:
            accepted.add((before, after))
        else:
            assert f"{unit.wal_id}: {before or 'null'} > {after or 'null'}" in refused
            assert bench.ledger.get(unit.wal_id) == as_it_was
    assert accepted == LEGAL == {(rule.from_status, rule.to_status) for rule in TRANSITIONS}


@pytest.mark.clause("WSM-05", "WSM-18")
def test_success_needs_all_four_sub_statuses_in_python_and_in_the_database(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("in_progress", unit)
    columns = tuple(COMPLETE)
    accepted = set()
    for values in itertools.product(CheckStatus, CheckStatus, StacStatus, ProvenanceStatus):
        findings = dict(zip(columns, values, strict=True))
        assignments = ", ".join(f"{name} = '{value}'" for name, value in findings.items())
        with bench.database.engine.connect() as connection:
            refused = refusal_of(
                partial(
                    connection.exec_driver_sql,
                    f"UPDATE nodd_wal_records SET status = 'succeeded', version = version + 1, {assignments}",
                )
            )
            connection.rollback()
        if refused is None:
            accepted.add(values)
        else:
            assert re.search("success_is_complete|failed_item_is_no_success", refused)
        assert (why_not_succeeded(findings) is None) is (values in accepted)
    good = ("ok", "suspect")
    assert accepted == set(itertools.product(good, good, ("created", "updated", "no-op"), ("ok", "partial")))
    assert "stac_status is failed" in str(why_not_succeeded(COMPLETE | {"stac_status": "failed"}))


NO_BEGINNING: list[dict[str, Any]] = [
    {"status": "in_progress"},
    {"attempts": 1},
    {"version": 2},
    {"updated_at": LATER},
    {"last_attempt_at": T},
    *({name: "x"} for name in ("last_error_code", "last_error_message")),
    *({name: "x"} for name in ("stac_item_id", "stac_collection_id", "stac_item_href")),
    {"replay_reason": "retry"},
    {"integrity_status": "ok"},
    {"metadata_status": "suspect"},
    {"stac_status": "created"},
    {"provenance_status": "partial"},
]


@pytest.mark.clause("WSM-03")
def test_a_record_that_does_not_start_as_pending_is_refused(bench: Bench) -> None:
    for change in NO_BEGINNING:
        with pytest.raises(DBAPIError, match="record_begins_pending"):
            type_record(bench, **change)
    assert bench.ledger.find() == []
    type_record(bench)
    assert len(bench.ledger.find()) == 1


@pytest.mark.clause("WSM-01", "WSM-03", "WAL-04")
def test_a_second_record_of_a_unit_is_refused_under_the_same_and_under_another_id(bench: Bench) -> None:
    type_record(bench)
    for wal_id in (RECORD["wal_id"], TWO):
        for verb in ("", "OR REPLACE" if bench.database.dialect == "sqlite" else ""):
            with pytest.raises(DBAPIError):
                type_record(bench, verb=verb, wal_id=wal_id)
    assert [entry.version for entry in bench.ledger.history(RECORD["wal_id"])] == [1]
    other_records = {
        "object_uri": "s3://b/2",
        "dataset": "e",
        "time_range_start": f"{DAY}T11:00:00.000000Z",
        "object_version": "v",
    }
    for number, (name, value) in enumerate(other_records.items(), 2):
        type_record(bench, wal_id=f"{TWO[:-1]}{number}", **{name: value})
    assert len(bench.ledger.find()) == 1 + len(other_records)


STAMP = "version = version + 1, changed_by = 'person', change_reason = 'by hand'"
UNSOUND = {
    "version_rises_by_one": ("failed", "status = 'quarantined', version = version + 2"),
    "version_rises_by_one (unchanged version)": ("failed", "status = 'quarantined'"),
    "attempts_count_claims": ("failed", f"status = 'pending', replay_reason = 'test', attempts = 2, {STAMP}"),
    "attempts_count_claims (uncounted claim)": (
        "pending",
        f"status = 'in_progress', ingest_run_id = 'r', worker_id = 'w', last_attempt_at = updated_at, {STAMP}",
    ),
    "time_goes_on": (
        "failed",
        f"status = 'quarantined', next_attempt_at = NULL, updated_at = '2025-12-03T11:59:59.999999Z', {STAMP}",
    ),
    "claim_is_stamped": (
        "pending",
        f"status = 'in_progress', attempts = 1, ingest_run_id = 'r', worker_id = 'w', {STAMP}",
    ),
    "claim_is_stamped (no claim)": ("failed", f"status = 'quarantined', last_attempt_at = '{LATER}', {STAMP}"),
    "replay_has_reason": ("failed", f"status = 'pending', next_attempt_at = NULL, {STAMP}"),
}


@pytest.mark.clause("WSM-04", "WSM-07", "WAL-07", "WAL-09")
def test_an_unsound_change_is_refused_by_the_named_constraint_and_changes_no_row(bench: Bench) -> None:
    for number, (rule, (state, assignment)) in enumerate(UNSOUND.items()):
        unit = envelope(number)
        as_it_was = bench.bring_to(state, unit)
        with pytest.raises(DBAPIError, match=f"{rule.split(' ')[0]}: {unit.wal_id}: {state} > "):
            bench.type_by_hand(f"UPDATE nodd_wal_records SET {assignment} WHERE wal_id = :id", id=unit.wal_id)
        assert bench.ledger.get(unit.wal_id) == as_it_was


@pytest.mark.one_database
@pytest.mark.clause("WSM-07", "WSM-16")
def test_a_connection_without_foreign_keys_can_write_no_reason_and_no_decision(bench: Bench, tmp_path: Path) -> None:
    """SQLite does not check foreign keys by default; then any reason, and a decision without its change, would pass."""
    bench.bring_to("failed", envelope(1))
    bench.bring_to("quarantined", envelope(2))
    retry = f"UPDATE nodd_wal_records SET status='pending', next_attempt_at=NULL, replay_reason='because', {STAMP}"
    decide = (
        "INSERT INTO governance_log (at, actor, action, wal_id, record_version, from_status, to_status, reason, "
        f"change_ref, details) VALUES ('{T}', 'p', 'release', '{envelope(2).wal_id}', 3, 'quarantined', 'pending', "
        "'x', 'C-1', '{}')"
    )
    typing = sqlite3.connect(tmp_path / "kfm.db", isolation_level=None)
    for statement in (f"{retry} WHERE status = 'failed'", decide):
        with pytest.raises(sqlite3.IntegrityError, match="foreign_keys_are_on"):
            typing.execute(statement)
    typing.close()


VOCABULARIES: dict[str, dict[str, type[StrEnum]]] = {
    "nodd_wal_records": {
        "status": Status,
        "integrity_status": CheckStatus,
        "metadata_status": CheckStatus,
        "stac_status": StacStatus,
        "provenance_status": ProvenanceStatus,
        "priority": Priority,
    },
    "alerts": {"state": AlertState, "level": Level},
}


@pytest.mark.clause("WSM-01", "WSM-02", "PCS-18")
def test_enums_and_check_constraints_have_the_same_values() -> None:
    for dialect, (table, enums) in itertools.product(("sqlite", "postgresql"), VOCABULARIES.items()):
        schema = "\n".join(text for migration in migrations(dialect) for text in migration.statements)
        for column, enum in enums.items():
            [words] = re.findall(rf"\b{table}_{column}_is_known\s+CHECK \(\s*{column} IN \((.*?)\)", schema, re.DOTALL)
            assert set(re.findall("'([^']*)'", words)) == {*enum}


def test_the_built_in_replay_reasons_are_those_of_the_enum(bench: Bench) -> None:
    assert set(bench.ledger.replay_reasons()) == {reason.value for reason in ReplayReason}
