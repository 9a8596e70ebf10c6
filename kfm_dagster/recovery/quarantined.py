"""Quarantined units that a person decides about: the open cases and their versions.

A decision takes all its units, at the versions that were seen, or none. A dry run of discarding counts the units, and
the decision covers the counted units only. Does not belong here: the decision (`governance/review.py`,
`ledger/cases.py`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import IllegalTransitionError, RecordMovedError, RefusedError
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscardPlan:
    """Units to discard: versions of the named units with open cases, and counts by kind.

    `named` counts every named unit; the rest were discarded before, or are no longer quarantined.
    """

    named: int
    versions: Mapping[WalId, int]
    breakdown: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By dataset and error code."""

    @property
    def seen(self) -> str:
        """Digest of units and versions: what a decision says that it has seen."""
        lines = "".join(f"{wal_id} {version}\n" for wal_id, version in sorted(self.versions.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    def require_seen(self, seen: str) -> None:
        """Refuse a decision about other units or versions. Raises RefusedError."""
        if seen != self.seen:
            raise RefusedError(
                "what would be discarded is no longer what the dry run counted",
                observed=f"{len(self.versions)} units by now",
                next_step="look at the dry run once more, and decide",
            )


def plan_discard(wal_ids: Sequence[str], *, tx: Transaction) -> DiscardPlan:
    """Return the plan of discarding the named units; change nothing."""
    rows = tx.run("evidence.discardable", wal_ids=sorted(set(wal_ids))).all()
    return DiscardPlan(
        named=len(set(wal_ids)),
        versions={WalId(row.wal_id): row.quarantined_version for row in rows},
        breakdown=dict(sorted(Counter((row.dataset, row.last_error_code or "") for row in rows).items())),
    )


def open_versions(
    cases: QuarantineCases,
    records: Sequence[NoddWalRecord],
    *,
    version: int | None,
    to_status: Status,
    tx: Transaction,
) -> dict[WalId, int]:
    """Return the versions of quarantined units whose cases are open.

    Raises RecordMovedError for a version other than `version`, IllegalTransitionError for a unit that is not
    quarantined, RefusedError for a discarded unit.
    """
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
            raise RefusedError(
                "the unit was discarded, and that is for good",
                observed=record.wal_id,
                next_step=f"kfm quarantine show {record.wal_id} says who decided it and why",
            )
    return {WalId(record.wal_id): record.version for record in records}
