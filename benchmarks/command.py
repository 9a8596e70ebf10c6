"""The command line of the benchmarks that start a deployment: options, and one-line errors.

Does not belong here: the meaning of the options (`surroundings.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.databases import KINDS
from kfm_dagster.cli.main import INTERRUPTED, stopped_by_signals
from kfm_dagster.errors import KfmError

Command = TypeVar("Command", bound=Callable[..., Any])


def place_options(command: Command) -> Command:
    """Add the options of a Place, and the working folder, to a command."""
    milliseconds = click.FloatRange(0, 10_000)
    options = (
        click.option(
            "--database",
            type=click.Choice(KINDS),
            default="sqlite",
            show_default=True,
            help="Database of ledger and runs.",
        ),
        click.option(
            "--store-latency-ms",
            type=milliseconds,
            help="Read objects from a store with this delay per answer; default: from a folder.",
        ),
        click.option("--all-remote", is_flag=True, help="Put artifacts, catalog and lineage into the store, too."),
        click.option("--queue-latency-ms", default=0.0, type=milliseconds, help="Delay of each answer of SQS."),
        click.option(
            "--traces", default=0.0, type=click.FloatRange(0, 1), help="Share of attempts to trace (local collector)."
        ),
        click.option(
            "--real-size", is_flag=True, help="Make objects of real size (sparse files), HRRR with its index."
        ),
        click.option(
            "--home",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(".kfm/bench"),
            show_default=True,
            help="Folder for objects, databases and the queue server.",
        ),
        click.option(
            "--timeout",
            "timeout_seconds",
            default=3600,
            show_default=True,
            type=click.IntRange(1),
            help="Seconds after which to give up.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def in_one_line(name: str, command: click.Command) -> int:
    """Run a command; print an error as one line on standard error. Return the exit code."""
    try:
        with stopped_by_signals():
            command.main(standalone_mode=False)
    except KfmError as error:
        click.echo(f"{name}: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted", err=True)
        return INTERRUPTED
    return 0
