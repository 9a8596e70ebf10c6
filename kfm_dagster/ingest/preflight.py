"""Preflight: check before receiving that the stores answer and belong to this deployment.

A received message that cannot be stored is hidden until its timeout, and each receive brings it closer to the
dead-letter queue. So the stores are checked first: once per process and, after a failure, until they answer. Belongs
here: the checks. Does not belong here: the database, which is checked when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kfm_dagster.errors import KfmError, PreflightError
from kfm_dagster.run_state.choice import DELTA
from kfm_dagster.settings import Settings
from kfm_dagster.storage.answering import refuse_unwritable
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roots import deployment_id, hold, refuse_foreign, roots


def stores(settings: Settings) -> Sequence[tuple[str, str, str]]:
    """Return the stores that the deployment writes: name, setting, location."""
    chosen = [
        *((root.name, root.setting, root.location) for root in roots(settings)),
        ("compute logs", "KFM_COMPUTE_LOGS_URL", settings.compute_logs_url),
        ("run-state", "KFM_RUN_STATE", settings.run_state.removeprefix(DELTA)),
    ]
    return [store for store in chosen if store[2]]


def preflight(settings: Settings, *further: Callable[[], object]) -> None:
    """Check every store, and run `further` checks. Raises PreflightError with all failures."""
    checks = [
        *(partial(refuse_unwritable, place, what=name, setting=setting) for name, setting, place in stores(settings)),
        *further,
    ]
    # In parallel, because a store that does not answer takes its whole timeout, and a tick must end within a minute.
    with ThreadPoolExecutor(len(checks), thread_name_prefix="preflight") as pool:
        failures = [failure for failure in pool.map(_refusal, checks) if failure is not None]
    if failures:
        raise PreflightError(observed=" | ".join(failures))


def hold_roots(settings: Settings, database: Database) -> None:
    """Mark the roots as this deployment's; each process that writes files calls this first.

    Raises ForeignRootError, StoreAccessError and DependencyUnavailableError.
    """
    hold(roots(settings), deployment_id(database))


def refuse_foreign_roots(settings: Settings, database: Database) -> None:
    """Raise the errors of `hold_roots` without writing."""
    refuse_foreign(roots(settings), deployment_id(database))


def _refusal(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except KfmError as error:
        return str(error)
    return None
