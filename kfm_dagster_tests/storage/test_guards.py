"""Recorded rows cannot be changed, deleted, truncated or replaced by hand, even by the database's owner.

On both databases a named rule refuses each attempt. `ledger/test_ledger_state_machine.py` tests the ledger's records.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError

from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.measures import MEASURES
from kfm_dagster_tests.databases import unguarded
from kfm_dagster_tests.storage.test_constraints import (
    ANOTHER,
    CLAIMED,
    DAY,
    EVIDENCE,
    HASH,
    INVALIDATED,
    LATER,
    ONE,
    STANDING,
    THREE,
    T,
    insert,
)

pytestmark = pytest.mark.clause("SEC-07")

DERIVED = {
    "catalog_collections", "catalog_pages", "catalog_summaries", "size_peers", "nodd_feeds",
    "nodd_listed_days", "nodd_gaps", "nodd_arrivals",
}  # fmt: skip
"""Tables without a guard, because they can be computed from other tables: counts of Items, sizes of peers, gaps."""
VOCABULARY = {"replay_reasons", "schema_version"}
LEAVING = {"catalog_items", "nodd_wal_leases", "outbox", "clock_readings"}
"""Tables with their own rule for deleting rows."""
SUCCESS = STANDING["run_state"][0]
FAILED = {"outcome": "failed", "artifact_sha256": None, "recorded_at": LATER}
TAKEN_BACK = {**FAILED, "validation_summary": '{"rolled_back_by": "d.p"}'}
AGAIN = {"outcome": "success", "artifact_sha256": HASH, "validation_summary": "{}"}
OTHER_INPUTS = f"sha256:{'b' * 64}"
PENDING = {"content_hash": "c" * 64, "status": "PENDING", "applied_at": None}
"""An unresolved intent."""
PAUSE = "UPDATE replay_runs SET state = 'paused', state_reason = 'x'"
SKIP = f"UPDATE replay_units SET state = 'skipped', skip_reason = 'x', decided_at = '{LATER}'"
ASK = f"UPDATE backfill_days SET state = 'requested', requests = requests + 1, requested_at = '{LATER}'"
LIST = f"UPDATE backfill_days SET state = 'listed', listed_at = '{LATER}', created = 5, requeued = 5"
COUNT = "UPDATE backfill_days SET created = 5, requeued = 5"
SIGNED = "UPDATE nodd_wal_deliveries SET signature ="
WAIT = "UPDATE backfill_days SET state = 'waiting', requests = 0, requested_at = NULL"
RESOLVE = f"UPDATE alerts SET state = 'resolved', resolved_at = '{LATER}'"
TAKE_ON = (
    f"UPDATE alerts SET state = 'acknowledged', acknowledged_at = '{LATER}', acknowledged_by = 'p', "
    "acknowledged_why = 'x'"
)
ALERT = (
    "rule, state, level, opened_at, level_since, last_seen_at, observed, last_event_at, place, acknowledged_at, "
    "acknowledged_by, acknowledged_why"
)
ROLL_BACK = "UPDATE stage_state SET state = 'rolled_back', compensation = '{}'"
AUDIT = (
    "INSERT INTO stage_audit (seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash) "
    "SELECT 2, at, run_id, stage, attempt, 'transition', 'failed>rolled_back', details, earlier, hash, "
    f"'{'b' * 64}' FROM stage_audit"
)
INTEND = (
    "INSERT INTO etl_wal (run_id, node, step, payload, content_hash, status, started_at) "
    f"VALUES ('{ONE}', 'n', 's', '{{}}', '{'d' * 64}', 'FAILED', '{T}')"
)
PUT = (
    "INSERT INTO outbox (topic, consumer, subject, payload, created_at, next_attempt_at, position, turn, failures, "
    f"last_error) VALUES ({{}}, '{{{{}}}}', '{T}', '{T}', {{}})"
)
FOLLOWER, FILES, BACKEND = (
    PUT.format(key, "0, 0, 0, NULL")
    for key in ("'catalog', 'f', 'c1'", "'lineage', 'files', 'b1'", "'lineage', 'backend', 'b1'")
)
REFUSED: list[tuple[Sequence[str], str, str]] = [
    ((), "UPDATE nodd_wal_deliveries SET message_id = 'another'", "deliveries_identity_is_immutable"),
    ((), f"UPDATE nodd_wal_deliveries SET first_received_at = '{LATER}'", "deliveries_identity_is_immutable"),
    ((), "UPDATE nodd_wal_deliveries SET topic_arn = 'another'", "deliveries_identity_is_immutable"),
    ((), "UPDATE nodd_wal_deliveries SET sns_message_id = 'another'", "deliveries_identity_is_immutable"),
    ((), "UPDATE nodd_wal_deliveries SET receive_count = 0", "deliveries_identity_is_immutable"),
    ((), f"UPDATE nodd_wal_deliveries SET landing_sha256 = '{'b' * 64}', receive_count = 9",
     "deliveries_identity_is_immutable"),
    ((f"{SIGNED} 'invalid' WHERE message_id = 'm1'", f"{SIGNED} 'unchecked' WHERE message_id = 'm1'"),
     f"{SIGNED} 'verified', receive_count = 9", "deliveries_identity_is_immutable"),
    ((), f"{SIGNED} NULL WHERE message_id = 'm3'", "deliveries_identity_is_immutable"),
    ((), "UPDATE metric_totals SET amount = 9 WHERE metric = 'nodd_wal_moves'", "totals_only_rise"),
    ((), "UPDATE metric_totals SET amount = 0.5", "totals_only_rise"),
    ((), "UPDATE metric_totals SET subject = 'another'", "totals_only_rise"),
    ((), "UPDATE announcements SET change_id = 1", "announcements_go_on"),
    ((), "UPDATE announcements SET taken = 0, taken_at = NULL", "announcements_go_on"),
    ((), "UPDATE etl_checkpoint SET node = 'another'", "checkpoints_name_what_was_applied"),
    ((PAUSE,), SKIP, "replay_units_are_decided_once"),
    ((), "UPDATE replay_units SET state = 'selected'", "replay_units_are_decided_once"),
    ((SKIP,), SKIP, "replay_units_are_decided_once"),
    ((), LIST, "backfill_days_only_go_on"),
    ((ASK,), WAIT, "backfill_days_only_go_on"),
    ((ASK, ASK), "UPDATE backfill_days SET requests = 1", "backfill_days_only_go_on"),
    ((ASK, COUNT), "UPDATE backfill_days SET created = 4", "backfill_days_only_go_on"),
    ((ASK, COUNT), "UPDATE backfill_days SET requeued = 4", "backfill_days_only_go_on"),
    ((ASK, LIST), "UPDATE backfill_days SET listed = 9", "backfill_days_only_go_on"),
    ((), INTEND, "etl_wal_begins_pending"),
    ((), INTEND.replace("'FAILED'", "'APPLIED'"), "etl_wal_begins_pending|etl_wal_applied_has_a_time"),
    ((), f"UPDATE etl_wal SET status = 'APPLIED', applied_at = '{T}' WHERE status = 'PENDING'",
     "etl_wal_applied_has_an_output"),
    ((), "UPDATE etl_wal SET node = 'another'", "etl_wal_move_is_legal"),
    ((), "UPDATE node_output SET record = '{\"a\": 1}'", "node_output_is_immutable"),
    ((), "UPDATE node_output SET valid_from = '2020-01-01T00:00:00Z'", "node_output_is_immutable"),
    ((), f"UPDATE etl_checkpoint SET last_applied_hash = '{'c' * 64}'", "checkpoints_name_what_was_applied"),
    ((), "UPDATE catalog_items SET updated_at = updated_at", "catalog_items_revision_grows_by_one"),
    ((), "UPDATE catalog_items SET revision = revision + 2", "catalog_items_revision_grows_by_one"),
    ((), "UPDATE catalog_items SET revision = revision + 1, page = 2", "catalog_items_keep_their_home"),
    ((), "UPDATE catalog_promotions SET old_page = 9", "undo_log_is_append_only"),
    ((), "UPDATE lineage_batches SET state = 'published', published_at = NULL", "lineage_batches_"),
    ((), "UPDATE lineage_batches SET delivery = 'pending'", "lineage_batches_only_go_on"),
    ((), "DELETE FROM outbox", "outbox_leaves_when_delivered"),
    ((FILES, "UPDATE outbox SET turn = 1"),
     "DELETE FROM outbox WHERE topic = 'lineage'", "outbox_leaves_when_delivered"),
    ((BACKEND, f"UPDATE lineage_batches SET state = 'published', published_at = '{LATER}'"),
     "DELETE FROM outbox WHERE topic = 'lineage'", "outbox_leaves_when_delivered"),
    ((FOLLOWER, "UPDATE outbox SET turn = 1"), "DELETE FROM outbox WHERE topic = 'catalog'",
     "outbox_leaves_when_delivered"),
    ((FOLLOWER, "UPDATE outbox SET position = 1 WHERE topic = 'catalog'"),
     "UPDATE outbox SET position = 2 WHERE topic = 'catalog'", "followers_are_behind"),
    ((), PUT.format("'catalog', 'f', 'c1'", "0, 1, 0, NULL"), "outbox_begins_undelivered"),
    ((), PUT.format("'catalog', 'f', 'c1'", "1, 0, 0, NULL"), "outbox_begins_undelivered"),
    ((), PUT.format("'catalog', 'f', 'c1'", "0, 0, 1, 'x'"), "outbox_begins_undelivered"),
    (("UPDATE outbox SET turn = 2",), "UPDATE outbox SET turn = 1", "outbox_keeps_its_content"),
    ((), "UPDATE alerts SET level = 'info'", "alerts_move_is_legal"),
    ((), "UPDATE alerts SET notifications = notifications + 2", "alerts_move_is_legal"),
    ((), TAKE_ON.replace("state = 'acknowledged', ", ""), "alerts_move_is_legal"),
    ((TAKE_ON,), "UPDATE alerts SET state = 'firing'", "alerts_move_is_legal"),
    ((RESOLVE,), "UPDATE alerts SET state = 'firing', resolved_at = NULL", "alerts_move_is_legal"),
    ((TAKE_ON, RESOLVE), "UPDATE alerts SET state = 'acknowledged', resolved_at = NULL", "alerts_move_is_legal"),
    ((TAKE_ON,), f"INSERT INTO alerts (subject, {ALERT}) SELECT 'x', {ALERT} FROM alerts", "alerts_begin_firing"),
    ((), ROLL_BACK, "stage_state_move_is_audited"),
    ((AUDIT,), f"{ROLL_BACK}, idempotency_key = '{'b' * 64}'", "stage_state_move_is_legal"),
    ((AUDIT,), f"{ROLL_BACK}, input_hashes = '[1]'", "stage_state_move_is_legal"),
]  # fmt: skip
"""Legal statements that prepare the state, a statement typed by hand, and the rule that refuses this statement."""
APPEND_ONLY = {
    "catalog_kept_files": "undo_log_is_append_only",
    "deployment": "deployment_is_kept",
    "governance_log": "governance_log_is_append_only",
    "ignored_records": "ignored_records_are_kept",
    "lineage_emissions": "lineage_is_append_only",
    "nodd_wal_delivery_units": "delivery_units_are_append_only",
    "nodd_wal_outcomes": "outcomes_are_append_only",
    "nodd_wal_supersessions": "supersessions_are_append_only",
    "nodd_wal_transitions": "history_is_append_only",
    "rejected_messages": "rejections_are_append_only",
    "stage_audit": "stage_audit_is_append_only",
}
KEPT = APPEND_ONLY | {
    "alerts": "alerts_are_kept",
    "announcements": "announcements_are_kept",
    "backfill_days": "backfill_days_are_kept",
    "etl_checkpoint": "checkpoints_are_kept",
    "etl_wal": "etl_wal_is_append_only",
    "kill_switches": "kill_switches_are_kept",
    "lineage_batches": "lineage_is_append_only",
    "metric_totals": "totals_only_rise",
    "nodd_wal_deliveries": "deliveries_are_kept",
    "nodd_wal_records": "records_are_kept",
    "node_output": "node_output_is_kept",
    "quarantine_cases": "cases_are_kept",
    "replay_runs": "replay_runs_are_kept",
    "replay_units": "replay_units_are_kept",
    "run_state": "run_state_is_kept",
    "stage_state": "stage_state_is_kept",
}
"""The rule that refuses DELETE and TRUNCATE of a table, and UPDATE if the table is append-only."""
BY_ITS_RULE = (
    "nodd_wal_deliveries rejected_messages announcements lineage_batches backfill_days governance_log ignored_records "
    "nodd_wal_outcomes nodd_wal_supersessions"
)
REPLACED = {table: KEPT[table] for table in BY_ITS_RULE.split()} | {
    "alerts": "alerts_(are_kept|begin_firing)",
    "run_state": "run_state_success_is_kept",
    "stage_state": "stage_state_(is_kept|begins_pending)",
    "catalog_items": "catalog_items_revision_grows_by_one",
    "catalog_promotions": "undo_log_is_append_only",
    "nodd_wal_leases": "leases_are_of_claims",
    "etl_steps": "etl_steps_are_kept",
    "clock_readings": "clock_readings_are_append_only",
    "replay_runs": "replay_runs_are_kept|replay_begins_planned",
    "replay_units": "replay_units_are_(kept|frozen)",
    "kill_switches": "kill_switches_one_open_per_dataset",
    "nodd_wal_transitions": "history_is_written_by_the_ledger",
    "quarantine_cases": "cases_are_opened_by_the_ledger",
    "stage_audit": "stage_audit_is_chained",
}
"""The rule against INSERT OR REPLACE, which bypasses keys on SQLite."""
BY_ONE_KEY = {
    "INTO governance_log (entry_id, at, actor, action, reason, details) SELECT entry_id, at, 'forged', action, reason, "
    "details FROM governance_log": "governance_log_is_append_only",
    "INTO governance_log (at, actor, action, wal_id, record_version, from_status, to_status, reason, change_ref, "
    "details) SELECT at, 'forged', action, wal_id, record_version, from_status, to_status, reason, change_ref, details "
    "FROM governance_log WHERE wal_id IS NOT NULL": "governance_log_is_append_only",
    "INTO kill_switches (switch_id, dataset, engaged_at, engaged_by, reason) SELECT switch_id, 'another', engaged_at, "
    "'forged', reason FROM kill_switches": "kill_switches_one_open_per_dataset",
    "INTO lineage_emissions SELECT 'another', path, revision, lineage_id, batch_id, NULL FROM lineage_emissions": (
        "lineage_emissions_id_names_one_unit"
    ),
    "INTO kill_switches (dataset, engaged_at, engaged_by, reason) SELECT dataset, engaged_at, 'forged', reason FROM "
    "kill_switches": "kill_switches_one_open_per_dataset",
}
"""Statements of INSERT OR REPLACE and their rules for tables with two keys; a row can be replaced by either key."""
IGNORED = {
    "lineage_emissions": "SELECT wal_id, path, revision, 'x' || lineage_id, batch_id, NULL FROM lineage_emissions",
    "catalog_kept_files": "SELECT sha256, content, content_bytes + 1 FROM catalog_kept_files",
}
"""Rows that writers insert repeatedly: INSERT OR REPLACE of such a row succeeds, but changes nothing."""
LEGAL = {
    ("running", "paused"), ("running", "stopped"), ("running", "finished"), ("paused", "running"),
    ("paused", "stopped"), ("stopped", "running"),
}  # fmt: skip
"""Every change of a replay's state that a person may request; a planned replay starts without a request."""
WAY = {
    "planned": [],
    "running": ["running"],
    "paused": ["running", "paused"],
    "stopped": ["running", "stopped"],
    "finished": ["running", "finished"],
}
"""The states through which a replay reaches each state."""


