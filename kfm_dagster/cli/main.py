"""The `kfm` command: groups its subcommands and turns every refusal into one line and a stable exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click

from kfm_dagster import __version__
from kfm_dagster.cli.lazy import Lazy, LazyGroup
from kfm_dagster.errors import ExitCode, KfmError

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT), as shells have it."""


class OutputError(KfmError):
    """The answer cannot be written."""

    exit_code = ExitCode.DEPENDENCY_UNAVAILABLE


COMMANDS = {
    "alerts": Lazy(
        "kfm_dagster.cli.alerts:alerts", "Look at alerts over the stages, take them on, and try the channels."
    ),
    "announcements": Lazy(
        "kfm_dagster.cli.announcements:announcements",
        "Look at who is notified of the catalog's Items, and send again what was given up.",
    ),
    "backfill": Lazy(
        "kfm_dagster.cli.backfill:backfill",
        "List and ingest days of datasets, beside the live messages and never instead of them.",
    ),
    "clock": Lazy(
        "kfm_dagster.cli.clock:clock",
        "Show this machine's clock: its last offsets and stability, and whether stages may write by it.",
    ),
    "cloud": Lazy(
        "kfm_dagster.cli.cloud:cloud",
        "Serve S3, SNS and SQS on loopback, with the sample objects announced, until Ctrl-C.",
    ),
    "console": Lazy(
        "kfm_dagster.cli.console:console",
        "Serve the deployment to browsers, its metrics to Prometheus, and /healthz to monitors, until Ctrl-C.",
    ),
    "dataset": Lazy("kfm_dagster.cli.dataset:dataset", "Look at, begin and check dataset contracts."),
    "demo": Lazy(
        "kfm_dagster.cli.demo:demo",
        "Ingest objects through a real queue, daemon and runs, and show what became of each.",
    ),
    "discard": Lazy(
        "kfm_dagster.cli.quarantine.decisions:discard",
        "Close the cases of quarantined units for good: they stay out, whatever is released later.",
    ),
    "dlq": Lazy(
        "kfm_dagster.cli.dlq.commands:dlq",
        "Look at the dead-letter queue, and drain, redrive or discard what is on it.",
    ),
    "doctor": Lazy(
        "kfm_dagster.cli.doctor:doctor",
        "Look at a deployment: databases, backups, queues, clock, Dagster instance, stores, senders, receivers, disks.",
    ),
    "drain": Lazy(
        "kfm_dagster.cli.drain:drain",
        "Work the queue until it is empty, with a daemon and code server of its own.",
    ),
    "explain": Lazy(
        "kfm_dagster.cli.explain:explain",
        "Explain a run: what each node did, or why it had nothing to do.",
    ),
    "export": Lazy(
        "kfm_dagster.cli.export.commands:export",
        "Write the signed release bundle PTN_EXPORT or verify one; below it, a DCAT catalog and a lineage graph.",
    ),
    "gaps": Lazy(
        "kfm_dagster.cli.gaps:gaps", "List the hours that lack objects, and the products that are silent or slow now."
    ),
    "governance": Lazy(
        "kfm_dagster.cli.governance:governance",
        "Look into the governance log, and decide on overrides that wait for a second person.",
    ),
    "init": Lazy(
        "kfm_dagster.cli.init:init",
        "Bring the ledger's database and Dagster's own up to date, and check that stores and queue are there.",
    ),
    "items": Lazy("kfm_dagster.cli.items:items", "Search the Items of the catalog."),
    "kill-switch": Lazy(
        "kfm_dagster.cli.kill_switch:kill_switch", "Switch datasets off and on again, or list what is off."
    ),
    "mcp": Lazy(
        "kfm_dagster.cli.mcp:mcp",
        "Serve search, explanations, status, failures and gaps to an assistant over stdio, until it hangs up.",
    ),
    "quarantine": Lazy(
        "kfm_dagster.cli.quarantine.commands:quarantine",
        "Look at units that were taken out of automatic flows, or take some out.",
    ),
    "queue": Lazy(
        "kfm_dagster.cli.queue:queue",
        "Make the queue of a dataset, with its dead-letter queue, policies and subscriptions.",
    ),
    "reconcile": Lazy(
        "kfm_dagster.cli.reconcile:reconcile",
        "Compare the buckets' days with ledger, catalog and lineage, in both directions. Changes nothing by itself.",
    ),
    "release": Lazy(
        "kfm_dagster.cli.quarantine.decisions:release",
        "Let quarantined units in again: each gets one more attempt, and comes back if that fails.",
    ),
    "replay": Lazy(
        "kfm_dagster.cli.replay.commands:replay",
        "Have units done again, always through the ledger: select, dry-run, run, and watch.",
    ),
    "retention": Lazy(
        "kfm_dagster.cli.retention:retention",
        "Remove what is old, bulky and needed by nothing, by the policy of retention.yaml.",
    ),
    "stac": Lazy(
        "kfm_dagster.cli.stac:stac",
        "Look at the STAC API beside the catalog, compare it with the catalog, and fill it again.",
    ),
    "status": Lazy(
        "kfm_dagster.cli.status:status",
        "Show what waits for somebody, with the command that helps, and how many units stand where.",
    ),
    "ui": Lazy(
        "kfm_dagster.cli.ui:ui",
        "Open the Dagster UI and the console over KFM_HOME, with daemon and sensors, until Ctrl-C.",
    ),
    "validate": Lazy(
        "kfm_dagster.cli.validate:validate",
        "Show units, stage states, gate pass rates, stops, retries, dimensional closure and KPIs of the last days.",
    ),
    "wal": Lazy("kfm_dagster.cli.wal:wal", "Look into the ledger (the NODD WAL)."),
    "worker": Lazy(
        "kfm_dagster.cli.worker:worker",
        "Ingest within seconds of a message: wait at the queue, beside sensors and runs, until SIGTERM or Ctrl-C.",
    ),
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
        click.echo(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)
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
