"""The soak's parts: their sizes follow the scale, and what they are given exists."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from benchmarks import soak

NAMES = [part.name for part in soak.parts(1)]


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
    source = Path(spec.origin).read_text(encoding="utf-8")
    for option in (text for text in arguments if text.startswith("--")):
        assert f'"{option}"' in source


def test_a_scale_that_is_no_fraction_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    for scale in ("", "a tenth", "-x", "0", "-1", "1.01", "nan", "inf"):
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
