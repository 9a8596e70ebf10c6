"""The mutants' own tests: rows fit the code, a sample is killed, and mutants that are not killed are reported."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kfm_dagster_tests.change import base_commit
from kfm_dagster_tests.mutants.examining import (
    RETIRED,
    ROOT,
    RULES,
    Copy,
    Mutant,
    StepResult,
    copied,
    load,
    lost,
)
from kfm_dagster_tests.programs import git

FAST = ("test_redaction.py", "test_python_", "stages/test_machine.py", "catalog/test_order.py")
"""Tests without a database."""
SMALL = "test_small.py"
"""A test that exists only in the copy."""
HARMLESS = Mutant(
    rule="nothing",
    file="kfm_dagster/plural.py",
    old=(ROOT / "kfm_dagster/plural.py").read_text(encoding="utf-8").partition("\n")[0],
    new='"""A docstring."""',
    test=SMALL,
)
BREAKING = "import nothing_of_that_name"
MINIMUM = 600
SELECTING = {"and", "or", "not", "sqlite", "postgresql"}
"""Words of `-k` that are not part of a test's name."""
SEED = 8


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with copied() as copy_of_checkout:
        small = "from kfm_dagster import plural\n\n\ndef test_small():\n    assert plural\n"
        (copy_of_checkout.folder / SMALL).write_text(small, encoding="utf-8")
        yield copy_of_checkout


def test_every_row_of_the_list_fits_the_code_and_names_tests_that_exist() -> None:
    rows = load()
    assert len({mutant.rule for mutant in rows}) == len(rows) >= MINIMUM
    assert [line for mutant in rows for line in faults(mutant)] == []


def faults(mutant: Mutant) -> list[str]:
    """Return what is wrong in a row: a text that its file lacks, a change without effect, tests that do not exist."""
    arguments = mutant.arguments
    expression = arguments.index("-k") if "-k" in arguments else len(arguments)
    files = [name.partition("::")[0] for name in arguments[:expression]]
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in files if (ROOT / name).is_file())
    selected = " ".join([*arguments[expression:], *mutant.test.split("::")[1:]])
    wrong = [
        mutant.misplaced(ROOT),
        "the change has no effect" if mutant.new == mutant.old else None,
        "the expression after -k is not quoted" if len(arguments) > expression + 2 else None,
        *(f"{name} does not exist" for name in files if not (ROOT / name).is_file()),
        *(
            f"no test is named {name}"
            for name in re.findall(r"\btest_\w+(?![\w./])", selected)
            if f"def {name}" not in texts
        ),
        *(
            f"no test has {word} in its name"
            for word in re.findall(r"\w+", " ".join(arguments[expression + 1 :]))
            if word not in texts and word not in SELECTING
        ),
    ]
    return [f"{mutant.rule}: {fault}" for fault in wrong if fault]


def test_a_rule_of_the_base_commit_is_still_listed_or_retired() -> None:
    if (base := base_commit()) is None:
        pytest.skip("there is no commit to compare with")
    assert lost(ROOT, base) == set()


def test_a_rule_is_lost_if_it_is_neither_listed_nor_retired(tmp_path: Path) -> None:
    folder, retired = (tmp_path / path.relative_to(ROOT) for path in (RULES, RETIRED))
    folder.mkdir(parents=True)

    def listed(*rules: str) -> None:
        rows = (f"- {{rule: {rule}, file: a, old: b, new: c, test: d}}\n" for rule in rules)
        (folder / "room.yaml").write_text("".join(rows), encoding="utf-8")

    git(tmp_path, "init", "-q")
    for rules in (("kept", "gone", "given up"), ("kept", "given up", "short-lived"), ("kept", "new")):
        listed(*rules)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", "rules")
    retired.write_text("- {rule: given up, reason: the product has no such thing}\n", encoding="utf-8")
    assert lost(tmp_path, "HEAD~2") == {"gone", "short-lived"}
    assert lost(tmp_path, "HEAD") == set()


