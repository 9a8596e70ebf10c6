"""Lost runs: what runs that died held and intended is given back, before anything new is planned (WSM-11).

Belongs here: the order. Does not belong here: who is dead (`defs/run_storage.py` asks Dagster), or runs that failed
(`rollback.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kfm_dagster.idempotent_node.wal import Intents
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.redaction import error_text
from kfm_dagster.stages.lifecycle import StageLifecycle


def give_back(
    ledger: Ledger,
    *,
    intents: Intents,
    lifecycle: StageLifecycle,
    dead: Callable[[Iterable[str]], Collection[str]],
    warn: Callable[[str], None],
) -> None:
    """Take back the claims of dead runs and of expired leases, the latter also when `dead` fails.

    `dead` chooses from root run ids those that nobody works for. What dead runs intended has failed; it is given up
    once a later run has done the same node's work.
    """
    without_claims: Collection[str] = ()
    without_intents: Collection[str] = ()
    without_stages: Collection[str] = ()
    try:
        without_claims = dead(ledger.in_progress_runs())
        without_intents = dead(intents.pending_runs())
        without_stages = dead(lifecycle.store.unfinished_runs())
    except Exception as error:
        warn(f"Dagster's run storage does not say which runs are dead: {error_text(error)}")
    intents.fail_runs(without_intents)
    lifecycle.close(without_stages)
    intents.give_up_overtaken()
    with ledger.database.transaction() as tx:
        report = ledger.release_lost(run_ids=without_claims, tx=tx)
    if report.requeued or report.quarantined:
        warn(
            f"gave back {len(report.requeued)} units of dead runs or expired leases, "
            f"quarantined {len(report.quarantined)}"
        )
