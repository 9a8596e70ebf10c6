"""The store of an environment's run-state: exactly one, chosen by `KFM_RUN_STATE`.

Each environment has one database. If the environment's run-state is outside this database, the table `run_state` has a
single record, which names the store. A process whose settings name a different store is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from kfm_dagster.addresses import LAKEFS
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import InputReference, Outcome, RunState, ValidationSummary, inputs_hash
from kfm_dagster.run_state.store import RelationalRunState, RunStateStore
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store

DELTA = "delta+"
"""Prefix of the URL of a Delta table."""
RELATIONAL = "the table run_state of KFM_WAL_DSN"
CLAIM = "kfm.run_state_store"
"""Node and run of the record that names this environment's store."""


def open_run_states(
    database: Database, *, configured: str, branch: str, clock: Callable[[], datetime]
) -> RunStateStore:
    """Open the configured store; "" is the database's own table.

    Raises ConfigurationError, with both names, when this environment's run-state is in another store.
    """
    place = _place(configured)
    is_claimed = _refuse_two(database, place)
    store = _open(database, place, branch)
    # An existing claim is not written again.
    if place != RELATIONAL and not is_claimed:
        with database.transaction() as tx:
            tx.run("run_state.claim", _claim(place, branch=branch, at=clock()).as_json())
        _refuse_two(database, place)  # another process may have claimed at the same moment
    return store


def looked_up_states(database: Database, settings: Settings) -> RunStateStore:
    """Open the environment's run-state store for reading. Raises KfmError."""
    table = RelationalRunState(database)
    if settings.run_state and table.get(CLAIM, CLAIM) is None:
        # The configured store has no run-state yet, and opening the store would claim it.
        return table
    return open_run_states(
        database, configured=settings.run_state, branch=settings.lakefs_branch, clock=lambda: datetime.now(UTC)
    )


def _open(database: Database, place: str, branch: str) -> RunStateStore:
    if place == RELATIONAL:
        return RelationalRunState(database)
    if place.startswith(DELTA):
        return DeltaRunState(place.removeprefix(DELTA), branch=branch)
    return ObjectRunState(open_store(place), branch=branch)


def _place(configured: str) -> str:
    """Return the store's name, which depends neither on the working folder nor on a last slash."""
    if not configured:
        return RELATIONAL
    if match := LAKEFS.fullmatch(configured):
        # The store's name at the S3 gateway; the branch is the first part of every path.
        return f"s3://{match['repository']}"
    kind = DELTA if configured.startswith(DELTA) else ""
    url = configured.removeprefix(DELTA)
    return kind + (url.rstrip("/") if "://" in url else str(Path(url).resolve()))


def _refuse_two(database: Database, place: str) -> bool:
    """Return whether this store is claimed. Raises ConfigurationError if another store is used."""
    claim = RelationalRunState(database).get(CLAIM, CLAIM)
    stores = [] if claim is None else [str(claim.validation_summary["store"])]
    with database.snapshot() as tx:
        if tx.run("run_state.holds_records", claim=CLAIM).scalar_one():
            stores.append(RELATIONAL)
    for store in stores:
        if store != place:
            raise ConfigurationError(
                "this environment would have two run-state stores",
                observed=f"KFM_RUN_STATE chooses {place}, and run-state is already in {store}",
                expected="one store per environment",
                next_step=f"{'unset KFM_RUN_STATE' if store == RELATIONAL else f'set KFM_RUN_STATE to {store}'}, "
                "or give the other store an environment (KFM_WAL_DSN) of its own",
            )
    return claim is not None


def _claim(place: str, *, branch: str, at: datetime) -> RunState:
    summary = ValidationSummary(checks=0, passed=0, failed=0, extra={"store": place})
    return RunState(
        dataset_id=CLAIM,
        run_id=CLAIM,
        lakefs_branch=branch,
        inputs_hash=inputs_hash([InputReference(uri=place)], {}),
        validation_summary=summary.as_json(),
        outcome=Outcome.SKIPPED,
        recorded_at=at,
    )
