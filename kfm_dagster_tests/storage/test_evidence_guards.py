"""What is on record is not deleted, emptied or replaced by a hand, on both databases, not even by the tables' owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from kfm_dagster.storage.database import Database
from kfm_dagster_tests.databases import unguarded
from kfm_dagster_tests.storage.test_constraints import CLAIMED, HASH, LATER, ONE, STANDING, insert

pytestmark = pytest.mark.clause("SEC-07")

DERIVED = {
    "catalog_collections", "catalog_followers", "catalog_pages", "catalog_summaries", "size_peers", "nodd_feeds",
    "nodd_listed_days", "nodd_gaps", "nodd_arrivals",
}  # fmt: skip
"""Counts over the Items, written again from them; places of followers, which may begin again; sizes that records have:
what a unit was held against is in its own record; and what the ledger lacks, derived from it."""
VOCABULARY = {"replay_reasons", "schema_version"}
LEAVING = {"catalog_items", "nodd_wal_leases", "lineage_outbox", "clock_readings"}
"""Tables whose rows leave by a rule of their own."""
SUCCESS = STANDING["run_state"][0]
FAILED = {"outcome": "failed", "artifact_sha256": None, "recorded_at": LATER}
TAKEN_BACK = {**FAILED, "validation_summary": '{"rolled_back_by": "d.p"}'}
AGAIN = {"outcome": "success", "artifact_sha256": HASH, "validation_summary": "{}"}
OTHER_INPUTS = f"sha256:{'b' * 64}"


@pytest.fixture
def typed(database: Database) -> Iterator[Connection]:
    """A database in which every table holds rows; nothing stays of what is typed."""
    with database.engine.connect() as connection, connection.begin() as typing:
        with unguarded(connection, *STANDING):
            for table, rows in STANDING.items():
                for row in rows:
                    insert(connection, table, row)
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        yield connection
        typing.rollback()


def test_no_table_of_evidence_is_shortened(typed: Connection) -> None:
    let_in = []
    for table in sorted(set(sa.inspect(typed).get_table_names()) - DERIVED - VOCABULARY):
        statements = [] if table in LEAVING else [f"DELETE FROM {table}"]
        if typed.dialect.name == "postgresql":
            statements.append(f"TRUNCATE {table} CASCADE")
        let_in += [statement for statement in statements if _refusal(typed, statement) is None]
    assert let_in == []


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE nodd_wal_deliveries SET message_id = 'another'", "deliveries_identity_is_immutable"),
        (f"UPDATE nodd_wal_deliveries SET first_received_at = '{LATER}'", "deliveries_identity_is_immutable"),
        ("UPDATE nodd_wal_deliveries SET topic_arn = 'another'", "deliveries_identity_is_immutable"),
        ("UPDATE nodd_wal_deliveries SET sns_message_id = 'another'", "deliveries_identity_is_immutable"),
        ("UPDATE nodd_wal_deliveries SET receive_count = 0", "deliveries_identity_is_immutable"),
        ("UPDATE nodd_wal_delivery_units SET wal_id = 'another'", "delivery_units_are_append_only"),
        ("DELETE FROM nodd_wal_delivery_units", "delivery_units_are_append_only"),
        ("UPDATE rejected_messages SET reason_code = 'another'", "rejections_are_append_only"),
        ("DELETE FROM rejected_messages", "rejections_are_append_only"),
        ("UPDATE nodd_wal_counts SET moves = 9", "counts_are_written_by_the_ledger"),
        ("UPDATE nodd_wal_counts SET dataset = 'another', moves = moves + 1", "counts_are_written_by_the_ledger"),
        ("DELETE FROM nodd_wal_counts", "counts_are_written_by_the_ledger"),
        ("UPDATE metric_totals SET amount = 0.5", "totals_only_rise"),
        ("UPDATE metric_totals SET subject = 'another'", "totals_only_rise"),
        ("DELETE FROM metric_totals", "totals_only_rise"),
        ("DELETE FROM nodd_wal_deliveries", "deliveries_are_kept"),
        ("DELETE FROM run_state", "run_state_is_kept"),
        ("DELETE FROM etl_checkpoint", "checkpoints_are_kept"),
        ("DELETE FROM announcements", "announcements_are_kept"),
        ("UPDATE announcements SET change_id = 1", "announcements_go_on"),
        ("UPDATE announcements SET taken = 0, taken_at = NULL", "announcements_go_on"),
        ("UPDATE etl_checkpoint SET node = 'another'", "checkpoints_name_what_was_applied"),
    ],
)
def test_each_guard_refuses_by_its_rule(typed: Connection, statement: str, rule: str) -> None:
    assert rule in str(_refusal(typed, statement))


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("run_state", "run_state_success_is_kept"),
        ("nodd_wal_deliveries", "deliveries_are_kept"),
        ("rejected_messages", "rejections_are_append_only"),
        ("catalog_items", "catalog_items_revision_grows_by_one"),
        ("nodd_wal_leases", "leases_are_of_claims"),
        ("announcements", "announcements_are_kept"),
    ],
)
def test_no_row_is_replaced_on_sqlite(typed: Connection, table: str, rule: str) -> None:
    if typed.dialect.name != "sqlite":
        pytest.skip("SQLite alone has INSERT OR REPLACE")
    assert rule in str(_refusal(typed, f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"))


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"outcome": "skipped"}, True),
        ({"outcome": "success", "recorded_at": LATER}, True),
        ({"outcome": "partial"}, True),
        (FAILED, True),
        ({**FAILED, "validation_summary": '{"rolled_back_by": null}'}, True),
        ({"validation_summary": '{"rolled_back_by": "d.p"}'}, True),
        ({"run_id": "r2"}, True),
        ({"dataset_id": "d.p", "inputs_hash": OTHER_INPUTS}, True),
        ({"outcome": "skipped", "inputs_hash": OTHER_INPUTS}, True),
        (TAKEN_BACK, False),
        ({**FAILED, "inputs_hash": OTHER_INPUTS}, False),
        ({"outcome": "success", "inputs_hash": OTHER_INPUTS}, False),
    ],
)
def test_a_success_is_overwritten_by_a_rollback_or_by_other_inputs_alone(
    typed: Connection, change: dict[str, Any], kept: bool
) -> None:
    refusal = _changed(typed, "run_state", change)
    assert (refusal is not None) == kept, refusal
    assert refusal is None or "run_state_success_is_kept" in refusal


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"outcome": "success", "artifact_sha256": HASH, "validation_summary": "{}"}, True),
        (
            {"outcome": "success", "artifact_sha256": HASH, "inputs_hash": OTHER_INPUTS, "validation_summary": "{}"},
            True,
        ),
        ({"validation_summary": "{}"}, True),
        ({**TAKEN_BACK, "validation_summary": '{"rolled_back_by": "d.q"}'}, False),
    ],
)
def test_what_was_taken_back_stays_taken_back(typed: Connection, change: dict[str, Any], kept: bool) -> None:
    assert _changed(typed, "run_state", TAKEN_BACK, keep=True) is None
    assert (_changed(typed, "run_state", change) is not None) == kept


def test_a_checkpoint_names_what_was_applied(typed: Connection) -> None:
    output = {**STANDING["node_output"][0], "content_hash": "b" * 64}
    intent = {**STANDING["etl_wal"][0], "content_hash": "b" * 64, "status": "PENDING", "applied_at": None}
    insert(typed, "node_output", output)
    insert(typed, "etl_wal", intent)
    move = f"UPDATE etl_checkpoint SET last_applied_hash = '{'b' * 64}'"
    another = f"INSERT INTO etl_checkpoint (node, last_applied_hash, updated_at) VALUES ('n2', '{'b' * 64}', '{LATER}')"
    for statement in (move, another):
        assert "checkpoints_name_what_was_applied" in str(_refusal(typed, statement))
    typed.exec_driver_sql(
        f"UPDATE etl_wal SET status = 'APPLIED', applied_at = '{LATER}' WHERE content_hash = '{'b' * 64}'"
    )
    for statement in (move, another):
        assert _refusal(typed, statement) is None


def test_an_item_leaves_when_its_promotion_is_withdrawn(typed: Connection) -> None:
    delete = "DELETE FROM catalog_items"
    assert _refusal(typed, delete) is None
    with unguarded(typed, "catalog_items"):
        typed.exec_driver_sql("UPDATE catalog_items SET promotion_id = 2")
    assert "items_leave_by_an_undo" in str(_refusal(typed, delete))


def test_a_lease_is_of_claims_that_stand(typed: Connection) -> None:
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


def _changed(connection: Connection, table: str, change: dict[str, Any], *, keep: bool = False) -> str | None:
    return _try(connection, lambda: _update(connection, table, change), keep=keep)


def _update(connection: Connection, table: str, change: dict[str, Any], **where: Any) -> None:
    statement = sa.update(sa.table(table, *map(sa.column, {**change, **where}))).values(change)
    connection.execute(statement.where(*(sa.column(name) == value for name, value in where.items())))


def _refusal(connection: Connection, statement: str) -> str | None:
    return _try(connection, lambda: connection.exec_driver_sql(statement))


def _try(connection: Connection, act: Callable[[], Any], *, keep: bool = False) -> str | None:
    """Do it and take it back; what the database says against it, or None."""
    with connection.begin_nested() as savepoint:
        try:
            act()
        except DBAPIError as error:
            savepoint.rollback()
            return str(error.orig)
        if not keep:
            savepoint.rollback()
    return None