@dataclass(frozen=True)
class Guarded:
    """A table's guard: an accepted change, other columns that may change, and columns set once."""

    rule: str
    change: Mapping[str, Any]
    besides: str = ""
    once: Collection[str] = ()
    row: int = 0

    @property
    def moving(self) -> set[str]:
        return {*self.change, *self.besides.split()}


RELEASED = {"released_at": LATER, "released_by": "p", "release_reason": "x"}
PUBLISHED = {"state": "published", "published_at": LATER, **INVALIDATED}
GUARDED = {
    "nodd_wal_records": Guarded(
        "identity_is_immutable|findings_end_an_attempt",
        {**CLAIMED, "version": 2, "attempts": 1},
        "last_error_code last_error_message replay_reason updated_at next_attempt_at changed_by change_reason lane "
        "replay_run_id batch_limit",
        row=1,
    ),
    "etl_steps": Guarded("etl_steps_are_only_published", {"batch_id": "b1"}, once={*MEASURES, "batch_id", "ended_at"}),
    "replay_runs": Guarded(
        "replay_runs_identity_is_immutable",
        {"state": "paused", "state_reason": "x"},
        "mismatches_seen updated_at finished_at",
    ),
    "replay_units": Guarded(
        "replay_units_are_decided_once",
        {"state": "skipped", "skip_reason": "x", "decided_at": LATER},
        "admitted_version",
    ),
    "backfill_days": Guarded(
        "backfill_days_only_go_on",
        {"state": "requested", "requests": 1, "requested_at": LATER},
        "listed_at listed left_out created requeued",
    ),
    "kill_switches": Guarded("kill_switches_only_close", RELEASED, once=RELEASED),
    "quarantine_cases": Guarded(
        "cases_are_filled_and_closed_once", EVIDENCE, "state closed_at closing_entry", once=EVIDENCE
    ),
    "announcements": Guarded(
        "announcements_go_on",
        {"attempts": 1},
        "change_id kind event_id state known failing_since last_error body taken taken_at",
    ),
    "catalog_promotions": Guarded("undo_log_is_append_only", {"withdrawn_at": LATER}, once=["withdrawn_at"]),
    "lineage_batches": Guarded("lineage_batches_only_go_on", PUBLISHED, "delivery", once=PUBLISHED),
    "alerts": Guarded(
        "alerts_move_is_legal",
        {"notifications": 2},
        "state level level_since last_seen_at observed last_event_at run_id place last_notified_at acknowledged_at "
        "acknowledged_by acknowledged_why resolved_at",
    ),
    "outbox": Guarded("outbox_keeps_its_content", {"position": 1}, "payload turn failures next_attempt_at last_error"),
}
OTHER = {T: LATER, LATER: T, DAY: "2025-12-04", HASH: "b" * 64, ONE: THREE, "{}": '{"a": 1}', "p1": "p2"}
"""Another value for each value of the rows, of a type that PostgreSQL accepts."""
GENERATED = "can only be updated to DEFAULT"
"""The error by which PostgreSQL refuses a change of a generated key, before any guard."""


