"""Outcomes: what each success made, compared with the success before it (WAL-11).

Belongs here: recording outcomes in the transaction that settles, finding those that differ, and auditing those that
nobody permitted. Does not belong here: alerting (`defs/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kfm_dagster import __version__
from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.governance.log import GovernanceAction, GovernanceLog
from kfm_dagster.ledger.reports import Mismatch
from kfm_dagster.ledger.rows import outcome_row
from kfm_dagster.storage.database import Transaction


def record_outcomes(
    tx: Transaction, units: Sequence[Envelope], *, run_id: str, at: datetime, log: GovernanceLog, actor: str
) -> tuple[WalId, ...]:
    """Keep what succeeded units made; return those whose result differs from an earlier one without permission."""
    if not units:
        return ()
    rows = [outcome_row(unit) for unit in units]
    tx.run("ledger.record_outcomes", batch=rows, run_id=run_id, at=at, code_version=__version__)
    # A first attempt has nothing to be compared with.
    again = [{"wal_id": unit.wal_id, "attempt": unit.attempt} for unit in units if unit.attempt > 1]
    if not again:
        return ()
    differing = tx.run("ledger.record_mismatches", batch=again, at=at).all()
    unpermitted = [row for row in differing if not row.permitted]
    log.record_many(
        [
            {
                "actor": actor,
                "action": GovernanceAction.REPLAY_MISMATCH,
                "dataset": row.dataset,
                "wal_id": row.wal_id,
                "record_version": None,
                "from_status": None,
                "to_status": None,
                "reason": f"attempt {row.attempt} gave another result than attempt {row.earlier_attempt}",
                "change_ref": None,
                "details": {"run_id": run_id},
            }
            for row in unpermitted
        ],
        tx=tx,
    )
    return tuple(sorted(WalId(row.wal_id) for row in unpermitted))


def mismatches(tx: Transaction, *, limit: int) -> list[Mismatch]:
    """Return the newest differences, permitted ones among them."""
    return tx.rows(Mismatch, "ledger.mismatches", limit=limit)
