"""Model, published schema and both tables are one shape."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from kfm_dagster.contracts.loader import parse_contract
from kfm_dagster.contracts.model import CANONICAL_FIELDS
from kfm_dagster.errors import ContractError
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.docs.wal_pages import EXTENSION_COLUMNS
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import Bench
from kfm_dagster_tests.schemas import wal_record_schema

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "spec" / "nodd-wal-record.schema.json"
SQL_TYPES = {
    "string": {"sqlite": {"TEXT"}, "postgresql": {"text"}},
    "date-time": {"sqlite": {"TEXT"}, "postgresql": {"timestamp with time zone"}},
    "integer": {"sqlite": {"INTEGER"}, "postgresql": {"integer", "bigint"}},
    "object": {"sqlite": {"TEXT"}, "postgresql": {"jsonb"}},
}


def columns(bench: Bench) -> dict[str, tuple[str, bool]]:
    """Type and nullability of each column of the live table, in order."""
    if bench.database.dialect == "sqlite":
        rows = bench.ask("SELECT name, type, \"notnull\" AS required FROM pragma_table_info('nodd_wal_records')")
        return {row["name"]: (row["type"].upper(), not row["required"]) for row in rows}
    rows = bench.ask(
        "SELECT column_name AS name, data_type AS type, is_nullable FROM information_schema.columns"
        " WHERE table_name = 'nodd_wal_records' ORDER BY ordinal_position"
    )
    return {row["name"]: (row["type"], row["is_nullable"] == "YES") for row in rows}


def schema_types() -> dict[str, tuple[str, bool]]:
    """Type and nullability of each property of the published schema, in order."""
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    found = {}
    for name, entry in schema["properties"].items():
        variants = [
            schema["$defs"][one["$ref"].rsplit("/", 1)[1]] if "$ref" in one else one
            for one in entry.get("anyOf", [entry])
        ]
        (kind,) = {one.get("format", one["type"]) for one in variants} - {"null"}
        found[name] = (kind, any(one["type"] == "null" for one in variants))
    return found


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
def test_the_published_schema_is_that_of_the_model() -> None:
    written = json.dumps(wal_record_schema(), indent=2, ensure_ascii=False) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == written, (
        f"write json.dumps(wal_record_schema(), indent=2, ensure_ascii=False) to {PUBLISHED.name}"
    )


@pytest.mark.clause("WAL-01")
def test_a_record_in_any_state_is_valid_under_the_published_schema(bench: Bench) -> None:
    validator = jsonschema_rs.validator_for(json.loads(PUBLISHED.read_text(encoding="utf-8")))
    for number, state in enumerate(("pending", "in_progress", "succeeded", "failed", "quarantined")):
        bench.bring_to(state, envelope(number))
        validator.validate(bench.ledger.get(envelope(number).wal_id).model_dump(mode="json"))


@pytest.mark.clause("WAL-16")
def test_an_extension_field_with_a_canonical_name_is_a_configuration_error() -> None:
    text = (ROOT / "kfm_dagster" / "contracts" / "datasets" / "nexrad-l2.yaml").read_text(encoding="utf-8")
    for name in CANONICAL_FIELDS:
        document = yaml.safe_load(text)
        grammar = document["storage"]["key_grammar"]
        # A group of that name somewhere in the pattern, or it would be refused for not being there.
        grammar["pattern"] = grammar["pattern"].replace("(?P<version>", "(?P<volume_version>") + f"(?P<{name}>)"
        document["ledger"] = {"extension_fields": [name]}
        del document["integrity"]["peers"]  # which names the group that is renamed
        with pytest.raises(ContractError, match="shadow canonical fields"):
            parse_contract(yaml.safe_dump(document), source="shadow.yaml")
