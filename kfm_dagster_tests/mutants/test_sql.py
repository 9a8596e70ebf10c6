"""The operators of SQL mutants: the texts that they change and do not change."""

from __future__ import annotations

import pytest

from kfm_dagster.storage import macros
from kfm_dagster_tests.mutants.examining import ROOT
from kfm_dagster_tests.mutants.sql import edits


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("WHERE a = 1 AND b = 2 AND c;", ["WHERE b = 2 AND c;", "WHERE a = 1 AND c;", "WHERE a = 1 AND b = 2;"]),
        ("a OR b AND (c OR d)\n@in_order(e)", ["a OR b\n@in_order(e)", "a OR (c OR d)\n@in_order(e)"]),
        ("CHECK (a AND f(b, c))", ["CHECK (f(b, c))", "CHECK (a)"]),
        ("ON a BETWEEN 1 AND 2 AND b", ["ON b", "ON a BETWEEN 1 AND 2"]),
        ("b AND a BETWEEN 1 AND (2) ORDER BY c", ["a BETWEEN 1 AND (2) ORDER BY c", "b ORDER BY c"]),
        ("WHERE a AND CASE WHEN b THEN c END", ["WHERE CASE WHEN b THEN c END", "WHERE a"]),
        ("CASE WHEN a AND b THEN c END", ["CASE WHEN b THEN c END", "CASE WHEN a THEN c END"]),
        (
            "@refuse(t, INSERT ON r, rule, a, f(b, c));",
            ["@refuse(t, INSERT ON r, rule, f(b, c));", "@refuse(t, INSERT ON r, rule, a);"],
        ),
        ("a IN ('x, y', 'z')", ["a IN ('z')", "a IN ('x, y')"]),
        ("a IN ('x', 'y') AND a = 'x' AND b", ["a IN ('x', 'y') AND b", "a IN ('x', 'y') AND a = 'x'"]),
        ("a < b", ["a <= b"]),
        ("a >= b -- a > c", ["a > b -- a > c"]),
        ("WHERE NOT a", ["WHERE a"]),
        ("a IS NOT NULL", ["a IS NULL"]),
        ("NOT EXISTS (b) OR c NOT IN (d)", ["EXISTS (b) OR c NOT IN (d)", "NOT EXISTS (b) OR c IN (d)"]),
        ("CASE a WHEN 1 THEN x WHEN 2 THEN y ELSE z END", [
            "CASE a WHEN 1 THEN y WHEN 2 THEN x ELSE z END",
            "CASE a WHEN 1 THEN x WHEN 2 THEN z ELSE y END",
        ]),
        ("CREATE INDEX i ON t (a) WHERE a AND b;\nWHERE c AND d", [
            "CREATE INDEX i ON t (a) WHERE a AND b;\nWHERE d",
            "CREATE INDEX i ON t (a) WHERE a AND b;\nWHERE c",
        ]),
        *(
            (text, [])
            for text in (
                "-- a AND b < c",
                "'a AND b < c IN (d, e)'",
                "a text NOT NULL",
                "IF NOT EXISTS a",
                "a IN (SELECT b, c)",
                "a IN (@each(:b))",
                "a ->> 'b' <> c || d -> e",
                "CASE WHEN a THEN b END",
                "@sqlite(AND a)",
            )
        ),
    ],
)  # fmt: skip
def test_each_operator_makes_exactly_these_changes(text: str, changed: list[str]) -> None:
    assert sorted(edit.applied(text) for edit in edits(text)) == sorted(changed)


def test_every_mutant_of_the_project_s_sql_has_valid_macros() -> None:
    counts = {}
    for path in (ROOT / "sql").rglob("*.sql"):
        text = path.read_text(encoding="utf-8")
        changed = [edit.applied(text) for edit in edits(text)]
        counts[path.name] = len(set(changed))
        assert text not in changed
        for mutated in changed[::40]:
            assert all(macros.render(mutated, dialect) for dialect in ("sqlite", "postgresql"))
    assert sum(counts.values()) > 2000
    assert counts["ledger.sql"] > 200
