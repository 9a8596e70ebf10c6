"""Quarantined units with evidence, open until a person releases or discards them (BEY-06).

The database opens a case in the statement that quarantines a unit, and closes it as released in the statement that
requeues the unit, so that neither change can be forgotten. Belongs here: querying cases, attaching evidence,
discarding. Does not belong here: collecting the evidence (`ingest/evidence.py`), releasing (`Ledger.override`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum, unique
from itertools import groupby
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.ledger.record import HistoryEntry
from kfm_dagster.storage.artifacts import ArtifactReference
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.statements import value_of


@unique
class CaseState(StrEnum):
    """State of a case."""

    OPEN = "open"
    """The unit is quarantined and waits for a person."""
    RELEASED = "released"
    """The unit was requeued."""
    DISCARDED = "discarded"
    """The unit is excluded permanently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineCase:
    """A case and its unit: `reason` of the quarantine, `error_code` of the last failure.

    `closed_by`, `closing_reason` and `change_ref` are copied from the decision in the governance log.
    """

    wal_id: WalId
    quarantined_version: int
    dataset: str
    object_uri: str
    reason: str
    error_code: str | None
    attempts: int
    state: CaseState
    opened_at: datetime
    evidence_file: ArtifactReference | None = None
    collected_at: datetime | None
    closed_at: datetime | None
    closed_by: str | None
    closing_reason: str | None
    change_ref: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DueCase:
    """A case without evidence. `version` is the record's version after the quarantine."""

    wal_id: WalId
    version: int
    opened_at: datetime
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnouncingMessage:
    """The message that announced a unit, and the landed batch that holds it."""

    message_id: str
    queue: str
    receive_count: int
    first_received_at: datetime
    landing: str


class QuarantineCases:
    """The cases of a ledger."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._log = GovernanceLog(database, clock=clock)

    def due(self, *, limit: int) -> list[DueCase]:
        """Return the oldest cases without evidence; cases with evidence add no cost."""
        with self._database.snapshot() as view:
            return view.rows(DueCase, "evidence.due", limit=limit)

    def histories(self, wal_ids: Iterable[WalId]) -> dict[WalId, list[HistoryEntry]]:
        """Return every change of these units, oldest first."""
        with self._database.snapshot() as view:
            rows = view.run("ledger.histories", wal_ids=sorted(set(wal_ids))).mappings().all()
        entries = [HistoryEntry.model_validate(dict(row)) for row in rows]
        return {WalId(wal_id): list(group) for wal_id, group in groupby(entries, key=lambda entry: entry.wal_id)}

    def messages(self, message_ids: Iterable[str]) -> dict[str, AnnouncingMessage]:
        """Return the landed batch of each message; messages that were never received are omitted."""
        with self._database.snapshot() as view:
            messages = view.rows(AnnouncingMessage, "evidence.messages", message_ids=sorted(set(message_ids)))
        return {message.message_id: message for message in messages}

    def attach(self, bundles: Iterable[tuple[DueCase, ArtifactReference]]) -> int:
        """Attach evidence to cases without evidence; return their number."""
        batch = [
            {"wal_id": case.wal_id, "version": case.version, "uri": bundle.uri, "sha256": bundle.sha256}
            for case, bundle in bundles
        ]
        if not batch:
            return 0
        with self._database.transaction() as tx:
            return len(tx.run("evidence.attach", batch=batch, at=self._clock()).all())

    def find(
        self,
        state: CaseState,
        *,
        dataset: str | None = None,
        reason: str | None = None,
        limit: int = 100,
    ) -> list[QuarantineCase]:
        """Return the cases in a state, newest first."""
        with self._database.snapshot() as tx:
            rows = tx.run("evidence.cases", state=state, dataset=dataset, reason=reason, limit=limit).mappings().all()
        return [_case(row) for row in rows]

    def of(self, wal_id: str, *, tx: Transaction) -> list[QuarantineCase]:
        """Return every case of a unit, newest first."""
        rows = tx.run("evidence.cases_of", wal_id=wal_id).mappings().all()
        return [_case(row) for row in rows]

    def discard(self, versions: Mapping[WalId, int], *, decision: Decision, tx: Transaction) -> None:
        """Discard the open cases of units, and log the decision.

        Discards all cases or none: raises RefusedError for the first unit without an open case of its version.
        """
        batch = [{"wal_id": wal_id, "version": version} for wal_id, version in sorted(versions.items())]
        locked = {row.wal_id: row for row in tx.run("evidence.lock_open", batch=batch)}
        for wal_id in sorted(versions.keys() - locked.keys()):
            raise RefusedError(
                "the unit has no open case of this version",
                observed=f"{wal_id} at version {versions[wal_id]}",
                expected="an open case of exactly this version",
                next_step=f"kfm units evidence {wal_id}",
            )
        self._log.record_many([_discard_entry(row, decision) for row in locked.values()], tx=tx)
        tx.run("evidence.discard", batch=batch, at=self._clock())


def _discard_entry(row: Any, decision: Decision) -> dict[str, Any]:
    return {
        **decision.row,
        "action": GovernanceAction.DISCARD,
        "dataset": row.dataset,
        "wal_id": row.wal_id,
        "details": {"quarantined_version": row.quarantined_version},
    }


def _case(row: Any) -> QuarantineCase:
    case = value_of(QuarantineCase, row)
    if row["evidence_uri"] is None:
        return case
    return replace(case, evidence_file=ArtifactReference(uri=row["evidence_uri"], sha256=row["evidence_sha256"]))
