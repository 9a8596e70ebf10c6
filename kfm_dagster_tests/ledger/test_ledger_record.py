"""The record's model, published schema and table have the same fields; the history rebuilds the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema_rs
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.model import CANONICAL_FIELDS
from kfm_dagster.ledger.record import NoddWalRecord, replay_history
from kfm_dagster_tests.docs.wal_pages import EXTENSION_COLUMNS
from kfm_dagster_tests.factories import envelope, failed
from kfm_dagster_tests.ledger.bench import Bench
from kfm_dagster_tests.programs import printed_by
from kfm_dagster_tests.schemas import wal_record_schema

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "spec" / "nodd-wal-record.schema.json"
SQL_TYPES = {
    "string": {"sqlite": {"TEXT"}, "postgresql": {"TEXT", 'TEXT COLLATE "C"'}},
    "date-time": {"sqlite": {"TEXT"}, "postgresql": {"TIMESTAMP WITH TIME ZONE"}},
    "integer": {"sqlite": {"INTEGER"}, "postgresql": {"INTEGER", "BIGINT"}},
    "object": {"sqlite": {"TEXT"}, "postgresql": {"JSONB"}},
}


def columns(bench: Bench) -> dict[str, tuple[str, bool]]:
    """Return type and nullability of each column of the live table, in order."""
    engine = bench.database.engine
    described = sa.inspect(engine).get_columns("nodd_wal_records")
    return {column["name"]: (column["type"].compile(engine.dialect), column["nullable"]) for column in described}


def schema_types() -> dict[str, tuple[str, bool]]:
    """Return type and nullability of each property of the published schema, in order."""
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    types_by_name = {}
    for name, entry in schema["properties"].items():
        variants = [
            schema["$defs"][variant["$ref"].rsplit("/", 1)[1]] if "$ref" in variant else variant
            for variant in entry.get("anyOf", [entry])
        ]
        (kind,) = {variant.get("format", variant["type"]) for variant in variants} - {"null"}
        types_by_name[name] = (kind, any(variant["type"] == "null" for variant in variants))
    return types_by_name


@pytest.mark.clause("WAL-01")
def test_model_published_schema_and_table_have_the_same_fields_types_and_nullability(bench: Bench) -> None:
    table, schema = columns(bench), schema_types()
    declared = (*CANONICAL_FIELDS, *(name for name, _ in EXTENSION_COLUMNS))
    assert tuple(NoddWalRecord.model_fields) == tuple(schema) == tuple(table) == declared
    assert all(reason for _, reason in EXTENSION_COLUMNS)
    for name, (kind, nullable) in schema.items():
        assert table[name][0] in SQL_TYPES[kind][bench.database.dialect], name
        assert table[name][1] is nullable, name


@pytest.mark.clause("WAL-01")
def test_the_published_schema_equals_the_model_s_schema() -> None:
    written = json.dumps(wal_record_schema(), indent=2, ensure_ascii=False) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == written, (
        f"write json.dumps(wal_record_schema(), indent=2, ensure_ascii=False) to {PUBLISHED.name}"
    )


@pytest.mark.clause("WAL-01")
def test_a_record_in_any_state_is_valid_under_the_published_schema(bench: Bench) -> None:
    validator = jsonschema_rs.validator_for(json.loads(PUBLISHED.read_text(encoding="utf-8")))
    for number, state in enumerate(("pending", "in_progress", "succeeded", "failed", "quarantined")):
        validator.validate(bench.bring_to(state, envelope(number)).model_dump(mode="json"))


FIELDS = """    station: str | None = extension("which station announced the unit")
    measured: datetime | None = extension("when the station says that it measured")
"""
BEFORE = "    integrity: Integrity | None = section()\n"
SCRIPT = """
import importlib.util, json, sys
from datetime import UTC, datetime

name = "kfm_dagster.contracts.envelope"
spec = importlib.util.find_spec(name)
source = open(spec.origin, encoding="utf-8").read()
before, fields, url = sys.argv[1:]
assert source.count(before) == 1
sys.modules[name] = module = importlib.util.module_from_spec(spec)
exec(compile(source.replace(before, fields + before), spec.origin, "exec"), module.__dict__)

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.stages.envelope_table import columns_of, from_parquet, to_parquet
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import make_bench

