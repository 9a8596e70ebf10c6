"""The selection of tests: the table names existing tests and paths; table and changed paths decide what runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from kfm_dagster_tests import change
from kfm_dagster_tests.change import ROOT, base_commit, changed_paths
from kfm_dagster_tests.programs import git
from kfm_dagster_tests.selection import TESTS, Selection, Twins, Walk, load

WALKS, TWINS = load()
KILLS = Walk(
    name="kills", tests=("a/test_kill.py",), paths=("kfm_dagster/ledger",), always=("a/test_kill.py::test_x[1]",)
)
REPEATED = Twins(paths=("sql",), always=("a/test_locks.py",))
NODES = frozenset(
    f"{TESTS}/a/{name}"
    for name in (
        "test_kill.py::test_x[1]",
        "test_kill.py::test_x[2]",
        "test_kills_not.py::test_x",
        "test_rule.py::test_y[sqlite-3]",
        "test_rule.py::test_y[postgresql-3]",
        "test_rule.py::test_only[postgresql]",
        "test_locks.py::test_z[sqlite]",
        "test_locks.py::test_z[postgresql]",
    )
)
ALWAYS = {"test_kill.py::test_x[1]", "test_kills_not.py::test_x", "test_rule.py::test_y[sqlite-3]"} | {
    "test_rule.py::test_only[postgresql]",
    "test_locks.py::test_z[sqlite]",
    "test_locks.py::test_z[postgresql]",
}


def test_the_table_names_tests_and_paths_that_exist() -> None:
    named = {name for walk in WALKS for name in (*walk.tests, *walk.always)} | set(TWINS.always)
    missing = [path for path in (path for walk in WALKS for path in walk.paths) if not (ROOT / path).exists()]
    missing += [path for path in TWINS.paths if not (ROOT / path).exists()]
    for name in named:
        module, _, function = name.partition("::")
        path = ROOT / TESTS / module
        if not path.exists() or (function and f"def {function.partition('[')[0]}(" not in path.read_text("utf-8")):
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({"docs/a.md"}, set()),
        ({"kfm_dagster/ledger/store.py"}, {"test_kill.py::test_x[2]"}),
        ({"kfm_dagster/ledgers.py"}, set()),
        ({f"{TESTS}/a/test_kill.py"}, {"test_kill.py::test_x[2]"}),
        ({"sql/queries/a.sql"}, {"test_rule.py::test_y[postgresql-3]"}),
        ({"sql"}, {"test_rule.py::test_y[postgresql-3]"}),
        (None, {"test_kill.py::test_x[2]", "test_rule.py::test_y[postgresql-3]"}),
    ],
)
def test_a_run_leaves_out_the_walks_and_postgresql_repetitions_of_unchanged_paths(
    changed: set[str] | None, more: set[str]
) -> None:
    paths = None if changed is None else frozenset(changed)
    chosen = Selection(walks=(KILLS,), twins=REPEATED, base="0" * 40, changed=paths)
    runs = {nodeid.removeprefix(f"{TESTS}/a/") for nodeid in NODES if not chosen.leaves_out(nodeid, NODES)}
    assert runs == ALWAYS | more


def commit(root: Path, name: str, *, date: str) -> str:
    (root / name).write_text(name, encoding="utf-8")
    git(root, "add", name)
    git(root, "commit", "-qm", name, GIT_COMMITTER_DATE=date)
    return git(root, "rev-parse", "HEAD").strip()


def test_the_base_is_the_newest_commit_older_than_half_a_day_or_the_named_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(change.VARIABLE, raising=False)
    assert base_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    older = commit(tmp_path, "older", date="2025-01-01T00:00:00Z")
    base = commit(tmp_path, "base", date="2025-01-02T00:00:00Z")
    commit(tmp_path, "new", date=datetime.now(UTC).isoformat())
    (tmp_path / "untracked é").write_text("")
    assert base_commit(tmp_path) == base
    assert changed_paths(tmp_path, base) == {"new", "untracked é"}
    monkeypatch.setenv(change.VARIABLE, older[:8])
    assert base_commit(tmp_path) == older
    assert changed_paths(tmp_path, older) == {"base", "new", "untracked é"}
    monkeypatch.setenv(change.VARIABLE, "no-such-commit")
    assert base_commit(tmp_path) is None


def test_a_function_runs_on_every_commit_if_one_of_its_cases_does() -> None:
    module = f"{TESTS}/a/test_kill.py"
    functions = {f"{module}::test_x": False, f"{module}::test_z": True, module: False, f"{TESTS}/a/test_rule.py": False}
    assert {function: KILLS.leaves_out(function) for function in functions} == functions


def test_a_case_of_the_table_without_a_test_is_reported() -> None:
    chosen = Selection(walks=(KILLS,), twins=REPEATED)
    assert chosen.lacking(NODES) == []
    assert chosen.lacking(NODES - {f"{TESTS}/a/test_kill.py::test_x[1]"}) == [f"{TESTS}/a/test_kill.py::test_x[1]"]
    assert chosen.lacking([f"{TESTS}/a/test_rule.py::test_y[sqlite-3]"]) == []
