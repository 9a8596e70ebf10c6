"""Where the steps of a run are done: in the run's own process, or by Celery workers (KFM_CELERY_BROKER).

Belongs here: that choice, and what the executor and its workers have to agree on. Does not belong here: the workers'
entry point (`celery_worker.py`), or where runs themselves are started (the run launcher of dagster.yaml).
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.settings import Settings

BROKER = "KFM_CELERY_BROKER"
LEASES_UNTIL_REDELIVERY = 2
"""Redis gives a task to another worker once its own has been silent for so many leases. By then the units are given
back, so that the step does nothing twice and its run ends; what takes longer would be begun again while it works."""


def step_executor(settings: Settings) -> dg.ExecutorDefinition:
    """Return what does the steps of every job. Raises ConfigurationError without the package `dagster-celery`."""
    if settings.celery_broker is None:
        # One process per run: a step's own process would cost seconds, and a batch's units run concurrently inside it.
        return dg.in_process_executor
    try:
        from dagster_celery import celery_executor  # noqa: PLC0415 - the extra `celery`
    except ImportError:
        raise ConfigurationError(
            f"{BROKER} is set, and dagster-celery is not installed",
            next_step=f"pip install 'kfm-dagster[celery]', or unset {BROKER}",
        ) from None
    # By name only: Dagster shows an executor's configuration, and the address may hold a password.
    address = {"env": BROKER}
    return celery_executor.configured({"broker": address, "backend": address, "config_source": agreed(settings)})


def agreed(settings: Settings) -> dict[str, Any]:
    """Return the configuration of Celery that executor and workers have in common."""
    return {
        # A step is done when it has ended, not when it was received: that of a worker that dies is another worker's.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {"visibility_timeout": LEASES_UNTIL_REDELIVERY * settings.lease_seconds},
    }
