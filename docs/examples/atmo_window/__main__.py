"""The command line: `python -m docs.examples.atmo_window run|replay|show`.

Prints one JSON document. Exit codes: 0 done, 3 refused, others as for `kfm`; 4 if intents remain after a replay.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from pathlib import Path

import click

from docs.examples.atmo_window.running import SAMPLE, Workspace, open_workspace
from docs.examples.atmo_window.window import Window
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.idempotent_node import Output


@click.group()
@click.option("--home", type=click.Path(path_type=Path), envvar="ATMO_HOME", default=Path(".atmo"), show_default=True)
@click.option("--weather", type=click.Path(path_type=Path), envvar="ATMO_WEATHER", default=SAMPLE, help="Deliveries.")
@click.option("--database", envvar="ATMO_DATABASE", help="sqlite:///FILE or postgresql+psycopg2://...; in --home.")
@click.pass_context
def atmo(context: click.Context, home: Path, weather: Path, database: str | None) -> None:
    """Hourly windows over surface observations.

    Example: ATMO_MASKING_SALT=... python -m docs.examples.atmo_window run 2026-03-01T12
    """
    context.obj = context.with_resource(
        open_workspace(
            home=home,
            weather=weather,
            database_url=database,
            # The salt comes from the environment and is never an argument, because a process list shows arguments.
            salt=os.environ.get("ATMO_MASKING_SALT", ""),
            reached=_die_where_asked,
        )
    )


@atmo.command()
@click.argument("hour")
@click.option("--force", metavar="REASON", help="Reason to run although nothing has changed.")
@click.option("--run-id", help="Default: a new UUID.")
@click.pass_obj
def run(workspace: Workspace, hour: str, force: str | None, run_id: str | None) -> None:
    """Compute the window of an HOUR (2026-03-01T12, UTC) unless it is current."""
    _print(workspace.run(Window.named(hour), run_id=run_id or str(uuid.uuid4()), force=force).as_json())


@atmo.command()
@click.pass_obj
def replay(workspace: Workspace) -> None:
    """Replay the intents of crashed and failed runs."""
    done = workspace.replay()
    _print({"applied": done.applied, "skipped": done.skipped, "failed": done.failed})
    if done.failed:
        sys.exit(ExitCode.FINISHED_WITH_FAILURES)


@atmo.command()
@click.argument("hour")
@click.option("--version", "content_hash", metavar="HASH", help="Content hash of a version; default: the newest.")
@click.option("--field", help="Print only this member, bare.")
@click.pass_obj
def show(workspace: Workspace, hour: str, content_hash: str | None, field: str | None) -> None:
    """Show the newest window of an HOUR, or a version of it."""
    window = Window.named(hour)
    with workspace.database.snapshot() as tx:
        output = workspace.nodes.output(content_hash, tx=tx) if content_hash else workspace.newest(window)
    if output is None:
        raise KfmError("no such window", observed=hour, next_step=f"python -m docs.examples.atmo_window run {hour}")
    document = _document(output)
    if field is None:
        _print(document)
    else:
        click.echo(document[field])


def _document(output: Output) -> dict[str, object]:
    return {
        "content_hash": output.content_hash,
        "valid_from": None if output.valid_from is None else rfc3339(output.valid_from),
        "valid_to": None if output.valid_to is None else rfc3339(output.valid_to),
        **output.record,
        "lineage": output.lineage,
    }


def _die_where_asked(moment: str) -> None:
    """Kill this process by SIGKILL at the moment that ATMO_DIE_AT names: `intent` or `output`."""
    if os.environ.get("ATMO_DIE_AT") == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def _print(document: object) -> None:
    click.echo(json.dumps(document, indent=2, sort_keys=True))


def main() -> None:
    """Run the command line; a refusal is one line and its exit code."""
    try:
        atmo(prog_name="atmo_window")
    except KfmError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
