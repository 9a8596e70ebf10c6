"""The `kfm` command: subcommands imported when called, refusals without a traceback.

Commands are imported as click documents it ("Lazily Loading Subcommands"), with two additions. `commands` contains the
import paths, so that suggestions, completion and loops over the commands see every command. The group's help reads each
summary from the module's source, because click would import every module for its summary.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import signal
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import InspectLoader
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

import click

from kfm_dagster import __version__
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError, ExitCode, KfmError


class Lazy(NamedTuple):
    """The import path of a command: `module:name`."""

    path: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self.path.partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.path} is no command")
        if isinstance(command, click.Group) and not isinstance(command, LazyGroup):
            for subcommand in command.commands.values():
                # Without a short help, click cuts the summary in mid-sentence.
                subcommand.short_help = _first_paragraph(subcommand.help)
        return command

    def summary(self) -> str:
        """Return the first paragraph of the command's docstring, without importing the command."""
        module, _, name = self.path.partition(":")
        spec = importlib.util.find_spec(module)
        source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
        for statement in ast.parse(source or "").body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return _first_paragraph(ast.get_docstring(statement))
        raise TypeError(f"{self.path} is no function")


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


class LazyCommands(UserDict[str, Any]):
    """Commands by name. A lookup imports the command; listing the names imports nothing."""

    def __getitem__(self, name: str) -> click.Command:
        command = self.data[name]
        return command.load() if isinstance(command, Lazy) else command


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called.

    Its help lists the commands of `shown` by heading, or all commands; neither help nor completion lists `aliases`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        lazy: Mapping[str, Lazy],
        shown: Mapping[str, Sequence[str]] | None = None,
        aliases: Mapping[str, Lazy] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(name, LazyCommands(lazy), **attributes)
        self.lazy = lazy
        self.shown = shown
        self.aliases = aliases or {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name or an alias, None for an unknown name."""
        alias = self.aliases.get(cmd_name)
        return alias.load() if alias else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the shown commands with their summaries."""
        for heading, names in (self.shown or {"Commands": self.list_commands(ctx)}).items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.lazy[name].summary()) for name in names])


_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")
_OF_DEVELOPERS = frozenset({"dev", "docs"})


def missing_extra(error: ModuleNotFoundError) -> ConfigurationError | None:
    """Return the refusal that names the extra to install, or None if no extra has the module."""
    from importlib import metadata  # noqa: PLC0415

    from packaging.requirements import Requirement  # noqa: PLC0415

    module = (error.name or "").partition(".")[0]
    for line in metadata.requires("kfm-dagster") or ():
        requirement = Requirement(line)
        extra = _EXTRA.search(str(requirement.marker))
        if extra and extra[1] not in _OF_DEVELOPERS and requirement.name.replace("-", "_") == module:
            return ConfigurationError(
                "the command needs an extra that is not installed",
                observed=f"no package {requirement.name}",
                next_step=f"pip install 'kfm-dagster[{extra[1]}]'",
            )
    return None


T = TypeVar("T")

INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT), as in shells."""


SHOWN = {
    "Try": ("demo", "ui", "init", "doctor"),
    "Look": ("status", "units", "runs", "items", "gaps", "report"),
    "Act": ("retry", "replay", "backfill", "pause", "resume", "reconcile", "dlq"),
    "Operate": ("worker", "drain", "console", "dataset", "queue", "alerts", "governance", "export", "retention"),
}
"""Commands that `kfm --help` lists, by heading."""
_NOT_SHOWN = ("announcements", "clock", "cloud", "mcp", "registry", "stac")
"""Commands that the help only names, because few people need them; the guides describe them."""
_PLACES = {
    "cloud": "demo:cloud",
    "drain": "running:drain",
    "mcp": "console:mcp",
    "pause": "kill_switch:pause",
    "registry": "dataset:registry",
    "replay": "replay.commands:replay",
    "retry": "quarantine:retry",
    "resume": "kill_switch:resume",
    "ui": "running:ui",
    "worker": "running:worker",
}
"""Modules and functions of the commands that are not in a module of their own name."""
COMMANDS = {
    name: Lazy(f"kfm_dagster.cli.{_PLACES.get(name, f'{name}:{name}')}")
    for name in sorted(set(_NOT_SHOWN).union(*SHOWN.values()))
}
ALIASES = {
    name: Lazy(f"kfm_dagster.cli.{place}")
    for name, place in {
        "discard": "quarantine:discard",
        "explain": "runs:show",
        "kill-switch": "kill_switch:kill_switch",
        "quarantine": "quarantine:quarantine",
        "release": "quarantine:retry",
        "validate": "report:report",
        "wal": "units:units",
    }.items()
}
"""Other names of commands: scripts and documents use them."""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    shown=SHOWN,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kfm")
def kfm() -> None:
    """Ingest NOAA open data (NODD) into a STAC catalog with provenance.

    More commands, in the guides: announcements, clock, cloud, mcp, registry, stac.

    Example: kfm demo
    """


def main(arguments: Sequence[str] | None = None, *, command: click.Command = kfm, name: str = "kfm") -> None:
    """Run the command line; never show a traceback for bad input."""
    try:
        with stopped_by_signals():
            code = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except KfmError as error:
        _refuse(error, name)
    except ModuleNotFoundError as error:
        if (refusal := missing_extra(error)) is None:
            raise
        _refuse(refusal, name)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(ExitCode.USAGE)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"{name}: {message}; next: {context.command_path if context else name} --help", err=True)
        sys.exit(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted; nothing is lost, run the command again to go on", err=True)
        sys.exit(INTERRUPTED)
    except OSError:
        if (unwritten := _unwritten()) is None:
            raise
        _refuse(unwritten, name)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def _refuse(error: KfmError, name: str) -> NoReturn:
    if isinstance(error.observed, tuple):
        click.echo("\n  ".join((f"{name}: {error.what}; next: {error.next_step}", *error.observed)), err=True)
    else:
        click.echo(f"{name}: {error}", err=True)
    sys.exit(error.exit_code)


def _unwritten() -> DependencyUnavailableError | None:
    """Return a refusal if standard output does not take even a line end, else None."""
    try:
        click.echo()
    except OSError as error:
        # Without this redirection, the interpreter would write again at its exit, and print several lines of errors.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DependencyUnavailableError(
            "the answer cannot be written", observed=error.strerror, next_step="look where the output goes"
        )
    return None


def nodd_replay() -> None:
    """Run `kfm replay` under its own name."""
    main(command=COMMANDS["replay"].load(), name="nodd-replay")


def stopped_by_signals() -> AbstractContextManager[None]:
    """Stop on SIGTERM and SIGHUP as on Ctrl-C: otherwise child processes would outlive this one."""
    # Ignored signals stay ignored: nohup ignores SIGHUP on purpose.
    unhandled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    return signals_handled(dict.fromkeys(unhandled, signal.default_int_handler))


@contextmanager
def signals_handled(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    """Handle signals until the block ends."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
