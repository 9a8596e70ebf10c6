"""Executors of a run's steps: the run's own process, or Celery workers (KFM_CELERY_BROKER).

Belongs here: the choice, and the configuration that executor and workers share. Does not belong here: the workers'
entry point (`celery_worker.py`), or where runs themselves are started (the run launcher of dagster.yaml).
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.settings import Settings

BROKER = "KFM_CELERY_BROKER"
LEASES_UNTIL_REDELIVERY = 2
"""Number of lease durations after which Redis gives the task of a silent worker to another worker. By then the units
are released, so that the repeated step has no effect and the run ends. A step of more than this time would be started
again while it still works."""


def step_executor(settings: Settings) -> dg.ExecutorDefinition:
    """Return the executor of every job. Raises ConfigurationError without `dagster-celery`."""
    if settings.celery_broker is None:
        # A process per run, because a process per step costs seconds, and units are processed concurrently anyway.
        return dg.in_process_executor
    try:
        from dagster_celery import celery_executor  # noqa: PLC0415 - the extra `celery`
    except ImportError:
        raise ConfigurationError(
            f"{BROKER} is set, but dagster-celery is not installed",
            next_step=f"pip install 'kfm-dagster[celery]', or unset {BROKER}",
        ) from None
    # Dagster shows the configuration, and the address may contain a password, so only the variable's name is given.
    address = {"env": BROKER}
    return celery_executor.configured({"broker": address, "backend": address, "config_source": agreed(settings)})


def agreed(settings: Settings) -> dict[str, Any]:
    """Return the Celery configuration that executor and workers share."""
    return {
        # A task is acknowledged when the step ends, so that another worker repeats a dead worker's step.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {"visibility_timeout": LEASES_UNTIL_REDELIVERY * settings.lease_seconds},
    }