@pytest.fixture
def typed(database: Database) -> Iterator[Connection]:
    """A database with rows in every table; typed changes are rolled back."""
    with database.engine.connect() as connection, connection.begin() as typing:
        with unguarded(connection, *STANDING):
            for table, rows in STANDING.items():
                for row in rows:
                    insert(connection, table, row)
            insert(connection, "etl_wal", {**STANDING["etl_wal"][0], **PENDING})
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        yield connection
        typing.rollback()


def test_no_row_of_an_evidence_table_can_be_deleted(typed: Connection) -> None:
    accepted = []
    for table in sorted(set(sa.inspect(typed).get_table_names()) - DERIVED - VOCABULARY):
        statements = [] if table in LEAVING else [f"DELETE FROM {table}"]
        if typed.dialect.name == "postgresql":
            statements.append(f"TRUNCATE {table} CASCADE")
        accepted += [statement for statement in statements if _refusal(typed, statement) is None]
    assert accepted == []


@pytest.mark.clause("SEC-02", "WSM-17", "OPR-19")
def test_kept_rows_are_protected_by_the_rule_of_their_table(typed: Connection) -> None:
    """Each refusal must name this rule, because a foreign key protects only referenced rows."""
    statements = [(f"DELETE FROM {table}", rule) for table, rule in KEPT.items()]
    if typed.dialect.name == "postgresql":
        statements += [(f"TRUNCATE {table} CASCADE", rule) for table, rule in KEPT.items()]
    refusals = {(statement, rule): str(_refusal(typed, statement)) for statement, rule in statements}
    for table, rule in APPEND_ONLY.items():
        for column in sa.inspect(typed).get_columns(table):
            for verb in ("UPDATE", "UPDATE OR REPLACE")[: 2 if typed.dialect.name == "sqlite" else 1]:
                change = sa.text(f"{verb} {table} SET {column['name']} = :other")
                other = _other(column, STANDING[table][0].get(column["name"]))
                refusal = _try(typed, partial(typed.execute, change, {"other": other}))
                refusals[f"{change} ({other})", f"{rule}|{GENERATED}"] = str(refusal)
    assert [(typed_, message) for (typed_, rule), message in refusals.items() if not re.search(rule, message)] == []


