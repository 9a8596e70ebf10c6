"""Every command of every runbook, typed into a shell as it is written, over the home that `kfm demo` leaves.

A command is a line `$ ...` of a `console` block (continued by `\\`, or by a here-document); what follows it is what an
operator sees, and is not compared. A command that ends otherwise than with 0 says so: `# exits 3`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
EXPECTED = {"dlq-drain", "incident-replay", "delayed-queue", "validation-errors", "kill-switch"}
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXITS = re.compile(r"#\s*exits (\d+)\s*$")
DEMO_SECONDS = 300
RUNBOOK_SECONDS = 420


@dataclass(frozen=True)
class Command:
    """One command, and the exit code that the runbook promises."""

    text: str
    exits: int = 0


def commands(runbook: str) -> Iterator[Command]:
    """The commands of a runbook, in order."""
    for block in _BLOCK.findall(runbook):
        lines = iter(block.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                continue
            text = line[2:]
            while text.endswith("\\"):
                text += "\n" + next(lines).removeprefix("> ")
            if marker := re.search(r"<<\s*'?(\w+)'?", text):
                for more in lines:
                    text += "\n" + more.removeprefix("> ")
                    if text.endswith("\n" + marker[1]):
                        break
            exits = _EXITS.search(text)
            yield Command(_EXITS.sub("", text).rstrip(), int(exits[1]) if exits else 0)


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kfm demo` leaves: some units of each fate, a duplicate, a rejected message."""
    folder = tmp_path_factory.mktemp("runbooks")
    done = _shell("kfm demo --json", folder, seconds=DEMO_SECONDS)
    assert done.returncode == 0, done.stdout
    return folder / ".kfm"


@pytest.mark.deployment
@pytest.mark.timeout(DEMO_SECONDS + RUNBOOK_SECONDS + 60)
@pytest.mark.parametrize("name", sorted(path.stem for path in RUNBOOKS.glob("*.md")))
def test_every_command_of_the_runbook_does_what_it_says(name: str, demo_home: Path, tmp_path: Path) -> None:
    shutil.copytree(demo_home, tmp_path / ".kfm")
    found = list(commands((RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")))
    assert found, "a runbook without a command helps nobody at three in the morning"
    steps = [
        f"say {number}; {command.text}\nended $? {command.exits} {number}" for number, command in enumerate(found, 1)
    ]
    script = "\n".join(
        [
            'say() { printf "\\n[%s] " "$1"; }',
            'ended() { [ "$1" -eq "$2" ] || { echo "command $3 ended with $1, the runbook says $2"; exit 99; }; }',
            *steps,
        ]
    )
    done = _shell(script, tmp_path, seconds=RUNBOOK_SECONDS)
    assert done.returncode == 0, _told(found, done.stdout)


def test_every_runbook_that_an_operator_is_promised_is_there() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} >= EXPECTED


def _told(found: list[Command], output: str) -> str:
    listed = "\n".join(f"[{number}] {command.text}" for number, command in enumerate(found, 1))
    return f"{listed}\n--- output ---\n{output}"


def _shell(script: str, folder: Path, *, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a script in a shell of its own process group, which ends with it, background jobs and all."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("KFM_", "AWS_", "DAGSTER_"))}
    environment = keep | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KFM_ACTOR": "on-call",
        "COLUMNS": "200",
    }
    log = folder / "shell.log"
    # A file, not a pipe: a background job would keep a pipe open after the shell has ended.
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    return subprocess.CompletedProcess("bash", code, log.read_text(encoding="utf-8", errors="replace"))
