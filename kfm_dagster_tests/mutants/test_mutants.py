"""The mutants' own test: the list fits the code, a sample of it is killed, and the examination can fail."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kfm_dagster_tests.mutants.examining import (
    ROOT,
    Mutant,
    StepResult,
    confirmed,
    copied,
    examine,
    imported_from,
    load,
)

FAST = ("ledger/test_ledger_redaction.py", "test_python_", "stages/test_machine.py", "catalog/test_order.py")
"""Tests without a database."""
HARMLESS = Mutant(
    rule="nothing",
    file="kfm_dagster/catalog/outcomes.py",
    old=(ROOT / "kfm_dagster/catalog/outcomes.py").read_text(encoding="utf-8").partition("\n")[0],
    new='"""A ledger of',
    test="kfm_dagster_tests/catalog/test_order.py",
)
LEAST = 279
SEED = 8


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    with copied() as folder:
        yield folder


def test_every_row_of_the_list_fits_the_code_and_names_tests_that_exist() -> None:
    rows = load()
    assert len({mutant.rule for mutant in rows}) == len(rows) >= LEAST
    assert [line for mutant in rows for line in faults(mutant)] == []


def faults(mutant: Mutant) -> list[str]:
    """What is wrong with a row: its place, its change, the files and the functions that its test names."""
    arguments = mutant.arguments
    expression = arguments.index("-k") if "-k" in arguments else len(arguments)
    files = [name.partition("::")[0] for name in arguments[:expression]]
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in files if (ROOT / name).is_file())
    asked = " ".join([*arguments[expression:], *mutant.test.split("::")[1:]])
    wrong = [
        mutant.misplaced(ROOT),
        "the change changes nothing" if mutant.new == mutant.old else None,
        *(f"{name} does not exist" for name in files if not (ROOT / name).is_file()),
        *(
            f"no test is named {name}"
            for name in re.findall(r"\btest_\w+(?![\w./])", asked)
            if f"def {name}" not in texts
        ),
    ]
    return [f"{mutant.rule}: {fault}" for fault in wrong if fault]


@pytest.mark.clause("BEY-17")
def test_a_sample_of_the_mutants_is_killed(copy: Path) -> None:
    assert imported_from(copy) == copy / "kfm_dagster"
    sample = random.Random(SEED).sample([one for one in load() if any(name in one.test for name in FAST)], 3)
    found = [examine(copy, mutant) for mutant in sample]
    assert all(one.failed for one in found)
    assert [one.fate for one in confirmed(copy, found)] == [StepResult.KILLED] * len(sample)


@pytest.mark.parametrize(
    ("change", "fate"),
    [
        ({}, StepResult.SURVIVED),
        ({"test": "kfm_dagster_tests/catalog/test_order.py::test_of_nothing"}, StepResult.BROKEN),
        ({"test": "kfm_dagster_tests/catalog/test_order.py -k test_of_nothing"}, StepResult.BROKEN),
        ({"new": "import nothing_of_that_name"}, StepResult.BROKEN),
        ({"old": "a text that is not there"}, StepResult.BROKEN),
    ],
)
def test_a_mutant_that_shows_nothing_is_not_taken_for_killed(
    copy: Path, change: dict[str, str], fate: StepResult
) -> None:
    path = copy / HARMLESS.file
    sound = path.read_text(encoding="utf-8")
    found = examine(copy, replace(HARMLESS, **change))
    assert found.fate is fate
    assert found.why
    assert path.read_text(encoding="utf-8") == sound


def test_code_that_cannot_be_loaded_kills_a_mutant_of_which_any_end_does(copy: Path) -> None:
    mutant = replace(HARMLESS, new="import nothing_of_that_name", any_end=True)
    assert examine(copy, mutant).fate is StepResult.KILLED
    no_test = replace(HARMLESS, test=f"{HARMLESS.test} -k test_of_nothing", any_end=True)
    assert examine(copy, no_test).fate is StepResult.BROKEN


def test_a_test_that_fails_without_the_mutant_has_not_noticed_it(copy: Path) -> None:
    path = copy / "kfm_dagster_tests/catalog/test_that_fails.py"
    path.write_text("def test_that_fails():\n    assert False\n", encoding="utf-8")
    try:
        found = examine(copy, replace(HARMLESS, test=str(path.relative_to(copy))))
        assert found.fate is StepResult.KILLED
        # The case of a second one is there only with its mutant.
        other = replace(found, failed=frozenset({f"{HARMLESS.test}::test_of_nothing[1]"}))
        assert {one.fate for one in confirmed(copy, [found, other])} == {StepResult.BROKEN}
    finally:
        path.unlink()