def test_each_illegal_statement_is_refused_by_the_expected_rule(typed: Connection) -> None:
    faults = []
    for before, statement, rule in REFUSED:
        with typed.begin_nested() as savepoint:
            for earlier in before:
                typed.exec_driver_sql(earlier)
            refusal = str(_refusal(typed, statement))
            faults += [] if re.search(rule, refusal) else [f"{statement}: {refusal}; expected {rule}"]
            savepoint.rollback()
    assert not faults, "\n".join(faults)


@pytest.mark.one_database
def test_no_row_is_replaced_on_sqlite(typed: Connection) -> None:
    replaced = {table: _refusal(typed, f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}") for table in REPLACED}
    assert [
        (table, message) for table, message in replaced.items() if not re.search(REPLACED[table], str(message))
    ] == []
    for statement, rule in BY_ONE_KEY.items():
        assert rule in str(_refusal(typed, f"INSERT OR REPLACE {statement}"))
    for table, forged in IGNORED.items():
        stored = typed.exec_driver_sql(f"SELECT * FROM {table}").all()
        typed.exec_driver_sql(f"INSERT OR REPLACE INTO {table} {forged}")
        assert typed.exec_driver_sql(f"SELECT * FROM {table}").all() == stored != []
    second = f"SELECT fact, '{'b' * 32}', at, actor, reason FROM deployment WHERE fact = 'id'"
    assert "deployment_has_one_id" in str(_refusal(typed, f"INSERT OR REPLACE INTO deployment {second}"))


@pytest.mark.clause("RSP-04")
def test_a_success_is_overwritten_only_by_a_rollback_or_a_run_with_other_inputs(typed: Connection) -> None:
    for change, refused_change in [
        ({"outcome": "skipped"}, True),
        ({"outcome": "success", "recorded_at": LATER}, True),
        ({"outcome": "partial"}, True),
        (FAILED, True),
        ({**FAILED, "validation_summary": '{"rolled_back_by": null}'}, True),
        ({"validation_summary": '{"rolled_back_by": "d.p"}'}, True),
        ({"run_id": "r2"}, True),
        ({"dataset_id": "d.p", "inputs_hash": OTHER_INPUTS}, True),
        ({"outcome": "skipped", "inputs_hash": OTHER_INPUTS}, True),
        ({**TAKEN_BACK, "artifact_uri": "a"}, True),
        (TAKEN_BACK, False),
        ({**FAILED, "inputs_hash": OTHER_INPUTS}, False),
        ({"outcome": "success", "inputs_hash": OTHER_INPUTS}, False),
    ]:
        refusals = [(_changed(typed, "run_state", change), refused_change)]
        if typed.dialect.name == "sqlite":
            is_another = not change.keys().isdisjoint({"run_id", "dataset_id"})
            replace = partial(insert, typed, "run_state", {**SUCCESS, **change}, verb="OR REPLACE")
            refusals.append((_try(typed, replace), refused_change and not is_another))
        for refusal, expected in refusals:
            assert (refusal is not None) == expected, (change, refusal)
            assert refusal is None or "run_state_success_is_kept" in refusal


def test_a_failure_is_overwritten_by_any_outcome(typed: Connection) -> None:
    assert _changed(typed, "run_state", {**FAILED, "inputs_hash": OTHER_INPUTS}, keep=True) is None
    for change in ({"outcome": "skipped"}, {"outcome": "partial"}):
        assert _changed(typed, "run_state", change) is None
        if typed.dialect.name == "sqlite":
            other = {**SUCCESS, **FAILED, "inputs_hash": OTHER_INPUTS, **change}
            insert(typed, "run_state", other, verb="OR REPLACE")


def test_a_rolled_back_state_stays_rolled_back(typed: Connection) -> None:
    assert _changed(typed, "run_state", TAKEN_BACK, keep=True) is None
    for change in (AGAIN, {**AGAIN, "inputs_hash": OTHER_INPUTS}, {"validation_summary": "{}"}):
        assert "run_state_success_is_kept" in str(_changed(typed, "run_state", change)), change
    assert _changed(typed, "run_state", {**TAKEN_BACK, "validation_summary": '{"rolled_back_by": "d.q"}'}) is None


def test_a_checkpoint_names_applied_content(typed: Connection) -> None:
    content = PENDING["content_hash"]
    insert(typed, "node_output", {**STANDING["node_output"][0], "content_hash": content})
    move = f"UPDATE etl_checkpoint SET last_applied_hash = '{content}'"
    another = f"INSERT INTO etl_checkpoint (node, last_applied_hash, updated_at) VALUES ('n2', '{content}', '{LATER}')"
    for statement in (move, another):
        assert "checkpoints_name_what_was_applied" in str(_refusal(typed, statement))
    _update(typed, "etl_wal", {"status": "APPLIED", "applied_at": LATER}, content_hash=content)
    for statement in (move, another):
        assert _refusal(typed, statement) is None


def test_an_item_can_be_deleted_only_when_its_promotion_is_undone(typed: Connection) -> None:
    delete, withdraw = (
        "DELETE FROM catalog_items",
        f"UPDATE catalog_promotions SET withdrawn_at = '{T}' WHERE promotion_id",
    )
    typed.exec_driver_sql(f"{withdraw} = 2")
    assert "items_leave_by_an_undo" in str(_refusal(typed, delete))
    typed.exec_driver_sql(f"{withdraw} = 1")
    assert _refusal(typed, delete) is None


def test_a_lease_needs_current_claims(typed: Connection) -> None:
    lease = STANDING["nodd_wal_leases"][0]
    extend = "UPDATE nodd_wal_leases SET expires_at = '2025-12-04T00:00:00.000000Z'"
    another = "UPDATE nodd_wal_leases SET worker_id = 'another'"
    drop = "DELETE FROM nodd_wal_leases"
    assert "leases_are_of_claims" in str(_refusal(typed, extend))
    assert _refusal(typed, drop) is None
    held = {**CLAIMED, "ingest_run_id": lease["ingest_run_id"], "worker_id": lease["worker_id"]}
    with unguarded(typed, "nodd_wal_records"):
        _update(typed, "nodd_wal_records", held, wal_id=ONE)
    assert _refusal(typed, extend) is None
    for statement in (another, drop):
        assert "leases_are_of_claims" in str(_refusal(typed, statement))
    begun = "INSERT INTO nodd_wal_leases (ingest_run_id, dataset, worker_id, acquired_at, renewed_at, expires_at) "
    values = "SELECT 'another', dataset, worker_id, acquired_at, renewed_at, expires_at FROM nodd_wal_leases"
    assert "leases_are_of_claims" in str(_refusal(typed, begun + values))


@pytest.fixture
def planned(typed: Connection) -> Connection:
    """Add a second, planned replay."""
    insert(typed, "replay_runs", {**STANDING["replay_runs"][0], **ANOTHER["replay_runs"], "state": "planned"})
    return typed


def test_a_replay_starts_as_planned_and_its_units_as_undecided(planned: Connection) -> None:
    unit = {**STANDING["replay_units"][0], "replay_run_id": "p2"}
    decided = {"state": "skipped", "skip_reason": "x", "decided_at": T}
    begun: list[tuple[str, dict[str, Any], str]] = [
        ("replay_runs", {"state": "running"}, "replay_begins_planned: p3: null > running"),
        ("replay_runs", {"state": "planned", "mismatches_seen": 1}, "replay_begins_planned"),
        ("replay_runs", {"state": "planned", "updated_at": LATER}, "replay_begins_planned"),
        ("replay_units", {**unit, **decided}, "replay_units_are_frozen"),
    ]
    for table, row, rule in begun:
        with pytest.raises(DBAPIError, match=rule), planned.begin_nested():
            insert(planned, table, {**STANDING[table][0], "replay_run_id": "p3", **row})
    insert(planned, "replay_units", unit)
    assert "replay_units_are_decided_once" in str(_refusal(planned, f"{SKIP} WHERE replay_run_id = 'p2'"))
    _go(planned, "running")
    with pytest.raises(DBAPIError, match="replay_units_are_frozen"), planned.begin_nested():
        insert(planned, "replay_units", {**unit, **ANOTHER["replay_units"]})


@pytest.mark.clause("RPL-05")
def test_every_illegal_hand_typed_change_of_a_replay_is_refused(planned: Connection) -> None:
    for before, after in itertools.product(ReplayState, ReplayState):
        with planned.begin_nested() as savepoint:
            for state in WAY[before]:
                _go(planned, state)
            if (before, after) in LEGAL | {("planned", "running")}:
                _go(planned, after)
            else:
                with pytest.raises(DBAPIError, match=f"illegal_transition: p2: {before} > {after}"):
                    _go(planned, after)
            savepoint.rollback()


MOVES = {
    ("PENDING", "APPLIED"), ("PENDING", "SKIPPED"), ("PENDING", "FAILED"), ("FAILED", "APPLIED"), ("FAILED", "SKIPPED"),
}  # fmt: skip


@pytest.mark.clause("IEN-03", "IEN-04", "IEN-08")
def test_an_intent_changes_only_by_the_published_transitions(typed: Connection) -> None:
    insert(typed, "node_output", {**STANDING["node_output"][0], "content_hash": PENDING["content_hash"]})
    statuses = ["PENDING", "APPLIED", "SKIPPED", "FAILED"]
    for begin, end in itertools.product(statuses, statuses):
        with typed.begin_nested() as savepoint:
            for status in (begin, end) if begin != "PENDING" else (end,):
                change = {"status": status, "applied_at": T if status == "APPLIED" else None}
                refused = _changed(typed, "etl_wal", change, keep=True, content_hash=PENDING["content_hash"])
            assert (refused is None) == ((begin, end) in MOVES), (begin, end, refused)
            assert refused is None or "etl_wal_move_is_legal" in refused
            savepoint.rollback()


@pytest.mark.clause("SEC-02", "BEY-06", "WAL-04", "WAL-07", "WAL-10")
def test_each_immutable_column_is_protected_by_its_table_s_guard(typed: Connection) -> None:
    """Every column is protected by its table's guard, or listed in GUARDED as changeable."""
    for table, guarded in GUARDED.items():
        with typed.begin_nested() as savepoint:
            _hold_guard(typed, table, guarded)
            savepoint.rollback()


def _hold_guard(typed: Connection, table: str, guarded: Guarded) -> None:
    """Check that the guard refuses every change except the accepted change, and keeps values that are set once."""
    row = STANDING[table][guarded.row]
    key = [name for name in sa.inspect(typed).get_pk_constraint(table)["constrained_columns"] if name in row]
    where = {name: row[name] for name in key}
    columns = {column["name"]: column for column in sa.inspect(typed).get_columns(table)}
    assert guarded.moving < columns.keys()
    for column in sorted(columns.keys() - guarded.moving):
        change = {**guarded.change, column: _other(columns[column], row.get(column))}
        with pytest.raises(DBAPIError, match=f"{guarded.rule}|{GENERATED}"), typed.begin_nested():
            _update(typed, table, change, **where)
    _update(typed, table, guarded.change, **where)
    for column in sorted(guarded.once):
        for value in (None, _other(columns[column], {**row, **guarded.change}[column])):
            with pytest.raises(DBAPIError, match=guarded.rule), typed.begin_nested():
                _update(typed, table, {column: value}, **where)


def _changed(
    connection: Connection, table: str, change: Mapping[str, Any], *, keep: bool = False, **where: Any
) -> str | None:
    return _try(connection, lambda: _update(connection, table, change, **where), keep=keep)


def _update(connection: Connection, table: str, change: Mapping[str, Any], **where: Any) -> None:
    statement = sa.update(sa.table(table, *map(sa.column, {**change, **where}))).values(change)
    connection.execute(statement.where(*(sa.column(name) == value for name, value in where.items())))


def _refusal(connection: Connection, statement: str) -> str | None:
    return _try(connection, lambda: connection.exec_driver_sql(statement))


def _try(connection: Connection, act: Callable[[], Any], *, keep: bool = False) -> str | None:
    """Execute and roll back; return the database's refusal, or None."""
    with connection.begin_nested() as savepoint:
        try:
            act()
        except DBAPIError as error:
            savepoint.rollback()
            return str(error.orig)
        if not keep:
            savepoint.rollback()
    return None


def _go(connection: Connection, state: str) -> None:
    """Set the state and all columns that the state requires, so that only the transition can be refused."""
    reason = "x" if state in {"paused", "stopped"} else None
    finished_at = LATER if state == "finished" else None
    change = {"state": str(state), "state_reason": reason, "finished_at": finished_at}
    _update(connection, "replay_runs", change, replay_run_id="p2")


def _other(column: ReflectedColumn, value: Any) -> Any:
    """Return another possible value of the column."""
    if value is None:
        return {int: 9, bool: True, datetime: LATER}.get(column["type"].python_type, "another")
    if isinstance(value, bool):
        return not value
    if isinstance(value, bytes):
        return value + b"y"
    if isinstance(value, int | float):
        return value + 7
    return OTHER.get(value, "another")
