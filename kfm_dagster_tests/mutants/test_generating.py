"""Generated mutants: the code that is mutated, the order of mutants, the nearest tests, and new lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kfm_dagster_tests.mutants.examining import ROOT, Mutant
from kfm_dagster_tests.mutants.nearest import FAR, NEAREST, Tree, tree
from kfm_dagster_tests.programs import git

if TYPE_CHECKING:
    from kfm_dagster_tests.mutants.generating import Candidate

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
    """Return the changed lines of all mutants of a text."""
    from kfm_dagster_tests.mutants.generating import candidates

    source(root, text)
    before = (root / FILE).read_text(encoding="utf-8").splitlines()
    changed = set()
    for candidate in candidates(root, FILE):
        mutant = candidate.mutant(root)
        if mutant is not None:
            changed |= set(mutant.new.splitlines()) - set(before)
    return {line.strip() for line in changed}


@pytest.fixture(autouse=True)
def _nearest(tmp_path: Path) -> None:
    source(tmp_path, "", file="kfm_dagster_tests/ledger/test_rule.py")


def test_conditions_bounds_and_values_are_mutated(tmp_path: Path) -> None:
    assert {
        "if False:",
        "if limit <= 1:",
        "if limit < 2:",
        "def claim(units, limit=4):",
        'return [unit for unit in units if unit.status != "pending" and not unit.leased][:limit]',
        'return [unit for unit in units if unit.status == "pending" or not unit.leased][:limit]',
        'return [unit for unit in units if unit.status == "pending" and unit.leased][:limit]',
        'return [unit for unit in units if unit.status == "XXpendingXX" and not unit.leased][:limit]',
    } <= changes(tmp_path, MODULE)


def test_prose_types_and_declarations_are_not_mutated(tmp_path: Path) -> None:
    for text in (
        '"""A docstring."""\n',
        "from a import b\n",
        '__all__ = ["a"]\n',
        "Record = Callable[[int], None]\n",
        "Pixels: TypeAlias = Array[float]\n",
        "def f(a: int | None) -> None: pass\n",
        "raise ValueError(1, a == b)\n",
        "_LOG.warning(1, a == b)\n",
        "@dataclass(frozen=True)\nclass A: pass\n",
        "assert a == b\n",
        "def f(tell=lambda _: None): pass\n",
        'a("what is written for people")\n',
        'a(f"{b} of them")\n',
        'a = "what is written for people"\n',
        'class Kind(StrEnum):\n    MADE = "made"\n',
    ):
        assert changes(tmp_path, text) == set(), text
    assert changes(tmp_path, "f(a=False)\n") == {"f(a=True)"}


def test_tests_are_ordered_by_rows_then_names_then_imports(tmp_path: Path) -> None:
    imports = "from kfm_dagster.ledger import rule\n"
    source(tmp_path, MODULE)
    source(tmp_path, imports, file="kfm_dagster/stages/user.py")
    texts = {
        "stages/test_named.py": "",
        "ledger/test_rule.py": "",
        "ledger/test_other.py": imports,
        "stages/test_importing.py": imports,
        "ledger/test_distant.py": "",
        "stages/test_of_user.py": "from kfm_dagster.stages.user import a\n",
        "browser/test_rule.py": imports,
    }
    for name, text in texts.items():
        source(tmp_path, text, file=f"kfm_dagster_tests/{name}")
    row = Mutant(rule="a", file=FILE, old="a", new="b", test="kfm_dagster_tests/stages/test_named.py -k a")
    choice = Tree(tmp_path, [row]).of_module(FILE)
    assert [test.partition("/")[2] for test in choice.tests] == list(texts)[:-1]
    # A module of a command, which tests call, and the package, which they import by another name.
    texts = {"kfm_dagster/cli/due.py": "from kfm_dagster.stages import own\n", "kfm_dagster/stages/own.py": ""}
    texts |= {"kfm_dagster_tests/cli/test_a.py": 'call("due")\n', "kfm_dagster/__init__.py": ""}
    texts |= {"kfm_dagster_tests/alerts/test_a.py": "import kfm_dagster as kfm\n"}
    for name, text in texts.items():
        source(tmp_path, text, file=name)
    for file, test in {"stages/own.py": "cli/test_a.py", "__init__.py": "alerts/test_a.py"}.items():
        assert Tree(tmp_path).of_module(f"kfm_dagster/{file}").tests[0] == f"kfm_dagster_tests/{test}"


def test_every_module_and_every_sql_text_has_near_tests() -> None:
    from kfm_dagster_tests.mutants.generating import candidates, folder_of, mutated_files

    of_tree = tree(ROOT)
    files = mutated_files(ROOT)
    assert {folder_of(file) for file in files} > {
        "console",
        "ledger",
        "followers",
        "sql/queries",
        "sql/schema",
        "kfm_dagster",
    }
    choices = {
        (file, line): of_tree.of_sql(file, line) if file.endswith(".sql") else of_tree.of_module(file)
        for file in files
        for line in (
            sorted({candidate.line for candidate in candidates(ROOT, file)})[::7] if file.endswith(".sql") else [0]
        )
    }
    assert {line for line, choice in choices.items() if not 0 < len(choice.tests) <= NEAREST} == set()
    near = {test for choice in choices.values() for test in choice.tests}
    assert not {test for test in near if test.split("/")[1] in FAR}
    assert len(near) > 200


def test_folders_are_drawn_in_turn_and_each_line_once_before_any_line_twice(tmp_path: Path) -> None:
    from kfm_dagster_tests.mutants.generating import candidates, drawn

    other = "sql/queries/rule.sql"
    source(tmp_path, MODULE)
    source(tmp_path, "WHERE a AND b\n", file=other)
    files = {FILE: None, other: None}

    def positions(drawing: Iterable[Candidate]) -> list[tuple[str, int]]:
        return [(candidate.file, candidate.line) for candidate in drawing]

    order = positions(drawn(tmp_path, files, seed="3"))
    assert sorted(order) == sorted(position for file in files for position in positions(candidates(tmp_path, file)))
    assert [{file for file, _ in order[first : first + 2]} for first in (0, 2)] == [{FILE, other}] * 2
    lines = [line for file, line in order if file == FILE]
    assert set(lines[: len(set(lines))]) == set(lines)
    assert positions(drawn(tmp_path, files, seed="3")) == order
    assert lines != [line for _, line in positions(drawn(tmp_path, {FILE: None}, seed="4"))]


def test_only_lines_that_are_new_since_a_commit_are_mutated(tmp_path: Path) -> None:
    from kfm_dagster_tests.mutants.generating import candidates, changed_lines

    other = "kfm_dagster/stages/other.py"
    source(tmp_path, "a = 1\nb = 2\nc = 3\n")
    source(tmp_path, "d = 4\n", file=other)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    source(tmp_path, "def f():\n    a = 1\nb = 3\nb = 3\nc = 3\n")
    source(tmp_path, "d = 4\nb = 2\n", file=other)
    new = "sql/queries/untracked.sql"
    source(tmp_path, "b\nc\n", file=new)
    assert changed_lines(tmp_path, "HEAD") == {FILE: {1, 3, 4}, new: {1, 2}}
    git(tmp_path, "commit", "-qam", "second")
    assert changed_lines(tmp_path, "HEAD") == {new: {1, 2}}
    assert changed_lines(tmp_path, "HEAD~1") == {FILE: {1, 3, 4}, new: {1, 2}}
    assert {candidate.line for candidate in candidates(tmp_path, FILE, {1, 3, 4})} == {3, 4}


def test_a_change_needs_a_base_and_without_candidates_no_mutant_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    from kfm_dagster_tests.mutants.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(["--changed", "no-such-commit"])
    assert ended.value.code == 2
    assert "KFM_CHANGED_BASE" in capsys.readouterr().err
    assert main(["--changed", "HEAD", "--only", "no-such-file"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "examined 0 of 0 candidates"


@pytest.mark.parametrize(
    ("survivors", "examined", "expected"),
    [
        (0, 0, False),
        (1, 1, False),
        (2, 4, False),
        (3, 4, True),
        (4, 8, True),
        (3, 8, False),
        (12, 60, False),
        (13, 60, True),
    ],
)
def test_survivors_of_a_change_contradict_a_kill_rate_of_90_percent_at_one_in_a_hundred(
    survivors: int, examined: int, expected: bool
) -> None:
    from kfm_dagster_tests.mutants.__main__ import contradicts

    assert contradicts(survivors, examined) is expected
