"""Pytest plugin: the tests that a change must run, by the table `selection.yaml`.

    pytest --changed            leave out walks whose paths did not change, and the repetitions on PostgreSQL
    KFM_TEST_ALL=1              run everything, as `make soak` does
    KFM_CHANGED_BASE=COMMIT     compare with this commit; default: the newest one older than twelve hours

Without `--changed` pytest runs all tests of its arguments. The selection depends only on base, table and checkout.
Hypothesis' seed is made from the base. pytest's header prints the seed as the option that repeats the run.
Does not belong here: the changed paths (`change.py`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster_tests.change import ROOT, VARIABLE, base_commit, changed_paths

TABLE = Path(__file__).with_name("selection.yaml")
TESTS = "kfm_dagster_tests"
EVERYTHING = "KFM_TEST_ALL"
POSTGRESQL, SQLITE = "postgresql", "sqlite"


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Tests that depend on some paths of the repository, and run when one of these changes.

    `tests` are modules or functions below kfm_dagster_tests, `paths` files and folders from the root. `always` are
    functions or cases that run on every commit anyway.
    """

    name: str
    tests: tuple[str, ...]
    paths: tuple[str, ...]
    always: tuple[str, ...] = ()

    def holds(self, nodeid: str) -> bool:
        """Return whether a test is part of the walk and may be left out."""
        return _named(nodeid, self.tests) and not _named(nodeid, self.always)

    def leaves_out(self, function: str) -> bool:
        """Return whether the walk may leave out every case of a test function or module."""
        cases = tuple(f"{TESTS}/{name}" for name in self.always)
        return self.holds(function) and not any(case.startswith((f"{function}[", f"{function}::")) for case in cases)

    def touched(self, changed: Iterable[str]) -> bool:
        """Return whether a path or test module of the walk changed."""
        modules = (f"{TESTS}/{test.partition('::')[0]}" for test in self.tests)
        return _below(changed, (*self.paths, *modules))


@dataclass(frozen=True, kw_only=True)
class Twins:
    """Tests of Python code repeated on PostgreSQL, although SQLite suffices.

    They run when one of `paths` changes. `always` are the tests of SQL, locks, roles and types, which always run.
    """

    paths: tuple[str, ...]
    always: tuple[str, ...]

    def holds(self, nodeid: str, nodeids: Collection[str]) -> bool:
        """Return whether a test repeats one of `nodeids` on PostgreSQL and may be left out."""
        function, bracket, case = nodeid.partition("[")
        if POSTGRESQL not in case or _named(nodeid, self.always):
            return False
        return f"{function}{bracket}{case.replace(POSTGRESQL, SQLITE)}" in nodeids


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The tests that a run leaves out; if `changed` is None, everything runs, for the `reason`."""

    walks: tuple[Walk, ...]
    twins: Twins
    base: str | None = None
    changed: frozenset[str] | None = None
    reason: str = ""

    @cached_property
    def untouched(self) -> tuple[Walk, ...]:
        """Return the walks that the run leaves out."""
        changed = self.changed
        return () if changed is None else tuple(walk for walk in self.walks if not walk.touched(changed))

    @cached_property
    def repeats(self) -> bool:
        """Return whether the run includes the repetitions on PostgreSQL."""
        return self.changed is None or _below(self.changed, self.twins.paths)

    def leaves_out(self, nodeid: str, nodeids: Collection[str]) -> bool:
        """Return whether this run leaves out a collected test."""
        if any(walk.holds(nodeid) for walk in self.untouched):
            return True
        return not self.repeats and self.twins.holds(nodeid, nodeids)

    def lacking(self, nodeids: Collection[str]) -> list[str]:
        """Return the cases of the table that do not exist, although their test functions are in `nodeids`."""
        cases = {f"{TESTS}/{name}" for walk in self.walks for name in walk.always if "[" in name}
        functions = {nodeid.partition("[")[0] for nodeid in nodeids}
        return sorted(case for case in cases - set(nodeids) if case.partition("[")[0] in functions)

    def __str__(self) -> str:
        """Return one line that names the base and the omitted tests."""
        if self.changed is None or self.base is None:
            return f"everything runs: {self.reason}"
        left_out = [walk.name for walk in self.untouched]
        if not self.repeats:
            left_out.append("repetitions on PostgreSQL")
        return f"{len(self.changed)} paths differ from {self.base[:12]}; left out: {', '.join(left_out) or 'nothing'}"


@cache
def load(path: Path = TABLE) -> tuple[tuple[Walk, ...], Twins]:
    """Read the table. Raises TypeError for an unknown key."""
    table = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    walks = tuple(Walk(**{name: _frozen(value) for name, value in row.items()}) for row in table["walks"])
    return walks, Twins(**{name: _frozen(value) for name, value in table["twins"].items()})


def runs_always(function: str) -> bool:
    """Return whether every commit runs a case of a test function (module::function)."""
    return not any(walk.leaves_out(function) for walk in load()[0])


@cache
def selection(*, changed_only: bool) -> Selection:
    """Return the tests that a run leaves out: none without `--changed`."""
    walks, twins = load()
    if not changed_only or os.environ.get(EVERYTHING) == "1":
        reason = f"{EVERYTHING}=1" if changed_only else "--changed is not given"
        return Selection(walks=walks, twins=twins, reason=reason)
    base = base_commit()
    if base is None:
        named = os.environ.get(VARIABLE)
        reason = f"{VARIABLE}={named} is no commit here" if named else "no commit is old enough to compare with"
        return Selection(walks=walks, twins=twins, reason=reason)
    return Selection(walks=walks, twins=twins, base=base, changed=changed_paths(ROOT, base))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("selection").addoption(
        "--changed",
        action="store_true",
        help="leave out walks whose paths did not change, and PostgreSQL's repetitions",
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    base = selection(changed_only=config.getoption("--changed")).base
    if base is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(int(base[:8], 16))


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = selection(changed_only=config.getoption("--changed"))
    return [f"selection: {chosen}", f"--hypothesis-seed={config.option.hypothesis_seed}"]


@pytest.hookimpl(trylast=True)  # after the page of the clauses, which has every test
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = selection(changed_only=config.getoption("--changed"))
    nodeids = frozenset(item.nodeid for item in items)
    if config.getoption("--changed") and (gone := chosen.lacking(nodeids)):
        raise pytest.UsageError(f"{TABLE.name} names cases that do not exist: {', '.join(gone)}")
    left_out = [item for item in items if chosen.leaves_out(item.nodeid, nodeids)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not chosen.leaves_out(item.nodeid, nodeids)]


def _named(nodeid: str, names: Iterable[str]) -> bool:
    """Return whether `names` has a test, its function, its module or a folder above it."""
    test = nodeid.removeprefix(f"{TESTS}/")
    return any(test == name or test.startswith((f"{name}::", f"{name}[", f"{name}/")) for name in names)


def _below(changed: Iterable[str], paths: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}/") for path in changed for name in paths)


def _frozen(value: Any) -> Any:
    """Return tuples instead of lists, flattened: YAML's anchors nest lists."""
    if not isinstance(value, list):
        return value
    return tuple(text for entry in value for text in (_frozen(entry) if isinstance(entry, list) else (entry,)))
