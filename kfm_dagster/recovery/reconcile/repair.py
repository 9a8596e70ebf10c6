"""Repair of the differences of a compared day: enter objects as a backfill does, or replay.

Objects that the ledger does not know get units in the bulk lane, for the deployment's runs. A replay under a change
reference repeats the units of lost Items, and must give the same result. Objects that are gone from the bucket, Items
without a unit, and lost lineage need a person: nothing is deleted here. Does not belong here: comparing
(`comparison.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.discovery import LISTING_CHUNK
from kfm_dagster.ingest.kill_switch_policy import refuse_switched_off
from kfm_dagster.ingest.node import in_chunks
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.recording import enter_listed
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import parse_listed
from kfm_dagster.recovery.reconcile.comparison import ComparedDay
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import Mode, selection_from
from kfm_dagster.recovery.work_orders import Started, start

ITEMS_PER_REPLAY = 10_000
"""Most units that one selection names (`Filters.wal_ids`)."""


def repair_day(
    pipeline: Pipeline,
    compared: ComparedDay,
    decision: Decision,
    *,
    limit: int,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Enter at most `limit` objects of a day; under a change, replay as many of its lost Items.

    Return the numbers of entered and repeated units and of differences left, and the id of the replay or proposal.
    Raises RefusedError for a dataset that is switched off, GuardError where a replay's guard refuses.
    """
    refuse_switched_off(pipeline.ledger.switches, compared.dataset)
    parsed = (parse_listed(pipeline.registry[compared.dataset], listed) for listed in compared.missing_units)
    units = islice((unit for unit in parsed if unit is not None), limit)
    entered = 0
    for chunk in in_chunks(units, LISTING_CHUNK):
        entered += _enter(pipeline, compared, decision, chunk)
        progress(entered)
    started = _repeat(ReplayEngine(pipeline=pipeline), compared, decision, min(limit, ITEMS_PER_REPLAY))
    repeated = len(started.plan.units) if started else 0
    return {
        "entered": entered,
        "repeated": repeated,
        "left": sum(compared.counts().values()) - entered - repeated,
        "replay_run_id": started and started.replay_run_id,
        "proposal_id": started and started.proposal_id,
    }


def _enter(pipeline: Pipeline, compared: ComparedDay, decision: Decision, chunk: Sequence[Envelope]) -> int:
    """Create the units of a chunk of objects, in one transaction with its governance entry."""
    day = compared.day.isoformat()
    with pipeline.database.transaction() as tx:
        # A run needs a partition, which a day before the window does not have.
        pipeline.window.lower(compared.day, actor=decision.actor, reason=f"reconcile: {decision.reason}"[:1000], tx=tx)
        ensured, requeued = enter_listed(pipeline.ledger, chunk, tx)
        details = {"day": day, "objects": len(ensured.created), "requeued": len(requeued)}
        pipeline.ledger.log.record(
            GovernanceAction.RECONCILED, decision, dataset=compared.dataset, details=details, tx=tx
        )
    return len(ensured.created)


def _repeat(engine: ReplayEngine, compared: ComparedDay, decision: Decision, limit: int) -> Started | None:
    """Start the replay of units with lost Items; None without such units or a change reference."""
    if not compared.remakeable or decision.change_ref is None:
        return None
    selection = selection_from(
        engine.pipeline.settings.env,
        "the repair",
        name=f"reconcile {compared.dataset} {compared.day}",
        mode=Mode.REPAIR_AND_REPLACE.value,
        datasets=[compared.dataset],
        status=[Status.SUCCEEDED.value],
        wal_ids=[str(wal_id) for wal_id in islice(compared.remakeable, limit)],
        allow_repair_and_replace=True,
        must_match=True,
        approval=decision.change_ref,
    )
    return start(engine, selection, decision)
