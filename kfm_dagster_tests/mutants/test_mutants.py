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
    copied,
    examine,
    imported_from,
    load,
    unmutated,
)

MUTANTS = load()
FAST = ("ledger/test_ledger_redaction.py", "test_python_", "stages/test_machine.py", "catalog/test_order.py")
"""Tests without a database."""
SEED = 8
SAMPLE = random.Random(SEED).sample([one for one in MUTANTS if any(name in one.test for name in FAST)], 3)


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    with copied() as folder:
        yield folder


def test_names_of_mutants_are_distinct() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_of_code_and_tests_that_there_are(mutant: Mutant) -> None:
    assert mutant.misplaced(ROOT) is None
    assert mutant.new != mutant.old
    arguments = mutant.arguments
    expression = arguments.index("-k") if "-k" in arguments else len(arguments)
    files = [name.partition("::")[0] for name in arguments[:expression]]
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    for name in re.findall(r"\btest_\w+(?![\w./])", " ".join([*arguments[expression:], *mutant.test.split("::")[1:]])):
        assert f"def {name}" in texts


def test_a_sample_of_the_mutants_is_killed(copy: Path) -> None:
    assert imported_from(copy) == copy / "kfm_dagster"
    assert unmutated(copy, SAMPLE) is None
    assert [examine(copy, mutant).fate for mutant in SAMPLE] == [StepResult.KILLED] * len(SAMPLE)


@pytest.mark.parametrize(
    ("change", "fate"),
    [
        ({"new": '"""A ledger of'}, StepResult.SURVIVED),
        ({"test": "kfm_dagster_tests/catalog/test_order.py::test_of_nothing"}, StepResult.BROKEN),
        ({"test": "kfm_dagster_tests/catalog/test_order.py -k test_of_nothing"}, StepResult.BROKEN),
        ({"new": "import nothing_of_that_name"}, StepResult.BROKEN),
        ({"old": "a text that is not there"}, StepResult.BROKEN),
    ],
)
def test_a_mutant_that_shows_nothing_is_not_taken_for_killed(
    copy: Path, change: dict[str, str], fate: StepResult
) -> None:
    path = copy / "kfm_dagster/catalog/outcomes.py"
    sound = path.read_text(encoding="utf-8")
    harmless = Mutant(
        name="nothing",
        file="kfm_dagster/catalog/outcomes.py",
        old=sound.partition("\n")[0],
        new='"""Outcomes."""',
        test="kfm_dagster_tests/catalog/test_order.py",
    )
    found = examine(copy, replace(harmless, **change))
    assert found.fate is fate
    assert found.why
    assert path.read_text(encoding="utf-8") == sound
