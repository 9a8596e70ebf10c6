"""Pytest plugin: collects the marks of clauses and writes the conformance page on request.

    pytest --clauses                      print the page after collection, run nothing
    pytest --clauses-out FILE             also write it as Markdown; with workers, the first worker writes it

The page lists each clause with its tests, divided into tests that run on every commit and tests that run when a path
changed (`selection.yaml`), and each requirement of the documents with its clauses, test and page.

Usage errors: an unknown clause id, a clause without a test that runs on every commit.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster_tests.selection import runs_always

TESTS = Path(__file__).resolve().parent
SPEC = Path(__file__).resolve().parent.parent / "docs" / "spec" / "clauses.yaml"
REQUIREMENTS = SPEC.with_name("requirements.yaml")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clauses")
    group.addoption("--clauses", action="store_true", help="list every clause with its tests and run nothing")
    group.addoption("--clauses-out", type=Path, help="write the clause table to this Markdown file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--clauses") or config.getoption("--clauses-out")):
        return
    clauses = {entry["id"]: entry["must"] for entry in yaml.safe_load(SPEC.read_text(encoding="utf-8"))["clauses"]}
    claims = _claims(items, clauses)
    at_times = [clause for clause, tests in claims.items() if tests and not any(map(runs_always, tests))]
    if at_times and set(TESTS.rglob("test_*.py")) <= {item.path for item in items}:
        raise pytest.UsageError(f"no commit has to run a test of {', '.join(at_times)}: name one in selection.yaml")
    table = config.stash[_TABLE] = render(clauses, claims)
    out = config.getoption("--clauses-out")
    # Every worker of pytest-xdist collects all tests; the process that started them collects none.
    if out and getattr(config, "workerinput", {}).get("workerid", _FIRST_WORKER) == _FIRST_WORKER:
        out.write_text(table, encoding="utf-8")
    if config.getoption("--clauses"):
        items.clear()


def _claims(items: list[pytest.Item], clauses: Collection[str]) -> dict[str, list[str]]:
    """Return the test functions of each clause."""
    claims: dict[str, list[str]] = {clause: [] for clause in clauses}
    for item in items:
        for marker in item.iter_markers("clause"):
            for clause in marker.args:
                if clause not in claims:
                    raise pytest.UsageError(f"{item.nodeid} claims {clause}, which is not in docs/spec/clauses.yaml")
                if (name := _function(item)) not in claims[clause]:
                    claims[clause].append(name)
    return claims


def _function(item: pytest.Item) -> str:
    """Return a test's name without its case."""
    return item.nodeid.partition("[")[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--clauses") and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    out = config.getoption("--clauses-out")
    if out and out.exists():
        terminalreporter.write_line(out.read_text(encoding="utf-8"))
    elif config.getoption("--clauses"):
        terminalreporter.write_line(config.stash.get(_TABLE, ""))


def render(clauses: dict[str, str], claims: dict[str, list[str]]) -> str:
    """Return the page of the clauses; the tests that run on every commit have their own column."""
    held = sum(1 for tests in claims.values() if tests)
    lines = [
        "# Conformance",
        "",
        f"{held} of {len(clauses)} clauses are held by a test.",
        "",
        "| clause | must | tests of every commit | tests that run when a path of theirs changed |",
        "|---|---|---|---|",
    ]
    for clause, must in clauses.items():
        always = "<br>".join(name for name in claims[clause] if runs_always(name))
        at_times = "<br>".join(name for name in claims[clause] if not runs_always(name))
        lines.append(f"| {clause} | {must.replace('|', chr(92) + '|')} | {always or '**none**'} | {at_times} |")
    return "\n".join([*lines, "", *_required()]) + "\n"


def _required() -> list[str]:
    rows: list[dict[str, Any]] = yaml.safe_load(REQUIREMENTS.read_text(encoding="utf-8"))["requirements"]
    apart = sum("instead" in row for row in rows)
    return [
        "# Requirements",
        "",
        f"{len(rows)} requirements. {apart} are met in another way, which their test covers.",
        "",
        "| document | section | requirement | clauses | test | page |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['document']} | {row['section']} | {row['must'].replace('|', chr(92) + '|')} "
            f"| {', '.join(row.get('clauses', []))} "
            f"| {TESTS.name + '/' + row['test'] if 'test' in row else 'none'} | {_pages(row)} |"
            for row in rows
        ),
    ]


def _pages(row: dict[str, Any]) -> str:
    """Return links to a requirement's page and to the reason of a deviation from the document."""
    links = [f"[{row['page']}](../../{row['page']})"] if "page" in row else []
    why = [f"[why otherwise](../../{row['instead']})"] if "instead" in row else []
    return "<br>".join(links + why)


_TABLE = pytest.StashKey[str]()
_FIRST_WORKER = "gw0"
