"""Records of a unit besides its ledger record, and issues of its newest run. Read-only.

The ledger stores whether a unit is suspect, but not why. The reason is in the newest stage output that has the unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from obstore.exceptions import BaseError

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import Issue
from kfm_dagster.errors import ArtifactError, DependencyUnavailableError
from kfm_dagster.governance.log import GovernanceEntry
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ingest.nodes import chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCase, QuarantineCases
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord
from kfm_dagster.ledger.reports import Lease, ObjectVersion
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.redaction import redact
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.envelope_table import from_parquet
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.s3 import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitIssue:
    """An issue with its operator (or `gate`); code and severity are None if the output is lost."""

    operator: str
    code: str | None
    severity: str | None
    message: str


def issues_of(record: NoddWalRecord, run_states: RunStateStore, artifacts: Artifacts) -> list[UnitIssue]:
    """Return a unit's issues in the run that last changed its record, in the order of the chain.

    Empty for a unit that no run has claimed. A lost output, or a store that does not answer, counts as an issue.
    """
    states = run_states.of_run(record.ingest_run_id) if record.ingest_run_id else ()
    # Only the operators of the chain: outputs of other nodes have no units.
    order = {f"{record.dataset}.{operator}": number for number, operator in enumerate(operators())}
    chain_states = [state for state in states if state.dataset_id in order]
    for state in sorted(chain_states, key=lambda entry: (entry.recorded_at, order[entry.dataset_id]), reverse=True):
        if state.artifact_uri is None:
            continue
        reference = ArtifactReference(uri=state.artifact_uri, sha256=str(state.artifact_sha256))
        try:
            units = from_parquet(artifacts.get(reference))
        except (ArtifactError, BaseError, OSError, DependencyUnavailableError) as error:
            why = error.observed if isinstance(error, ArtifactError) else type(error).__name__
            operator = state.dataset_id.partition(".")[2]
            return [UnitIssue(operator=operator, code=None, severity=None, message=f"its output cannot be read: {why}")]
        for unit in units:
            if unit.wal_id == record.wal_id:
                return list(_issues(unit))
    return []


def _issues(unit: Envelope) -> Iterator[UnitIssue]:
    sections = {node.operator: getattr(unit, node.section) for node in chain() if node.section}
    by_operator: list[tuple[str, Sequence[Issue]]] = [(name, part.issues) for name, part in sections.items() if part]
    for operator, issues in (*by_operator, ("gate", unit.gate_issues)):
        for issue in issues:
            yield UnitIssue(
                operator=operator, code=issue.code, severity=issue.severity.value, message=redact(issue.message)
            )


def evidence_of(case: QuarantineCase, store: Store) -> Mapping[str, Any] | None:
    """Return a case's evidence, None before its collection; `lost` has the error of reading."""
    try:
        return None if case.evidence_file is None else read_evidence(store, case.evidence_file)
    except (ArtifactError, DependencyUnavailableError) as error:
        # The other parts of the case can still be shown.
        return {"lost": str(error.observed)}


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitHistory:
    """A unit's records, issues of the run that last changed it, and versions of its object.

    Cases and governance are sorted from the newest entry, versions and history from the oldest entry. Only a unit in
    progress is under a lease.
    """

    issues: Sequence[UnitIssue]
    versions: Sequence[ObjectVersion]
    lease: Sequence[Lease]
    cases: Sequence[QuarantineCase]
    governance: Sequence[GovernanceEntry]
    history: Sequence[HistoryEntry]


def unit_history(pipeline: Pipeline, record: NoddWalRecord) -> UnitHistory:
    """Return a unit's history from one snapshot, and its issues from stored outputs."""
    ledger, wal_id = pipeline.ledger, record.wal_id
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    holder = (record.ingest_run_id, record.dataset) if record.status is Status.IN_PROGRESS else None
    issues = issues_of(record, looked_up_states(pipeline.database, pipeline.settings), pipeline.artifacts)
    with pipeline.database.snapshot() as view:
        return UnitHistory(
            versions=ledger.versions(wal_id, tx=view),
            lease=[claim for claim in ledger.leases.all(tx=view) if (claim.run_id, claim.dataset) == holder],
            cases=cases.of(wal_id, tx=view),
            governance=ledger.log.entries(wal_id=wal_id, tx=view),
            history=ledger.history(wal_id, tx=view),
            issues=issues,
        )
