"""Generated mutants: what is mutated and what is not, their order, the tests nearest to them, which lines are new."""

from __future__ import annotations

import subprocess
import textwrap
from itertools import islice
from pathlib import Path

import pytest

from kfm_dagster_tests.mutants.__main__ import generated, main
from kfm_dagster_tests.mutants.examining import ROOT
from kfm_dagster_tests.mutants.generating import (
    NEAREST,
    SLOW,
    candidates,
    changed_lines,
    drawn,
    mutated_files,
    nearest_tests,
)

FILE = "kfm_dagster/ledger/rule.py"
MODULE = '''\
"""A rule."""

def claim(units, limit=3):
    """Claim what is due."""
    if limit < 1:
        raise ValueError(f"{limit} is too few")
    return [unit for unit in units if unit.status == "pending" and not unit.leased][:limit]
'''


def source(root: Path, text: str, *, file: str = FILE) -> Path:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def changes(root: Path, text: str) -> set[str]:
    """Each mutant's line of a text, as it is changed."""
    source(root, text)
    before = (root / FILE).read_text(encoding="utf-8").splitlines()
    found = set()
    for one in candidates(root, [FILE]):
        mutant = one.mutant(root)
        if mutant is not None:
            found |= set(mutant.new.splitlines()) - set(before)
    return {line.strip() for line in found}


@pytest.fixture(autouse=True)
def _nearest(tmp_path: Path) -> None:
    source(tmp_path, "", file="kfm_dagster_tests/ledger/test_rule.py")


def test_rules_are_mutated(tmp_path: Path) -> None:
    found = changes(tmp_path, MODULE)
    assert {
        "if False:",
        "if limit <= 1:",
        "if limit < 2:",
        "def claim(units, limit=4):",
        'return [unit for unit in units if unit.status != "pending" and not unit.leased][:limit]',
        'return [unit for unit in units if unit.status == "pending" or not unit.leased][:limit]',
        'return [unit for unit in units if unit.status == "pending" and unit.leased][:limit]',
        'return [unit for unit in units if unit.status == "XXpendingXX" and not unit.leased][:limit]',
    } <= found


def test_a_guard_is_the_condition_of_an_error(tmp_path: Path) -> None:
    source(tmp_path, "if a:\n    print()\n    raise ValueError\nif b:\n    raise ValueError\nif c:\n    d()\n")
    assert [one.line for one in candidates(tmp_path, [FILE]) if one.guard] == [1, 4]


@pytest.mark.parametrize(
    "text",
    [
        '"""A docstring."""\n',
        "from a import b\n",
        '__all__ = ["a"]\n',
        "Record = Callable[[int], None]\n",
        "def f(a: int | None) -> None: pass\n",
        "raise ValueError(1, a == b)\n",
        "_LOG.warning(1, a == b)\n",
        "@dataclass(frozen=True)\nclass A: pass\n",
        "assert a == b\n",
        'a("what is written for people")\n',
        'a(f"{b} of them")\n',
        'a = "what is written for people"\n',
    ],
)
def test_what_no_test_should_hold_is_not_mutated(text: str, tmp_path: Path) -> None:
    assert changes(tmp_path, text) == set()


def test_every_mutated_file_has_tests_nearest_to_it_and_those_of_its_module_come_first() -> None:
    files = mutated_files(ROOT)
    assert {name for name in NEAREST if not any(file.startswith(name) for file in files)} == set()
    for file in files:
        tests = nearest_tests(ROOT, file)
        assert tests
        assert all((ROOT / name).is_file() for name in tests)
        assert not SLOW & {Path(name).name for name in tests}
    assert nearest_tests(ROOT, "kfm_dagster/ledger/redaction.py")[0].endswith("/test_ledger_redaction.py")


def test_guards_are_drawn_first_then_one_mutant_of_each_line(tmp_path: Path) -> None:
    source(tmp_path, MODULE)
    found = candidates(tmp_path, [FILE])
    order = list(drawn(found, seed=3))
    assert len(order) == len(found)
    assert order[0].guard
    assert not any(one.guard for one in order[1:])
    others = [one for one in found if not one.guard]
    lines = {one.line for one in others}
    assert {one.line for one in islice(drawn(others, seed=3), len(lines))} == lines
    assert order == list(drawn(found, seed=3)) != list(drawn(found, seed=4))


def test_only_what_is_new_since_a_commit_is_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    other = "kfm_dagster/stages/other.py"
    source(tmp_path, "a = 1\nb = 2\nc = 3\n")
    source(tmp_path, "d = 4\n", file=other)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    source(tmp_path, "def f():\n    a = 1\nb = 3\nb = 3\nc = 3\n")
    source(tmp_path, "d = 4\nb = 2\n", file=other)
    source(tmp_path, "b = 4\n", file="kfm_dagster/untracked.py")
    assert changed_lines(tmp_path, "HEAD") == {FILE: {1, 3, 4}}
    assert changed_lines(tmp_path, "HEAD~1") is None
    git("commit", "-qam", "second")
    assert changed_lines(tmp_path, "HEAD") == {}
    assert changed_lines(tmp_path, "HEAD~1") == {FILE: {1, 3, 4}}


def test_without_the_commit_there_is_nothing_to_examine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--changed", "no-such-commit"]) == 0
    out, _ = capsys.readouterr()
    assert out == "no commit no-such-commit to compare with (a shallow clone?)\nno mutant to examine\n"


def test_a_sample_is_of_the_files_that_are_named() -> None:
    found = list(generated(["ledger/policy.py"], base=None, sample=3, seed=0))
    assert [one.file for one in found] == ["kfm_dagster/ledger/policy.py"] * 3
    assert all(one.misplaced(ROOT) is None and one.any_end and "not postgresql" in one.test for one in found)
