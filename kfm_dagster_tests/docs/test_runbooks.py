"""Every command of every runbook, run over the home that `kfm demo` leaves; `console.py` says what a command is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kfm_dagster_tests.docs.console import commands, script, shell, told
from kfm_dagster_tests.patience import HANG_SECONDS

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
EXPECTED = {"dlq-drain", "incident-replay", "delayed-queue", "validation-errors", "kill-switch"}


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kfm demo` leaves: some units of each fate, a duplicate, a rejected message."""
    folder = tmp_path_factory.mktemp("runbooks")
    done = shell("kfm demo --json", folder, seconds=HANG_SECONDS)
    assert done.returncode == 0, done.stdout
    return folder / ".kfm"


@pytest.mark.deployment
@pytest.mark.timeout(2 * HANG_SECONDS + 60)
@pytest.mark.parametrize("name", sorted(path.stem for path in RUNBOOKS.glob("*.md")))
def test_every_command_of_the_runbook_does_what_it_says(name: str, demo_home: Path, tmp_path: Path) -> None:
    shutil.copytree(demo_home, tmp_path / ".kfm")
    found = list(commands((RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")))
    assert found, "a runbook without a command helps nobody at three in the morning"
    done = shell(script(found), tmp_path, seconds=HANG_SECONDS)
    assert done.returncode == 0, told(found, done.stdout)


def test_every_runbook_that_an_operator_is_promised_is_there() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} >= EXPECTED
