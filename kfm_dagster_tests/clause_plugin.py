"""Pytest plugin: collects `@pytest.mark.clause(...)` and writes the conformance page on request.

    pytest --clauses                      print the page after collection, run nothing
    pytest --clauses-out FILE             also write it as Markdown; with workers the first of them does

The page has each clause with its tests, and each requirement of the documents with its clauses, tests and page.

An unknown clause id is a usage error, so that a typo cannot claim anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

SPEC = Path(__file__).resolve().parent.parent / "docs" / "spec" / "clauses.yaml"
REQUIREMENTS = SPEC.with_name("requirements.yaml")
SHOWN = 2
"""Tests of a clause that a requirement's row names; the clause's own row has all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clauses")
    group.addoption("--clauses", action="store_true", help="list every clause with its tests and run nothing")
    group.addoption("--clauses-out", type=Path, help="write the clause table to this Markdown file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--clauses") or config.getoption("--clauses-out")):
        return
    clauses = {entry["id"]: entry["must"] for entry in yaml.safe_load(SPEC.read_text(encoding="utf-8"))["clauses"]}
    claims: dict[str, list[str]] = {clause: [] for clause in clauses}
    for item in items:
        for marker in item.iter_markers("clause"):
            for clause in marker.args:
                if clause not in claims:
                    raise pytest.UsageError(f"{item.nodeid} claims {clause}, which docs/spec/clauses.yaml has not")
                name = item.nodeid.split("[")[0]
                if name not in claims[clause]:
                    claims[clause].append(name)
    table = config.stash[_TABLE] = render(clauses, claims)
    out = config.getoption("--clauses-out")
    # Every worker of pytest-xdist collects everything, and the process that started them nothing.
    if out and getattr(config, "workerinput", {}).get("workerid", _FIRST_WORKER) == _FIRST_WORKER:
        out.write_text(table, encoding="utf-8")
    if config.getoption("--clauses"):
        items.clear()


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
    """Return the page of the clauses and their tests."""
    held = sum(1 for tests in claims.values() if tests)
    lines = [
        "# Conformance",
        "",
        f"{held} of {len(clauses)} clauses are held by a test.",
        "",
        "| clause | must | tests |",
        "|---|---|---|",
    ]
    for clause, must in clauses.items():
        lines.append(f"| {clause} | {must.replace('|', chr(92) + '|')} | {'<br>'.join(claims[clause]) or '**none**'} |")
    return "\n".join([*lines, "", *_required(claims)]) + "\n"


def _required(claims: dict[str, list[str]]) -> list[str]:
    rows = yaml.safe_load(REQUIREMENTS.read_text(encoding="utf-8"))["requirements"]
    silent = sum(1 for row in rows if not (_tests(row, claims) or "instead" in row))
    return [
        "# Requirements",
        "",
        f"{len(rows)} requirements, {silent} of them silent.",
        "",
        "| document | section | requirement | clauses | tests | page |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['document']} | {row['section']} | {row['must'].replace('|', chr(92) + '|')} "
            f"| {', '.join(row.get('clauses', []))} | {'<br>'.join(_tests(row, claims)) or 'not followed'} "
            f"| [{row['page']}](../../{row['page']}) |"
            for row in rows
        ),
    ]


def _tests(row: dict[str, Any], claims: dict[str, list[str]]) -> list[str]:
    found = [row["test"]] if "test" in row else []
    for clause in row.get("clauses", []):
        tests = claims[clause]
        more = [f"{len(tests) - SHOWN} more of {clause}"] if len(tests) > SHOWN else []
        found += [*tests[:SHOWN], *more]
    return found


_TABLE = pytest.StashKey[str]()
_FIRST_WORKER = "gw0"
