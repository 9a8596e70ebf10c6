"""Query plans read only the needed rows, and of contending processes exactly one claims each record."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from benchmarks.ledger import CELL, CLAIMED_CELLS, NOW, PENDING_CELLS, Filling
from kfm_dagster.contracts.envelope import CLOSED
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.idempotent_node.wal import Intents, IntentStatus
from kfm_dagster.ledger.policy import replay_rules
from kfm_dagster.lineage.noted import MOST
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import statement
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.idempotent_node.counting import CODE
from kfm_dagster_tests.ledger.bench import DAY, make_bench
from kfm_dagster_tests.ledger.claimer import BITE, contend
from kfm_dagster_tests.storage.test_database import GROWING

CELLS = PENDING_CELLS + CLAIMED_CELLS + 3

RECORD = r"one_record_per_unit|autoindex_nodd_wal_records_1"
UNITS_OF_MESSAGE = r"one_row_per_pair|USING (COVERING )?PRIMARY KEY \(message_id=\?\)|SEARCH unit USING PRIMARY KEY"
IN_ORDER = r"Presorted Key: step.wal_id|TEMP B-TREE FOR (RIGHT PART|LAST 2 TERMS) OF ORDER BY"
FAILED = {"code": "missing_object"}
MATCH = FAILED | {"text": "x", "wanted_status": "", "wanted_code": "", "operator": "", "check_status": ""}
RANGES = [("status", "by_selection|records_failing"), ("partition", "by_work"), ("failure", "records_failing")]

PLANS: list[tuple[str, dict[str, Any], str]] = [
    ("ledger.claim", {"wal_ids": None}, "to_claim"),
    ("ledger.batch_bounds", {}, "(?s)bisected.*in_progress|in_progress.*bisected"),
    ("ledger.datasets_of_status", {}, "by_work|by_selection"),
    *((f"units.{name}", MATCH | {"range": kind}, index) for name in ("page", "count") for kind, index in RANGES),
    ("units.failure_groups", FAILED, "records_failing"),
    ("units.next_failure", FAILED, "records_failing"),
    ("ledger.pending_by_partition", {}, "to_claim|by_work"),
    ("ledger.oldest_waiting", {}, "to_claim|by_work|by_selection"),
    ("ledger.pending_units", {}, "to_claim|by_work|by_selection"),
    ("ledger.failing", {}, "by_work|by_selection|by_due_time|records_failing"),
    ("ledger.status_counts", {}, "by_work"),
    ("ledger.day_failing", {}, "by_work"),
    ("ledger.day_failing_units", {}, "by_work"),
    ("gates.partition_products", {}, "by_work"),
    ("catalog.owners", {}, RECORD),
    ("ledger.in_flight", {"today": "2100-01-01"}, "to_claim|by_work|by_selection"),
    ("ledger.in_progress_runs", {}, "in_progress|by_selection|by_work"),
    ("ledger.fail_claims", {}, "in_progress"),
    ("ledger.due", {}, "by_due_time"),
    ("ledger.requeue", {}, RECORD),
    ("ledger.hold", {}, RECORD),
    ("ledger.settle", {}, RECORD),
    ("ledger.quarantine", {}, RECORD),
    ("ledger.decide", {}, RECORD),
    ("ledger.override", {}, RECORD),
    ("ledger.statuses", {}, RECORD),
    ("ledger.lock_statuses", {}, RECORD),
    ("ledger.supersede", {}, "identity_is_unique"),
    ("ledger.versions_of", {}, "identity_is_unique"),
    ("ledger.endless_volumes", {}, "by_volume"),
    ("ledger.record_outcomes", {}, r"one_row_per_attempt|autoindex_nodd_wal_outcomes_1"),
    ("deliveries.due_for_deletion", {}, "by_open_state"),
    ("deliveries.due_for_deletion", {}, UNITS_OF_MESSAGE),
    ("deliveries.due_for_backoff", {}, "delivery_units_by_unit"),
    ("deliveries.held_by", {}, "delivery_units_by_unit"),
    ("deliveries.mark", {}, r"one_row_per_message|autoindex_nodd_wal_deliveries_1"),
    ("deliveries.mark_acknowledged", {}, r"one_row_per_message|autoindex_nodd_wal_deliveries_1"),
    ("replay.select_units", {}, "by_selection"),
    ("replay.select_named", {}, RECORD),
    ("dead_letters.known_units", {}, RECORD),
    ("evidence.due", {}, "quarantine_cases_without_evidence"),
    ("lineage.unpublished_steps", {}, "etl_steps_unpublished"),
    ("lineage.unpublished_steps", {}, IN_ORDER),
    ("alerts.findings", {}, "stage_audit_failed_gates"),
    ("alerts.findings", {}, r"(?s)(stage_audit_by_kind.*){3}"),
]
LITTLE = "in_progress|to_claim|by_due_time|by_open_state|unpublished"
"""Partial indexes over active rows, which a plan is allowed to read completely."""
READ = GROWING | {"etl_steps", "node_output", "stage_audit", "clock_readings"}
"""The tables that grow, and the tables that the statements of steps and alerts read."""
STEPS = 2 * MOST
ANY_TEXT = "worker_id actor code_version before_id after error_code error_message why change_ref reason action"
"""Parameters whose text changes no plan."""


def test_no_frequent_statement_reads_a_growing_table_completely(
    database: Database, contracts: ContractRegistry, tmp_path: Path
) -> None:
    if database.dialect == "postgresql":
        Filling(database=database, records=CELLS * CELL).fill()
        _end_steps(database, "published")
        Lineage(database, str(tmp_path / "lineage")).publish_staged()
        _end_steps(database, "unpublished")
        _analyze(database)
    else:
        # Without ANALYZE, the table's content does not change plans.
        bench = make_bench(database, contracts)
        for number in range(20):
            bench.bring_to("failed", envelope(number))
    with database.transaction() as tx:
        failed_rows = tx.connection.execute(
            sa.text("SELECT * FROM nodd_wal_records WHERE status = 'failed' LIMIT 20")
        ).all()
    usual = _parameters(failed_rows, contracts)
    faults = []
    for name, parameters, expected in PLANS:
        plan = _plan(database, name, usual | parameters)
        whole = _read_whole(plan, statement(database.dialect, name).text)
        if whole or not re.search(expected, plan):
            faults.append(f"{name} {parameters}: reads completely {whole or 'no table'}; expected {expected}:\n{plan}")
    assert not faults, "\n\n".join(faults)


def test_with_statistics_of_a_settled_ledger_messages_of_a_run_are_read_by_the_unit_index(database: Database) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite plans without statistics")
    Filling(database=database, records=CELL, settled=True).fill()
    _analyze(database)
    plan = _plan(database, "deliveries.held_by", {"run_id": "run-1", "after": "", "limit": 100})
    assert re.findall("by_open_state|delivery_units_by_unit", plan) == ["delivery_units_by_unit"], plan


def _analyze(database: Database) -> None:
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")


def _end_steps(database: Database, run_id: str) -> None:
    """Record intents of a run, each resolved as skipped."""
    intents = Intents(database, clock=lambda: NOW)
    payload = {"inputs": [], "code": CODE.canonical()}
    with database.transaction() as tx:
        for index in range(STEPS):
            digest = hashlib.sha256(f"{run_id} {index}".encode()).hexdigest()
            intent = intents.append(run_id=run_id, node="n", step="s", payload=payload, content_hash=digest, tx=tx)
            assert intents.resolve(intent, IntentStatus.SKIPPED, tx=tx)


def _plan(database: Database, name: str, parameters: dict[str, Any]) -> str:
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    clause = sa.text(f"{explain} {statement(database.dialect, name).text}")
    values = dict.fromkeys(clause.compile().params) | parameters
    with database.transaction() as tx:
        if database.dialect == "postgresql":
            # At forty thousand rows a scan or hash join is cheap; at a million it is not.
            for way in ("seqscan", "hashjoin", "mergejoin"):
                tx.connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
        return "\n".join(str(row[-1]) for row in tx.connection.execute(clause, values))


def _read_whole(plan: str, text: str) -> set[str]:
    """Return the growing tables that the plan of a statement reads completely."""
    aliases = {alias: table for table, alias in re.findall(r"(\w+) AS (\w+)", text)}
    names = aliases | {table: table for table in READ}
    lines = [line for line in plan.splitlines() if not re.search(LITTLE, line)]
    scanned = re.findall(r"(?:^\s*SCAN|Seq Scan on) (\w+)", "\n".join(lines), re.MULTILINE)
    return {names[name] for name in scanned if names.get(name) in READ}


def _parameters(known: list[Any], contracts: ContractRegistry) -> dict[str, Any]:
    """Return non-null parameters for every statement, from failed records of one day."""
    first = known[0]
    wal_ids = [row.wal_id for row in known]
    batch = [{"wal_id": row.wal_id, "attempt": row.attempts, "version": row.version} for row in known]
    return dict.fromkeys(ANY_TEXT.split(), "x") | {
        "at": "2026-03-01T00:00:00.000000Z",
        "now": "2026-03-01T00:00:00.000000Z",
        "calibrated_since": "2026-03-01T00:00:00.000000Z",
        "max_offset": 1.0,
        "terms": "[]",
        "closed": CLOSED,
        "run_id": "run-1",
        "dataset": first.dataset,
        "partition": first.partition_key,
        "first": first.partition_key,
        "last": first.partition_key,
        "state": "deleted",
        "status": "failed",
        "before_time": "9999-12-31T00:00:00.000000Z",
        "since": "2025-12-01T00:00:00.000000Z",
        "limit": 100,
        "most": MOST,
        "wal_id": wal_ids[0],
        "wal_ids": orjson.dumps(wal_ids).decode(),
        "batch": orjson.dumps(batch).decode(),
        "message_ids": orjson.dumps([f"m-{wal_id}" for wal_id in wal_ids]).decode(),
        "run_ids": '["run-1"]',
        "datasets": orjson.dumps([first.dataset]).decode(),
        "statuses": '["failed"]',
        "groups": orjson.dumps([{"status": "failed", "dataset": first.dataset}]).decode(),
        "collection_id": first.dataset,
        "item_ids": '["an-item"]',
        "policy": orjson.dumps(replay_rules(contracts)).decode(),
        "event_start": "2025-12-01T00:00:00.000000Z",
        "event_end": "2026-03-01T00:00:00.000000Z",
        "details": "{}",
        "from_status": "quarantined",
        "to_status": "pending",
    }


PROCESSES = 8
RECORDS = 3_000
"""Fewer records than in the same test of `make soak`."""


@pytest.mark.clause("WSM-13", "WSM-04", "WAL-12")
def test_each_record_is_claimed_once_by_one_of_the_contending_processes(
    database: Database, contracts: ContractRegistry, figure: Callable[[str], None]
) -> None:
    bench = make_bench(database, contracts)
    bench.ledger.ensure([envelope(number) for number in range(RECORDS)])
    contention = contend(database.engine.url.render_as_string(hide_password=False), day=DAY, processes=PROCESSES)
    records = bench.ledger.find(limit=RECORDS + 1)
    winners = {wal_id: name for name, ids in contention.won.items() for wal_id in ids}
    assert sum(len(ids) for ids in contention.won.values()) == len(winners) == RECORDS
    assert {record.wal_id: record.ingest_run_id for record in records} == winners
    assert Counter((record.status, record.attempts, record.version) for record in records) == {
        ("in_progress", 1, 2): RECORDS
    }
    # Hundreds of concurrent transactions lose no count and leave few rows to sum.
    claims = [count for count in bench.ledger.move_counts() if count.to_status == "in_progress"]
    assert [(count.attempt, count.moves) for count in claims] == [(1, RECORDS)]
    assert bench.ask("SELECT count(*) AS rows FROM metric_totals")[0]["rows"] < RECORDS / BITE / 2
    # The race proves nothing if one process won every claim.
    assert sum(1 for ids in contention.won.values() if ids) > PROCESSES // 2
    figure(f"{RECORDS / contention.seconds:,.0f} claims a second by {PROCESSES} processes on {database.dialect}")
