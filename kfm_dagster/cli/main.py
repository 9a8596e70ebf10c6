"""The `kfm` command: groups its subcommands and turns every refusal into one line and a stable exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import click

from kfm_dagster import __version__
from kfm_dagster.cli.extras import missing_extra
from kfm_dagster.cli.lazy import Lazy, LazyGroup
from kfm_dagster.errors import ExitCode, KfmError

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT), as shells have it."""


class OutputError(KfmError):
    """The answer cannot be written."""

    exit_code = ExitCode.DEPENDENCY_UNAVAILABLE


COMMANDS = {
    "alerts": Lazy("kfm_dagster.cli.alerts:alerts"),
    "announcements": Lazy("kfm_dagster.cli.announcements:announcements"),
    "backfill": Lazy("kfm_dagster.cli.backfill:backfill"),
    "clock": Lazy("kfm_dagster.cli.clock:clock"),
    "cloud": Lazy("kfm_dagster.cli.cloud:cloud"),
    "console": Lazy("kfm_dagster.cli.console:console"),
    "dataset": Lazy("kfm_dagster.cli.dataset:dataset"),
    "demo": Lazy("kfm_dagster.cli.demo:demo"),
    "discard": Lazy("kfm_dagster.cli.quarantine:discard"),
    "dlq": Lazy("kfm_dagster.cli.dlq:dlq"),
    "doctor": Lazy("kfm_dagster.cli.doctor:doctor"),
    "drain": Lazy("kfm_dagster.cli.drain:drain"),
    "explain": Lazy("kfm_dagster.cli.explain:explain"),
    "export": Lazy("kfm_dagster.cli.export.commands:export"),
    "gaps": Lazy("kfm_dagster.cli.gaps:gaps"),
    "governance": Lazy("kfm_dagster.cli.governance:governance"),
    "init": Lazy("kfm_dagster.cli.init:init"),
    "items": Lazy("kfm_dagster.cli.items:items"),
    "kill-switch": Lazy("kfm_dagster.cli.kill_switch:kill_switch"),
    "mcp": Lazy("kfm_dagster.cli.mcp:mcp"),
    "quarantine": Lazy("kfm_dagster.cli.quarantine:quarantine"),
    "queue": Lazy("kfm_dagster.cli.queue:queue"),
    "reconcile": Lazy("kfm_dagster.cli.reconcile:reconcile"),
    "release": Lazy("kfm_dagster.cli.quarantine:release"),
    "replay": Lazy("kfm_dagster.cli.replay.commands:replay"),
    "retention": Lazy("kfm_dagster.cli.retention:retention"),
    "stac": Lazy("kfm_dagster.cli.stac:stac"),
    "status": Lazy("kfm_dagster.cli.status:status"),
    "ui": Lazy("kfm_dagster.cli.ui:ui"),
    "validate": Lazy("kfm_dagster.cli.validate:validate"),
    "wal": Lazy("kfm_dagster.cli.wal:wal"),
    "worker": Lazy("kfm_dagster.cli.worker:worker"),
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="kfm")
def kfm() -> None:
    """Ingest NOAA open data (NODD) into a STAC catalog with provenance, each effect once.

    Example: kfm demo
    """


def main(arguments: Sequence[str] | None = None, *, command: click.Command = kfm, name: str = "kfm") -> None:
    """Run the command line; never shows a traceback for bad input."""
    try:
        with stopped_by_signals(), answering():
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
        said = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"{name}: {said}; next: {context.command_path if context else name} --help", err=True)
        sys.exit(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted; nothing is lost, run the command again to go on", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def _refuse(error: KfmError, name: str) -> NoReturn:
    click.echo(f"{name}: {error}", err=True)
    sys.exit(error.exit_code)


def nodd_replay() -> None:
    """Run `kfm replay` under its own name."""
    main(command=COMMANDS["replay"].load(), name="nodd-replay")


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal stop the children too, as Ctrl-C does: they would outlive this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        # What is ignored stays so: nohup ignores SIGHUP on purpose.
        if handler is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def answering() -> Iterator[None]:
    """Raise OutputError where standard output takes nothing more; of a reader that went away click takes care."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):  # somebody's own, which cannot fill a disk
        yield
        return
    stream.flush()
    answers = _Answers(stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
    sys.stdout = answers
    try:
        yield
        answers.flush()
    finally:
        sys.stdout = stream
        # The stream below stays open; what it did not take was dropped where that was found.
        answers.detach()


class _Answers(io.TextIOWrapper):
    """Standard output, which says that it was standard output which failed."""

    def write(self, text: str) -> int:
        return self._try(super().write, text)

    def flush(self) -> None:
        self._try(super().flush)

    def _try(self, work: Callable[..., T], *given: str) -> T:
        try:
            return work(*given)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            # Else the interpreter would try once more at its end, and say so in lines of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            raise OutputError(observed=os.strerror(error.errno or 0), next_step="look where the output goes") from None
