"""Quarantined units that a person decides about: each has an open case, at the version that was seen, or none is taken.

Does not belong here: the decision (`overrides.py`, `ledger/cases.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import IllegalTransitionError, RecordMovedError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseConflictError, CaseState, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction


def open_versions(
    pipeline: Pipeline,
    records: Sequence[NoddWalRecord],
    *,
    version: int | None,
    to_status: Status,
    tx: Transaction,
) -> dict[WalId, int]:
    """Return the versions of quarantined units whose cases are open.

    Raises RecordMovedError for another version than a given one, IllegalTransitionError for a unit that is not
    quarantined, CaseConflictError for one that was discarded.
    """
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    for record in records:
        if version is not None and record.version != version:
            raise RecordMovedError(record.wal_id, version=version, found=record.version)
        if record.status is not Status.QUARANTINED:
            raise IllegalTransitionError(
                wal_id=record.wal_id,
                from_status=record.status,
                to_status=to_status,
                expected="a unit of kfm quarantine list",
                why="the unit is not quarantined",
            )
        if cases.of(record.wal_id, tx=tx)[0].state is CaseState.DISCARDED:
            raise CaseConflictError(
                "the unit was discarded, and that is for good",
                observed=record.wal_id,
                next_step=f"kfm quarantine show {record.wal_id} says who decided it and why",
            )
    return {WalId(record.wal_id): record.version for record in records}