@pytest.mark.clause("BEY-17")
def test_a_sample_of_the_mutants_is_killed(copy: Copy) -> None:
    sample = random.Random(SEED).sample([row for row in load() if any(name in row.test for name in FAST)], 2)
    examined = [copy.examine(mutant) for mutant in sample]
    assert all(result.failed for result in examined)
    assert [result.fate for result in copy.confirmed(examined)] == [StepResult.KILLED] * len(sample)


@pytest.mark.parametrize(
    ("change", "fate"),
    [
        ({}, StepResult.SURVIVED),
        ({"test": f"{SMALL}::test_of_nothing"}, StepResult.BROKEN),
        ({"test": f"{SMALL} -k test_of_nothing", "generated": True}, StepResult.BROKEN),
        ({"new": BREAKING}, StepResult.BROKEN),
        ({"new": BREAKING, "generated": True}, StepResult.KILLED),
        ({"new": "import os\nos._exit(0)", "generated": True}, StepResult.KILLED),
        ({"old": "a text that is not there"}, StepResult.BROKEN),
    ],
)
def test_a_mutant_without_a_failed_test_is_not_counted_as_killed(
    copy: Copy, change: dict[str, str], fate: StepResult
) -> None:
    path = copy.folder / HARMLESS.file
    original = path.read_text(encoding="utf-8")
    result = copy.examine(replace(HARMLESS, **change))
    assert result.fate is fate
    assert bool(result.why) is (fate is not StepResult.KILLED)
    assert path.read_text(encoding="utf-8") == original


def test_a_survivor_is_examined_a_second_time_by_its_further_tests(copy: Copy) -> None:
    for name, condition in (("test_second.py", "plural.__doc__ != 'A docstring.'"), ("test_deselected.py", "True")):
        text = f"from kfm_dagster import plural\n\n\ndef {name[:-3]}():\n    assert {condition}\n"
        (copy.folder / name).write_text(text, encoding="utf-8")
    for further, fate in (
        ("test_second.py", StepResult.KILLED),
        ("test_deselected.py", StepResult.SURVIVED),
        ("test_second.py -k nothing", StepResult.SURVIVED),
    ):
        examined = copy.examine_twice(replace(HARMLESS, further=further))
        assert examined.fate is fate
    assert copy.examine_twice(HARMLESS, end=time.monotonic() + 0.01) is None


def test_a_hanging_test_is_killed_with_its_fork(copy: Copy) -> None:
    old = "from __future__ import annotations"
    hanging = replace(HARMLESS, old=old, new="import time\ntime.sleep(600)", generated=True)
    assert copy.examine(hanging, timeout=1).fate is StepResult.BROKEN
    assert copy.examine(HARMLESS).fate is StepResult.SURVIVED


def test_a_test_that_also_fails_without_the_mutant_does_not_count(copy: Copy) -> None:
    path = copy.folder / "test_that_fails.py"
    path.write_text("def test_that_fails():\n    assert False\n", encoding="utf-8")
    result = copy.examine(replace(HARMLESS, test=path.name))
    assert result.fate is StepResult.KILLED
    # This failed case exists only with the mutant.
    other = replace(result, failed=frozenset({f"{HARMLESS.test}::test_of_nothing[1]"}))
    assert {confirmed.fate for confirmed in copy.confirmed([result, other])} == {StepResult.BROKEN}
    path.write_text(
        "import pytest\n\n\n@pytest.mark.skip\ndef test_that_fails():\n    assert False\n", encoding="utf-8"
    )
    assert copy.examine(replace(HARMLESS, test=path.name)).fate is StepResult.BROKEN


def test_a_copy_in_which_no_test_runs_is_refused(copy: Copy) -> None:
    assert copy.refusal() is None
    conftest = copy.folder / "kfm_dagster_tests/conftest.py"
    original = conftest.read_text(encoding="utf-8")
    conftest.write_text(f"{original}\n{BREAKING}\n", encoding="utf-8")
    try:
        assert "nothing_of_that_name" in (copy.refusal() or "")
    finally:
        conftest.write_text(original, encoding="utf-8")
