"""The `kfm` command: groups its subcommands and turns every refusal into one line and a stable exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from kfm_dagster import __version__
from kfm_dagster.cli.backfill import backfill
from kfm_dagster.cli.bench import bench
from kfm_dagster.cli.cloud import cloud
from kfm_dagster.cli.dataset import dataset
from kfm_dagster.cli.demo import demo
from kfm_dagster.cli.deployment import drain, ui
from kfm_dagster.cli.dlq import dlq
from kfm_dagster.cli.explain import explain
from kfm_dagster.cli.export import export
from kfm_dagster.cli.governance import governance
from kfm_dagster.cli.kill_switch import kill_switch
from kfm_dagster.cli.quarantine import discard, quarantine, release
from kfm_dagster.cli.replay import replay
from kfm_dagster.cli.wal import wal
from kfm_dagster.errors import ExitCode, KfmError

INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT), as shells have it."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kfm")
def kfm() -> None:
    """Ingest NOAA open data (NODD) into a STAC catalog with provenance, exactly once.

    Example: kfm demo
    """


for command in (
    demo,
    ui,
    drain,
    wal,
    dataset,
    bench,
    quarantine,
    release,
    discard,
    kill_switch,
    governance,
    backfill,
    dlq,
    replay,
    explain,
    export,
    cloud,
):
    kfm.add_command(command)


def main(arguments: Sequence[str] | None = None, *, command: click.Command = kfm, name: str = "kfm") -> None:
    """Run the command line; never shows a traceback for bad input."""
    try:
        with stopped_by_signals():
            code = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except KfmError as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"{name}: {' '.join(error.format_message().split())}; next: {name} --help", err=True)
        sys.exit(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted; nothing is lost, run the command again to go on", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def nodd_replay() -> None:
    """Run `kfm replay` under its own name."""
    main(command=replay, name="nodd-replay")


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
