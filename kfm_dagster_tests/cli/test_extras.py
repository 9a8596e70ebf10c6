"""Without extras every command works, or names the extra that it needs in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kfm_dagster.cli.main import missing_extra
from kfm_dagster.errors import ExitCode
from kfm_dagster_tests.programs import printed_by
from kfm_dagster_tests.test_wheel import with_extras

ANSWERS = """
import contextlib, io, json
import click
from kfm_dagster.cli.main import kfm, main

def paths(command, path):
    yield path
    for name in command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ():
        try:
            yield from paths(command.commands[name], (*path, name))
        except ModuleNotFoundError:
            yield (*path, name)

def answer(arguments):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            main(arguments)
    except SystemExit as end:
        return end.code, errors.getvalue()

calls = [(*path, "--help") for path in paths(kfm, ())] + [("mcp",)]
print(json.dumps({" ".join(call): answer(call) for call in calls}))
"""


def test_without_extras_every_command_works_or_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    variables = {"KFM_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    answers = json.loads(printed_by(sys.executable, "-c", with_extras() + ANSWERS, **variables))
    assert len(answers) > 60
    refused = {call: answer for call, answer in answers.items() if answer != [ExitCode.DONE, ""]}
    line = "kfm: the command needs an extra that is not installed; observed no package {}; next: pip install {}\n"
    of_demo = [ExitCode.USAGE, line.format("h5py", "'kfm-dagster[demo]'")]
    of_mcp = [ExitCode.USAGE, line.format("mcp", "'kfm-dagster[mcp]'")]
    assert refused == {"cloud --help": of_demo, "demo --help": of_demo, "mcp": of_mcp}


def test_a_missing_module_outside_the_extras_stays_a_traceback() -> None:
    for module in ("kfm_dagster.nothing", "click", "pytest", "hypothesis.strategies", None):
        assert missing_extra(ModuleNotFoundError(name=module)) is None, module
