"""Commands as deployment files spell them, held against what they call.

Belongs here: what a file of any orchestrator needs to be checked. Does not belong here: any one of these files.
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
"""Where each is; imported once one is parsed, because a web server takes a second."""


def parsed(command: Sequence[str]) -> dict[str, Any]:
    """The parameters that a command is called with. Raises click.UsageError for what it does not know."""
    tool, *words = command
    if tool == "python":
        assert words[0] == "-m"
        found = importlib.import_module(words[1]).main
        words = words[2:]
    else:
        module, _, name = COMMANDS[tool].partition(":")
        found = getattr(importlib.import_module(module), name)
    while isinstance(found, click.Group):
        _, found, words = found.resolve_command(click.Context(found), words)
    with found.make_context(tool, words) as context:
        return dict(context.params)


def loaded(variables: Mapping[str, str | None]) -> Settings:
    """The settings of a container. Raises ConfigurationError for a wrong value, AssertionError for one that is none."""
    ours = {name: value for name, value in variables.items() if name.startswith("KFM_")}
    assert {name.removeprefix("KFM_").lower() for name in ours} <= set(Settings.model_fields)
    with environment({name: value for name, value in ours.items() if value is not None}):
        return Settings.load()
