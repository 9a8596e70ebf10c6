"""Run `kfm ...` in this process, and read its output, its exit code and the state of a folder."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from kfm_dagster.cli.main import kfm, main
from kfm_dagster.errors import ExitCode


class Answer(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the JSON object of each line of the output."""
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, *texts: str, code: int = ExitCode.USAGE) -> None:
        """Check a refusal: exit code, no output, and one line on standard error with each text."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("kfm: "), self
        assert [text for text in texts if text not in self.err] == [], self

    @property
    def document(self) -> Any:
        """Return the output as one JSON document."""
        return json.loads(self.out)


Call = Callable[..., Answer]
SERVE = "import sys; from kfm_dagster.cli.main import main; main(sys.argv[1:])"
"""`kfm` as a program for `python -c`."""


def caller(captured: pytest.CaptureFixture[str], *before: str) -> Call:
    """Return a function that runs `kfm` with the words `before` and its arguments."""

    def run(*arguments: str) -> Answer:
        captured.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*before, *arguments])
        shown = captured.readouterr()
        return Answer(code=int(str(ended.value.code)), out=shown.out, err=shown.err)

    return run


def commands(group: click.Group = kfm, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the group and every command below it, with its words after `kfm`."""
    yield path, group
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


def parameters() -> Iterator[tuple[tuple[str, ...], click.Command, click.Parameter]]:
    """Yield every argument and option of every command."""
    for path, command in commands():
        for parameter in command.params:
            yield path, command, parameter


def words_of(line: str) -> tuple[dict[str, str], list[str]]:
    """Split a line as a shell does: the variables in front of a command, and its words."""
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in takewhile(re.compile(r"[A-Z_]+=").match, words))
    return variables, words[len(variables) :]


def state_of(folder: Path) -> dict[str, bytes]:
    """Return each path below a folder with its content, without SQLite's temporary files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not path.name.endswith(("-wal", "-shm"))
    }
