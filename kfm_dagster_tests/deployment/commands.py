"""Checks of commands and variables in deployment files against the programs that they call.

Belongs here: checks for files of any orchestrator. Does not belong here: checks of one of these files.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kfm_dagster.settings import Settings, environment

COMMANDS = {
    "kfm": "kfm_dagster.cli.main:kfm",
    "dagster": "dagster._cli:cli",
    "dagster-daemon": "dagster._daemon.cli:cli",
    "dagster-webserver": "dagster_webserver.cli:dagster_webserver",
}
"""Program > its module; imported only when parsed, since a web server takes a second."""


def parsed(command: Sequence[str]) -> dict[str, Any]:
    """Return a command's parsed parameters. Raises click.UsageError for an unknown parameter."""
    tool, *words = command
    if tool == "python":
        assert words[0] == "-m"
        command_object = importlib.import_module(words[1]).main
        words = words[2:]
    else:
        module, _, name = COMMANDS[tool].partition(":")
        command_object = getattr(importlib.import_module(module), name)
    while isinstance(command_object, click.Group):
        _, command_object, words = command_object.resolve_command(click.Context(command_object), words)
    with command_object.make_context(tool, words) as context:
        return dict(context.params)


def loaded(variables: Mapping[str, str | None]) -> Settings:
    """Return a container's settings; an unknown variable or a wrong value is an error."""
    ours = {name: value for name, value in variables.items() if name.startswith("KFM_")}
    assert {name.removeprefix("KFM_").lower() for name in ours} <= set(Settings.model_fields)
    with environment({name: value for name, value in ours.items() if value is not None}):
        return Settings.load()
