"""Which store an environment's run-state is in: exactly one, chosen by `KFM_RUN_STATE`.

An environment is a database, whatever its run-state is in. Where that is not its own table, the table holds one record
that says where; so two processes that were configured differently meet, and the second one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.inputs_hash import InputReference, inputs_hash
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import Outcome, RunState, ValidationSummary
from kfm_dagster.run_state.store import RelationalRunState, RunStateStore
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store

DELTA = "delta+"
"""Prefix of the URL of a Delta table."""
RELATIONAL = "the table run_state of KFM_WAL_DSN"
CLAIM = "kfm.run_state_store"
"""Node and run of the record that says where this environment's run-state is."""


def open_run_states(
    database: Database, *, configured: str, branch: str, clock: Callable[[], datetime]
) -> RunStateStore:
    """Open the store that is configured; "" is the database's own table.

    Raises ConfigurationError that names both when this environment's run-state is in another store.
    """
    place = _place(configured)
    _claim(database, place, branch=branch, at=clock())
    if place == RELATIONAL:
        return RelationalRunState(database)
    if place.startswith(DELTA):
        return DeltaRunState(place.removeprefix(DELTA), branch=branch)
    return ObjectRunState(open_store(place), branch=branch)


def _place(configured: str) -> str:
    """Return the store's one name: the same from every working folder, with or without a last slash."""
    if not configured:
        return RELATIONAL
    kind = DELTA if configured.startswith(DELTA) else ""
    url = configured.removeprefix(DELTA)
    return kind + (url.rstrip("/") if "://" in url else str(Path(url).absolute()))


def _claim(database: Database, place: str, *, branch: str, at: datetime) -> None:
    states = RelationalRunState(database)
    standing = states.get(CLAIM, CLAIM)
    if standing is None and place != RELATIONAL:
        with database.transaction() as tx:
            if tx.run("run_state.holds_records", claim=CLAIM).scalar_one():
                raise _two(place, RELATIONAL)
            document = _claim_of(place, branch=branch, at=at).as_json()
            tx.run("run_state.claim", {**document, "validation_summary": json.dumps(document["validation_summary"])})
        standing = states.get(CLAIM, CLAIM)
    claimed = RELATIONAL if standing is None else str(standing.validation_summary["store"])
    if claimed != place:
        raise _two(place, claimed)


def _claim_of(place: str, *, branch: str, at: datetime) -> RunState:
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


def _two(configured: str, standing: str) -> ConfigurationError:
    return ConfigurationError(
        "this environment would have two run-state stores",
        observed=f"KFM_RUN_STATE chooses {configured}, and run-state is already in {standing}",
        expected="one store per environment",
        next_step=f"set KFM_RUN_STATE to {'nothing' if standing == RELATIONAL else standing}, "
        "or give the other store an environment (KFM_WAL_DSN) of its own",
    )
