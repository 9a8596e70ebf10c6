"""Every requirement of the user's documents names a test, and the test claims a clause of the requirement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster_tests.clause_plugin import REQUIREMENTS, SPEC, TESTS

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"document", "section", "must", "clauses", "test", "page", "names", "instead"}
MINIMUM = {"000": 60, "001": 60, "002": 60, "003": 95, "004": 65, "card": 17}
"""Minimum number of rows by document: the number of its requirements without repeats."""


def name(row: dict[str, Any]) -> str:
    return f"{row['document']} {row['section']}: {row['must']}"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Return the requirements of the documents."""
    return yaml.safe_load(REQUIREMENTS.read_text(encoding="utf-8"))["requirements"]


@cache
def claims(module: str) -> dict[str, set[str]]:
    """Return the test functions of a module with the clauses that they claim."""
    tree = ast.parse((TESTS / module).read_text(encoding="utf-8"))
    of_all = {clause for node in tree.body if isinstance(node, ast.Assign) for clause in _claimed(node)}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {function.name: {*of_all, *_claimed(*function.decorator_list)} for function in functions}


def _claimed(*nodes: ast.AST) -> Iterator[str]:
    for call in (inner for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        if ast.unparse(call.func) == "pytest.mark.clause":
            yield from map(ast.literal_eval, call.args)


def test_each_row_is_complete_and_unique(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert {"document", "section", "must"} <= set(row) <= KEYS, name(row)
        assert {"page", "instead"} & set(row), name(row)
    assert len({name(row) for row in rows}) == len(rows)
    for document, minimum in MINIMUM.items():
        assert sum(row["document"] == document for row in rows) >= minimum, document
    assert {row["document"] for row in rows} == set(MINIMUM)


def test_the_test_of_each_requirement_exists_and_claims_its_clause(rows: list[dict[str, Any]]) -> None:
    known = {clause["id"] for clause in yaml.safe_load(SPEC.read_text(encoding="utf-8"))["clauses"]}
    for row in rows:
        clauses = set(row.get("clauses", []))
        assert clauses <= known, name(row)
        if "test" not in row:
            assert "instead" in row, f"no test holds {name(row)}"
            continue
        module, _, function = row["test"].partition("::")
        assert function in claims(module), f"{row['test']} ({name(row)})"
        assert not clauses or clauses & claims(module)[function], f"{row['test']} claims no clause of {name(row)}"


def test_each_page_exists_and_a_replaced_requirement_has_its_reason(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for place in {"page", "instead"} & set(row):
            assert (ROOT / row[place]).is_file(), name(row)
        reason = (ROOT / row["instead"]).read_text(encoding="utf-8") if "instead" in row else ""
        assert [text for text in row.get("names", []) if text not in reason] == [], name(row)
