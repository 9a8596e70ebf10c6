"""A group whose commands are imported when they are asked for: `kfm wal list` does not pay for the demo's servers.

What click documents as LazyGroup ("Lazily Loading Subcommands"), with two additions: the import paths stand in
`commands` itself, so that suggestions, completion and walks over the commands find them, and each has its
summary beside it, because the group's own help would import every module for one line of each.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is (`module:name`), and the first sentence of its help."""

    path: str
    summary: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self.path.partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.path} is no command")
        return command


class LazyCommands(UserDict[str, Any]):
    """Commands by name; looking one up imports it, listing the names imports none."""

    def __getitem__(self, name: str) -> click.Command:
        found = self.data[name]
        return found.load() if isinstance(found, Lazy) else found


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def __init__(self, name: str | None = None, *, lazy: Mapping[str, Lazy], **attributes: Any) -> None:
        super().__init__(name, LazyCommands(lazy), **attributes)
        self.lazy = lazy

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name].summary) for name in self.list_commands(ctx)])
