"""The page of the clauses with their tests, and of the documents' requirements.

The marks are read from the tests' source. `make clauses` writes the same page from the tests that pytest collects,
which takes minutes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

from kfm_dagster_tests.clause_plugin import SPEC, render

ROOT = Path(__file__).resolve().parents[1]


def page() -> str:
    """Return the page."""
    clauses = {entry["id"]: entry["must"] for entry in yaml.safe_load(SPEC.read_text(encoding="utf-8"))["clauses"]}
    claims: dict[str, list[str]] = {clause: [] for clause in clauses}
    for clause, test in sorted(set(claimed())):
        claims[clause].append(test)
    return render(clauses, claims)


def claimed() -> Iterator[tuple[str, str]]:
    """Yield each claimed clause with its test, or with the module if the mark is not on a test."""
    for path in (ROOT / "kfm_dagster_tests").rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        if "mark.clause(" in source:
            name, tree = path.relative_to(ROOT).as_posix(), ast.parse(source)
            tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            decorators = ((test.name, mark) for test in tests for mark in test.decorator_list)
            own = {mark: f"{name}::{test}" for test, decorator in decorators for mark in _marks(decorator)}
            for mark in _marks(tree):
                for argument in mark.args:
                    yield str(ast.literal_eval(argument)), own.get(mark, name)


def _marks(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.clause":
            yield node