unit = envelope(1).evolve(station="KTLX", measured=datetime(2025, 4, 1, 12, tzinfo=UTC))
bench = make_bench(Database.open(url), ContractRegistry.load())
claimed = bench.claimed(unit, envelope(2))
kept = from_parquet(to_parquet(columns_of(claimed)))
record = bench.ledger.get(unit.wal_id)
bench.database.dispose()
print(json.dumps({
    "claimed": [(one.station, str(one.measured)) for one in claimed],
    "artifact": [(one.station, str(one.measured)) for one in kept],
    "record": {name: record.extension.get(name) for name in ("station", "measured")},
}))
"""


@pytest.mark.clause("WAL-01")
def test_a_field_added_only_to_the_envelope_is_in_ledger_artifact_and_record(database_url: str) -> None:
    printed = printed_by(sys.executable, "-c", SCRIPT, BEFORE, FIELDS, database_url)
    both = [["KTLX", "2025-04-01 12:00:00+00:00"], [None, "None"]]
    assert json.loads(printed) == {
        "claimed": both,
        "artifact": both,
        "record": {"station": "KTLX", "measured": "2025-04-01T12:00:00.000000Z"},
    }


@pytest.mark.clause("WSM-17", "WSM-07")
def test_every_transition_records_actor_time_statuses_version_reason_and_run(bench: Bench) -> None:
    unit = envelope()
    start = bench.clock.now
    bench.ledger.ensure([unit])
    bench.clock.advance(1)
    claimed = bench.claim(run_id="run-1")
    bench.clock.advance(1)
    bench.ledger.settle([failed(unit) for unit in claimed], run_id="run-1")
    bench.clock.advance(1)
    bench.ledger.requeue([unit.wal_id], reason="incident", run_id="replay-1", actor="jane")
    entries = [
        (
            entry.version,
            (entry.at - start).seconds,
            entry.actor,
            entry.from_status,
            entry.to_status,
            entry.reason,
            entry.run_id,
        )
        for entry in bench.ledger.history(unit.wal_id)
    ]
    assert entries == [
        (1, 0, "worker-1", None, "pending", "discovered", None),
        (2, 1, "worker-1", "pending", "in_progress", "claimed", "run-1"),
        (3, 2, "worker-1", "in_progress", "failed", "missing_object", "run-1"),
        (4, 3, "jane", "failed", "pending", "incident", "replay-1"),
    ]
    record = bench.ledger.get(unit.wal_id)
    assert (record.replay_reason, record.ingest_run_id, record.next_attempt_at) == ("incident", "replay-1", None)


@pytest.mark.clause("WSM-17")
def test_a_change_typed_in_a_database_shell_is_also_in_the_history(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("pending", unit)
    bench.type_by_hand(
        "UPDATE nodd_wal_records SET status = 'quarantined', last_error_code = 'by_hand', version = version + 1,"
        " updated_at = '2025-12-03T13:00:00.000000Z', changed_by = 'jane', change_reason = 'CHG-7'"
    )
    last = bench.ledger.history(unit.wal_id)[-1]
    assert (last.actor, last.from_status, last.to_status, last.reason) == ("jane", "pending", "quarantined", "CHG-7")
    before = bench.ledger.history(unit.wal_id)
    assert replay_history(before) == bench.ledger.get(unit.wal_id)
    for version in (2, 3):
        forged = f"wal_id, {version}, at, 'mallory', from_status, to_status, reason, run_id, attempts, fields"
        with pytest.raises(DBAPIError, match=r"history_is_(append_only|written_by_the_ledger)"):
            bench.type_by_hand(
                "INSERT INTO nodd_wal_transitions (wal_id, version, at, actor, from_status, to_status, reason, run_id,"
                f" attempts, fields) SELECT {forged} FROM nodd_wal_transitions WHERE version = 2"
            )
    assert bench.ledger.history(unit.wal_id) == before


def test_a_history_with_a_missing_entry_is_refused(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("failed", unit)
    bench.ledger.requeue([unit.wal_id])
    bench.ledger.settle([failed(claimed) for claimed in bench.claim(unit)], run_id="run-1")
    history = bench.ledger.history(unit.wal_id)
    # Without one complete attempt the statuses still form a legal sequence.
    without_an_attempt = history[:2] + history[5:]
    for broken in (history[1:], history[:1] + history[2:], history[::-1], [], without_an_attempt):
        with pytest.raises(ValueError, match="history"):
            replay_history(broken)
