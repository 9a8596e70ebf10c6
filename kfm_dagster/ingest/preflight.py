"""Preflight: whether what a message needs is there, and this deployment's, before one is received.

A message that is received and cannot be stored stays invisible until its timeout is over, and each time its receive
count rises towards the dead-letter queue. So stores and queue are asked first, once per process, and again after a
failure until they answer. Belongs here: what is asked. Does not belong here: the database, which opening asks.
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
    """Return what is written to: name, setting that chooses it, location."""
    chosen = [
        *((root.name, root.setting, root.location) for root in roots(settings)),
        ("compute logs", "KFM_COMPUTE_LOGS_URL", settings.compute_logs_url),
        ("run-state", "KFM_RUN_STATE", settings.run_state.removeprefix(DELTA)),
    ]
    return [one for one in chosen if one[2]]


def preflight(settings: Settings, *further: Callable[[], object]) -> None:
    """Ask every store, and whatever else is given. Raises PreflightError that names all that is wrong, in one line."""
    asked = [
        *(partial(refuse_unwritable, place, what=name, setting=setting) for name, setting, place in stores(settings)),
        *further,
    ]
    # Side by side: a store that does not answer takes as long as its requests may, and a tick has a minute.
    with ThreadPoolExecutor(len(asked), thread_name_prefix="preflight") as pool:
        wrong = [said for said in pool.map(_refusal, asked) if said is not None]
    if wrong:
        raise PreflightError(observed=" | ".join(wrong))


def hold_roots(settings: Settings, database: Database) -> None:
    """Mark the roots as this deployment's; whatever writes files asks first.

    Raises ForeignRootError, StoreAccessError and DependencyUnavailableError.
    """
    hold(roots(settings), deployment_id(database))


def refuse_foreign_roots(settings: Settings, database: Database) -> None:
    """Raise what `hold_roots` would, and write nothing."""
    refuse_foreign(roots(settings), deployment_id(database))


def _refusal(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except KfmError as error:
        return str(error)
    return None
