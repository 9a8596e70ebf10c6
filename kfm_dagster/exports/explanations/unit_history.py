"""All that is recorded of one unit outside its record. Only reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kfm_dagster.exports.explanations.unit_issues import UnitIssue, issues_of
from kfm_dagster.governance.log import GovernanceEntry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCase, QuarantineCases
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord
from kfm_dagster.ledger.reports import Lease, ObjectVersion
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.views.view import json_row


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitHistory:
    """`issues` are of the run that changed the unit last, `versions` of its object, this one included.

    Cases and decisions have the newest first, versions and transitions the oldest. Only a unit in progress is under a
    lease.
    """

    issues: Sequence[UnitIssue]
    versions: Sequence[ObjectVersion]
    lease: Sequence[Lease]
    cases: Sequence[QuarantineCase]
    decisions: Sequence[GovernanceEntry]
    transitions: Sequence[HistoryEntry]

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """Return the published form."""
        return {
            "issues": [json_row(one) for one in self.issues],
            "versions": [json_row(one) for one in self.versions],
            "lease": [json_row(one) for one in self.lease],
            "cases": [case.as_json() for case in self.cases],
            "governance": [entry.as_json() for entry in self.decisions],
            "history": [entry.model_dump(mode="json") for entry in self.transitions],
        }


def unit_history(pipeline: Pipeline, record: NoddWalRecord) -> UnitHistory:
    """Return a unit's history, of one moment but for its issues; a store that does not answer is an issue."""
    ledger, wal_id = pipeline.ledger, record.wal_id
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    holder = (record.ingest_run_id, record.dataset) if record.status is Status.IN_PROGRESS else None
    issues = issues_of(record, looked_up_states(pipeline.database, pipeline.settings), pipeline.artifacts)
    with pipeline.database.snapshot() as view:
        return UnitHistory(
            versions=ledger.versions(wal_id, tx=view),
            lease=[one for one in ledger.leases.all(tx=view) if (one.run_id, one.dataset) == holder],
            cases=cases.of(wal_id, tx=view),
            decisions=ledger.log.entries(wal_id=wal_id, tx=view),
            transitions=ledger.history(wal_id, tx=view),
            issues=issues,
        )
