"""The API reference: built from the rooms that others import, each of whose names says what it is."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["idempotent_node", "ledger", "readers", "run_state"]


@pytest.fixture(params=ROOMS)
def room(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"kfm_dagster.{request.param}")


def test_every_exported_name_has_a_docstring_of_its_own(room: ModuleType) -> None:
    assert room.__doc__
    assert sorted(set(room.__all__)) == room.__all__
    for name in room.__all__:
        exported = getattr(room, name)
        said = vars(exported).get("__doc__") if inspect.isclass(exported) else exported.__doc__
        # What a dataclass or a pydantic model without one gets begins with its signature.
        assert said and not said.startswith(f"{name}("), name  # noqa: PT018, one rule
        assert exported.__module__.startswith(f"{room.__name__}."), name


def test_the_room_exports_nothing_that_it_does_not_list(room: ModuleType) -> None:
    others = {name for name, value in vars(room).items() if not inspect.ismodule(value) and not name.startswith("_")}
    assert others == set(room.__all__)


def test_the_reference_has_a_page_for_each_room(tmp_path: Path) -> None:
    listed = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PUBLIC :="))
    assert listed == f"PUBLIC := $(addprefix kfm_dagster.,{' '.join(ROOMS)})"
    rooms = [f"kfm_dagster.{name}" for name in ROOMS]
    done = subprocess.run(
        [sys.executable, "-m", "pydoc", "-w", *rooms], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name in rooms:
        page = (tmp_path / f"{name}.html").read_text()
        for exported in importlib.import_module(name).__all__:
            assert f'<a name="{exported}">' in page or f'<a name="-{exported}">' in page, exported
