"""A Celery worker for the steps of runs: Dagster's own task, in an application that is set up as the executor is.

    python -m kfm_dagster.defs.celery_worker --concurrency 2

takes Celery's own options of `celery worker`, and the environment of the code location. Dagster's own command reads a
file of configuration instead, which would have to say once more what the settings say.
Does not belong here: what executor and workers agree on (`executors.py`).
"""

from __future__ import annotations

import importlib
import sys

import click

from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.defs.code_server import CODE_VERSION
from kfm_dagster.defs.executors import worker_executor
from kfm_dagster.errors import KfmError
from kfm_dagster.settings import Settings


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(*, options: tuple[str, ...]) -> None:
    """Do steps until SIGTERM, with options of `celery worker`."""
    try:
        executor = worker_executor(Settings.load())
    except KfmError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    from dagster_celery.make_app import make_app  # noqa: PLC0415 - the extra `celery`, which is there
    from dagster_celery.tasks import create_task  # noqa: PLC0415

    # Now, so that no step waits for it, and every step is of the code that the worker started with.
    importlib.import_module("kfm_dagster.definitions")
    importlib.import_module(CODE_VERSION)
    collect_rarely()
    app = make_app(executor.app_args())  # type: ignore[no-untyped-call]
    create_task(app)  # type: ignore[no-untyped-call]
    app.worker_main(["worker", *options])


if __name__ == "__main__":
    main()
