"""Run the commands of documents in a shell.

A command is a line `$ ...` of a `console` block, continued by `\\` or a here-document; output after it is not
compared. A comment `# exits 3` states another exit code than 0.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXITS = re.compile(r"#\s*exits (\d+)\s*$")


@dataclass(frozen=True)
class Command:
    """A command, and the exit code that the document states."""

    text: str
    exits: int = 0


def commands(document: str) -> Iterator[Command]:
    """Yield the commands of a document, in order."""
    for block in _BLOCK.findall(document):
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


def script(listed: Sequence[Command]) -> str:
    """Return a script of all commands, which exits with 99 at the first unexpected exit code."""
    steps = [
        f"say {number}; {command.text}\nended $? {command.exits} {number}" for number, command in enumerate(listed, 1)
    ]
    return "\n".join(
        [
            'say() { printf "\\n[%s] " "$1"; }',
            'ended() { [ "$1" -eq "$2" ] || { echo "command $3 ended with $1, the document says $2"; exit 99; }; }',
            *steps,
        ]
    )


def transcript(listed: Sequence[Command], output: str) -> str:
    lines = "\n".join(f"[{number}] {command.text}" for number, command in enumerate(listed, 1))
    return f"{lines}\n--- output ---\n{output}"


def shell_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a shell's variables: those of this process without settings, and `variables`."""
    keep = {
        name: value for name, value in os.environ.items() if not name.startswith(("KFM_", "AWS_", "DAGSTER_", "PG"))
    }
    return keep | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KFM_ACTOR": "on-call",
        "COLUMNS": "200",
        **variables,
    }


@contextmanager
def session(
    command: Sequence[str],
    folder: Path,
    log: Path,
    variables: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    end: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[str]]:
    """Run a command as leader of a session; on exit, end the session's processes."""
    # The output goes to a file, because a background job would keep a pipe open after the command has ended.
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env=shell_environment(variables),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as started,
    ):
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, end)


def shell(
    text: str, folder: Path, *, seconds: float, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script in a new shell."""
    log = folder / "shell.log"
    with session(["bash", "-c", text], folder, log, variables or {}) as started:
        try:
            code = started.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
    return subprocess.CompletedProcess("bash", code, log.read_text(encoding="utf-8", errors="replace"))
