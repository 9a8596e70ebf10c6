"""A group whose commands are imported when they are asked for: `kfm wal list` does not pay for the demo's servers.

What click documents as LazyGroup ("Lazily Loading Subcommands"), with two additions: the import paths stand in
`commands` itself, so that suggestions, completion and walks over the commands find them; and the group's help
reads each summary from the module's source, where click would import every module for one line of each.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections import UserDict
from collections.abc import Mapping
from importlib.abc import InspectLoader
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is: `module:name`."""

    path: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self.path.partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.path} is no command")
        return command

    def summary(self) -> str:
        """First paragraph of the command's docstring, read without importing it."""
        module, _, name = self.path.partition(":")
        spec = importlib.util.find_spec(module)
        source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
        for statement in ast.parse(source or "").body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return " ".join((ast.get_docstring(statement) or "").split("\n\n")[0].split())
        raise TypeError(f"{self.path} is no function")


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
            formatter.write_dl([(name, self.lazy[name].summary()) for name in self.list_commands(ctx)])
