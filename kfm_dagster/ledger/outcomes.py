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
from kfm_dagster.ledger.rows import outcome_row
from kfm_dagster.storage.database import Transaction


def record_outcomes(
    tx: Transaction, units: Sequence[Envelope], *, run_id: str, at: datetime, log: GovernanceLog, actor: str
) -> tuple[WalId, ...]:
    """Keep what succeeded units made; return those whose result differs from an earlier one without permission."""
    if not units:
        return ()
    rows = [outcome_row(unit) for unit in units]
    made = tx.run("ledger.record_outcomes", batch=rows, run_id=run_id, at=at, code_version=__version__)
    unpermitted = [row for row in made if row.differs_from is not None and not row.permitted]
    dataset_of = {unit.wal_id: unit.dataset for unit in units}
    log.record_many(
        [
            {
                "actor": actor,
                "action": GovernanceAction.REPLAY_MISMATCH,
                "dataset": dataset_of[row.wal_id],
                "wal_id": row.wal_id,
                "reason": f"attempt {row.attempt} gave another result than attempt {row.differs_from}",
                "details": {"run_id": run_id},
            }
            for row in unpermitted
        ],
        tx=tx,
    )
    return tuple(sorted(WalId(row.wal_id) for row in unpermitted))
