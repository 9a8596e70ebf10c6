"""The soak's parts: their sizes follow the scale, and what they are given exists."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import soak
from kfm_dagster_tests.fuzz.specimens import SUBJECTS
from kfm_dagster_tests.mutants.examining import load

NAMES = [part.name for part in soak.parts(1)]
MUTANTS = len(load())


def sizes(scale: str) -> dict[str, list[int]]:
    """The numbers that each part is given."""
    found = {}
    for part in soak.chosen([], scale=scale):
        texts = (*part.command, *part.variables.values())
        found[part.name] = [int(text) for text in texts if text.isdecimal()]
    return found


@pytest.mark.parametrize(
    (
        "scale",
        "simulation",
        "contention",
        "stride",
        "answers",
        "mutants",
        "generated",
        "fuzz",
        "campaign",
        "mail",
        "ledger",
    ),
    [
        ("1", [10_000, 1_000_000], 10_000, 1, 10_000, MUTANTS, 300, 200_000, [10_000, 200], 500_000, 1_000_000),
        ("0.5", [5_000, 500_000], 5_000, 2, 5_000, round(MUTANTS / 2), 150, 100_000, [5_000, 100], 250_000, 500_000),
        ("0.1", [1_000, 100_000], 1_000, 10, 1_000, round(MUTANTS / 10), 30, 20_000, [1_000, 20], 50_000, 100_000),
        ("1e-9", [10, 1_000], 500, 15, 60, 10, 10, 200, [500, 10], 1_000, 25_000),
    ],
)
def test_every_part_follows_the_scale_down_to_its_least_size(
    scale: str,
    simulation: list[int],
    contention: int,
    stride: int,
    answers: int,
    mutants: int,
    generated: int,
    fuzz: int,
    campaign: list[int],
    mail: int,
    ledger: int,
) -> None:
    odd = [max(500, round(3_000 * float(scale))), max(10, round(60 * float(scale))), 100]
    assert sizes(scale) == {
        "tests": [(os.cpu_count() or 1) + 2],
        "simulation": simulation,
        "contention": [contention],
        "crash-matrix": [stride],
        "store-answers": [answers],
        "mutants": [mutants],
        "generated-mutants": [generated],
        **{f"fuzz-{subject}": [fuzz] for subject in SUBJECTS},
        "chaos-sqlite": campaign,
        "chaos-postgresql": campaign,
        "odd-store-sqlite": odd,
        "odd-store-postgresql": odd,
        "mail-sqlite": [mail],
        "mail-postgresql": [mail],
        "ledger-sqlite": [ledger],
        "ledger-postgresql": [ledger],
    }


@pytest.mark.parametrize("part", soak.parts(1), ids=lambda part: part.name)
def test_a_part_is_a_command_with_these_options(part: soak.Part) -> None:
    flag, module, *arguments = part.command
    assert flag == "-m"
    if module == "pytest":
        paths = [soak.ROOT / text for text in arguments if text.endswith(".py")]
        assert all(name in path.read_text(encoding="utf-8") for path in paths for name in part.variables)
        return
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    for option in (text for text in arguments if text.startswith("--")):
        assert f'"{option}"' in source


def test_parts_are_chosen_by_name_in_the_order_of_all() -> None:
    assert [part.name for part in soak.chosen([], scale="1")] == NAMES
    assert [part.name for part in soak.chosen(["mail-sqlite", "simulation"], scale="1")] == [
        "simulation",
        "mail-sqlite",
    ]


@pytest.mark.parametrize("scale", ["", "a tenth", "-x", "0", "-1", "1.01", "nan", "inf"])
def test_a_scale_that_is_no_fraction_is_one_line(scale: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert soak.main([f"--scale={scale}"]) == 2
    out, said = capfd.readouterr()
    assert (out, said) == ("", f"soak: SCALE is a number above 0, at most 1; observed {scale!r}\n")


def test_an_unknown_part_is_one_line_with_the_parts_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["simulation", "mial-sqlite"]) == 2
    out, said = capfd.readouterr()
    assert (out, said) == ("", f"soak: no part mial-sqlite; there are {', '.join(NAMES)}\n")


def test_the_figures_of_a_part_are_printed_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figures"
    first = soak.Part(name="first", command=("-c", "print('noise'); print('a figure')"))
    second = soak.Part(name="second", command=("-c", f"print(open({str(path)!r}).read(), end=''); exit(3)"))
    with path.open("w", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdout", file)
        assert soak.soak([first, second]) == 1
    assert [line.partition(", ")[0] for line in path.read_text(encoding="utf-8").splitlines()] == [
        "first: held",
        "    a figure",
        "second: FAILED with exit code 3",
        "    first: held",
        "        a figure",
    ]


def test_what_make_soak_is_given_reaches_the_soak() -> None:
    given = ["make", "-n", "soak", "PART=simulation mail-sqlite", "SCALE=0.1"]
    done = subprocess.run(given, cwd=soak.ROOT, capture_output=True, text=True, check=True)
    assert 'benchmarks.soak --scale="0.1" simulation mail-sqlite' in done.stdout
