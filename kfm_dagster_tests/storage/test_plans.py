"""How SQLite plans each of our statements while it knows nothing of the tables; and the macros of the SQL texts."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest
from sqlalchemy import TextClause

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage import macros
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import sql_root, statement

GROWING = {
    "announcements",
    "catalog_changes",
    "catalog_items",
    "catalog_promotions",
    "etl_wal",
    "lineage_emissions",
    "nodd_wal_delivery_units",
    "nodd_wal_deliveries",
    "nodd_wal_outcomes",
    "nodd_wal_records",
    "nodd_wal_supersessions",
    "nodd_wal_transitions",
    "replay_units",
    "stage_state",
}
"""Tables with a row for each unit, message or Item; and the steps of batches, which are large."""
WHOLE = {
    "announcements.status": "a count, for who asks how a subscription does",
    "catalog.all_contents": "the API's rebuild compares every Item",
    "catalog.drop_empty_collection": "asks for any Item at all",
    "deliveries.conservation": "the sum over everything that was received",
    "deliveries.counts": "a count of everything that was received",
    "deliveries.duplicates": "a count of everything that was received",
    "explanation.runs_beginning": "a person asks for it",
    "explanation.latest_run": "from its end, up to the newest ingest",
    "exports.activities": "an export of everything",
    "exports.artifacts": "an export of everything",
    "exports.claims": "an export of everything",
    "exports.collections": "an export of everything",
    "exports.generations": "an export of everything",
    "exports.inputs": "an export of everything",
    "exports.items": "an export of everything",
    "exports.latest_run": "an export of everything",
    "exports.objects": "an export of everything",
    "ledger.counts": "what proves the counts that are kept",
    "reports.ledger_span": "the first and the last event of everything",
    "retention.artifacts": "once a day",
    "retention.landing": "once a day",
}
"""Statements that read a growing table from end to end, and why that is what they are for."""
GROWN = {"etl_wal_applied", "etl_wal_content_is_applied_once", "replay_units_by_decision"}
"""Partial indexes that grow with their table; the others hold what is under way, and may be read to their end."""
PARTIAL = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) [^;]*\bWHERE\b", re.MULTILINE)


@pytest.fixture
def blind(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    file = tmp_path / "kfm.db"
    Database.open(f"sqlite:///{file}").dispose()
    # Without our settings: a foreign key's look at the other table would stand in a plan, though none but a violation
    # makes it look.
    with closing(sqlite3.connect(file)) as connection:
        yield connection


def test_no_statement_reads_a_growing_table_from_end_to_end_but_those_that_are_for_it(
    blind: sqlite3.Connection,
) -> None:
    schema = "\n".join(file.read_text(encoding="utf-8") for file in (sql_root() / "schema").iterdir())
    partial = set(PARTIAL.findall(schema)) - GROWN
    found: dict[str, list[str]] = {}
    for name, asked in _statements():
        plan = blind.execute(f"EXPLAIN QUERY PLAN {asked.text}", dict.fromkeys(asked.compile().params)).fetchall()
        if reads := [line for *_, line in plan if _is_whole(line, asked.text, partial)]:
            found[name] = reads
    assert {name: reads for name, reads in found.items() if name not in WHOLE} == {}
    assert WHOLE.keys() - found.keys() == set()


def _statements() -> Iterator[tuple[str, TextClause]]:
    """Yield every query that SQLite is asked, by name."""
    for file in sorted((sql_root() / "queries").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql") and file.name not in ("roles.sql", "backups.sql"):  # PostgreSQL's alone
            for identifier in re.findall(r"^-- name: (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
                name = f"{file.name.removesuffix('.sql')}.{identifier}"
                try:
                    asked = statement("sqlite", name)
                except ConfigurationError:  # this one is PostgreSQL's, too
                    continue
                if re.search(r"^(?:INSERT|SELECT|UPDATE|DELETE|WITH)\b", asked.text, re.MULTILINE):
                    yield name, asked


def _is_whole(line: str, text: str, partial: set[str]) -> bool:
    """Whether a line of a plan reads all of a growing table, or all of a collection in it."""
    aliases = {alias: table for table, alias in re.findall(r"(\w+) AS (\w+)", text)}
    read = re.match(r"(SCAN|SEARCH) (\w+)(?:.*? INDEX (\w+))?", line)
    if read is None or aliases.get(read[2], read[2]) not in GROWING or read[3] in partial:
        return False
    return read[1] == "SCAN" or line.endswith("(collection_id=?)")


def test_a_macro_stands_for_the_database_s_text() -> None:
    for text, sqlite, postgresql in [
        ("at @time NOT NULL", "at text NOT NULL", "at timestamptz NOT NULL"),
        ("x = @json_type(@as_json(y))", "x = json_type(y)", "x = jsonb_typeof(CAST(y AS jsonb))"),
        ("@pairs(n, a, b)", "'a', n.a, 'b', n.b", "'a', n.a, 'b', n.b"),
        ("@changed(a)", "(NEW.a) IS DISTINCT FROM (OLD.a)", "(NEW.a) IS DISTINCT FROM (OLD.a)"),
        ("a @sqlite(b, (c, ')'))", "a b, (c, ')')", "a "),
        ("'@time' -- @time it's", "'@time' -- @time it's", "'@time' -- @time it's"),
    ]:
        assert (macros.render(text, "sqlite"), macros.render(text, "postgresql")) == (sqlite, postgresql)


def test_a_macro_that_is_wrong_is_refused() -> None:
    for text, why in [("x @tmie", "unknown SQL macro"), ("@sha256(x", "is not closed")]:
        with pytest.raises(ConfigurationError, match=why):
            macros.render(text, "sqlite")


def test_a_statement_is_of_one_database_where_a_reason_says_so() -> None:
    text = "SELECT 1;\n\n-- sqlite: it has no locks.\nSELECT 2;\nBEGIN\n    SELECT 3;\nEND;\n-- The end.\n"
    assert macros.statements(text, "postgresql") == ["SELECT 1", "BEGIN\n    SELECT 3;\nEND"]
    assert macros.statements(text, "sqlite") == [
        "SELECT 1", "-- sqlite: it has no locks.\nSELECT 2", "BEGIN\n    SELECT 3;\nEND",
    ]  # fmt: skip


def test_a_statement_with_two_forms_has_the_reason_of_each() -> None:
    for file in _files("queries"):
        text = file.read_text(encoding="utf-8")
        forms = defaultdict(list)
        for name, first in re.findall(r"^-- name: (\w+)\n(.*)$", text, re.MULTILINE):
            forms[name].append(re.match(r"-- (sqlite|postgresql): (?=.{20})", first))
        for name, found in forms.items():
            of_one = [match[1] for match in found if match]
            assert of_one in ([], ["sqlite", "postgresql"]), f"{file.name}: {name}"
            assert len(found) == max(1, len(of_one)), f"{file.name}: {name}"


def test_what_is_of_one_database_says_why() -> None:
    for file in (*_files("schema"), *_files("queries")):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"^-- (?:sqlite|postgresql):?(?: .{0,20})?$", text, re.MULTILINE | re.IGNORECASE) == []


def test_every_macro_is_documented_and_used() -> None:
    documented = set(re.findall(r"`@(\w+)", str(macros.__doc__))) - {"name"}
    texts = "\n".join(file.read_text(encoding="utf-8") for file in (*_files("schema"), *_files("queries")))
    used = set(re.findall(r"(?<![\w'])@([a-z_0-9]+)", texts)) - {"macro"}
    assert documented == used


def _files(folder: str) -> list[Traversable]:
    return [file for file in (sql_root() / folder).iterdir() if file.name.endswith(".sql")]
