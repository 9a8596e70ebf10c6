"""A Celery worker for the steps of runs: Dagster's task, configured like the executor.

    python -m kfm_dagster.defs.celery_worker --concurrency 2

takes the options of `celery worker`, and the environment of the code location. Dagster's own command reads a
configuration file instead, which would have to repeat the settings.
Does not belong here: the configuration that executor and workers share (`executors.py`).
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.defs.code_server import CODE_VERSION
from kfm_dagster.defs.executors import BROKER, agreed, step_executor
from kfm_dagster.errors import ConfigurationError, KfmError
from kfm_dagster.settings import Settings


def worker_app(settings: Settings) -> Any:
    """Return Celery's application. Raises ConfigurationError without broker or package."""
    if settings.celery_broker is None:
        raise ConfigurationError(
            "no broker is configured", observed=f"{BROKER} is not set", next_step=f"export {BROKER}=..."
        )
    step_executor(settings)  # raises if the package is missing
    from dagster_celery.executor import CeleryExecutor  # noqa: PLC0415 - the extra `celery`
    from dagster_celery.make_app import make_app  # noqa: PLC0415

    address = settings.celery_broker.get_secret_value()
    executor = CeleryExecutor.for_cli(  # type: ignore[no-untyped-call]
        broker=address, backend=address, config_source=agreed(settings)
    )
    return make_app(executor.app_args())  # type: ignore[no-untyped-call]


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(*, options: tuple[str, ...]) -> None:
    """Execute steps until SIGTERM, with options of `celery worker`."""
    try:
        app = worker_app(Settings.load())
    except KfmError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    from dagster_celery.tasks import create_task  # noqa: PLC0415 - the extra, checked above

    # Imported now, so that no step waits for the import, and all steps run the code that the worker started with.
    importlib.import_module("kfm_dagster.definitions")
    importlib.import_module(CODE_VERSION)
    collect_rarely()
    create_task(app)  # type: ignore[no-untyped-call]
    app.worker_main(["worker", *options])


if __name__ == "__main__":
    main()
