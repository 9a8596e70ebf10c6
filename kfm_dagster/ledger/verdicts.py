"""Verdicts: how each attempt of a batch ended, its consequence, and its metrics.

Belongs here: pure decisions from envelopes and contracts, as rows for the settling statements, and the counts of these
decisions. Does not belong here: changing a record (`store.py`), or how totals are kept (`telemetry/totals.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Lane, ProvenanceStatus, StacResult, StacStatus, WalId
from kfm_dagster.contracts.issues import Issue, Severity, StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.policy import LedgerCode, ReplayReason, backoff_seconds, is_overdue, quarantine_reason
from kfm_dagster.ledger.rows import findings_row
from kfm_dagster.ledger.state_machine import why_not_succeeded
from kfm_dagster.redaction import redact
from kfm_dagster.telemetry.totals import PATHS, Total, Totals


@dataclass(kw_only=True, slots=True)
class Verdicts:
    """Rows of the successes and failures, and the reasons of the units to quarantine."""

    succeeded: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    given_up: dict[WalId, str] = field(default_factory=dict)
    due: dict[WalId, datetime] = field(default_factory=dict)
    """Time of the next attempt of each failure that is retried."""

    def extend(self, others: Verdicts) -> None:
        """Add the verdicts on other units."""
        self.succeeded += others.succeeded
        self.failed += others.failed
        self.given_up |= others.given_up
        self.due |= others.due

    def overdue(self, failures: Iterable[Any], registry: ContractRegistry) -> dict[WalId, str]:
        """Return the failed records whose next attempt would begin after the deadline."""
        return {
            WalId(row.wal_id): LedgerCode.DEADLINE_EXCEEDED
            for row in failures
            if row.wal_id in self.due
            and is_overdue(
                registry[row.dataset].retry,
                discovered=row.created_at,
                due=self.due[row.wal_id],
                replay_reason=row.replay_reason,
            )
        }


def decide(
    envelopes: Sequence[Envelope],
    registry: ContractRegistry,
    *,
    now: datetime,
    base_seconds: float | None,
    human_review: Collection[str],
) -> Verdicts:
    """Decide for each unit whether it has succeeded, is retried later, or is quarantined."""
    verdicts = Verdicts()
    for unit in envelopes:
        row = findings_row(unit)
        error = _error_of(unit, row)
        if error is None:
            verdicts.succeeded.append(row)
            continue
        code, message = error
        retry = registry[unit.dataset].retry
        reason = quarantine_reason(retry, attempt=unit.attempt, error_code=code, human_review=human_review)
        due = None
        if reason is None:
            wait = backoff_seconds(retry.backoff, key=unit.wal_id, attempt=unit.attempt, base_seconds=base_seconds)
            verdicts.due[unit.wal_id] = due = now + timedelta(seconds=wait)
        else:
            verdicts.given_up[unit.wal_id] = reason
        verdicts.failed.append(row | {"error_code": code, "error_message": redact(message), "next_attempt_at": due})
    return verdicts


def yields_to(unit: Envelope) -> WalId | None:
    """Return the newer unit whose Item replaces this unit's, if any; None if this unit failed."""
    return unit.stac.superseded_by if unit.stac and unit.failure is None else None


def conflicting(unit: Envelope) -> Envelope:
    """Return the unit as failed, to be retried, because the newer unit has not succeeded yet."""
    message = f"unit {yields_to(unit)} wrote the current Item but has not succeeded, so the Item may be undone"
    issue = Issue(code=StacIssue.CATALOG_CONFLICT, severity=Severity.FAILED, message=message)
    failed = StacResult(write_status=StacStatus.FAILED, issues=(issue,))
    return unit.evolve(stac=failed)


def _error_of(unit: Envelope, findings: Mapping[str, str]) -> tuple[str, str] | None:
    if unit.failure is not None:
        return unit.failure.code, unit.failure.message
    why = why_not_succeeded(findings)
    return None if why is None else (LedgerCode.INCOMPLETE_CHAIN, why)


WRITTEN: Final = frozenset({StacStatus.CREATED, StacStatus.UPDATED})
"""Outcomes that write an Item to the catalog."""
_OUTCOMES: Final = (
    ("integrity_status", Total.INTEGRITY_CHECKS, CheckStatus.UNKNOWN),
    ("metadata_status", Total.METADATA_EXTRACT, CheckStatus.UNKNOWN),
    ("stac_status", Total.STAC_WRITES, StacStatus.UNKNOWN),
    ("provenance_status", Total.PROVENANCE_EMITS, ProvenanceStatus.UNKNOWN),
)
"""Sub-status, its total, and the value for an operator that did not run."""


def settled_totals(
    units: Iterable[Envelope], *, findings: Iterable[Mapping[str, Any]], ended: Mapping[WalId, str | None], at: datetime
) -> Totals:
    """Count the attempts of a batch; `ended` maps each settled unit to its error code or None.

    `findings` has the units' sub-statuses by column of the ledger. A unit that is missing from `ended` had lost its
    claim, and counts only in Total.CONFLICTS.
    """
    totals, statuses = Totals(), {row["wal_id"]: row for row in findings}
    for unit in units:
        if unit.wal_id not in ended:
            totals.add(Total.CONFLICTS, unit.dataset)
            continue
        _count(totals, unit, statuses[unit.wal_id], error=ended[unit.wal_id], at=at)
    return totals


def _count(totals: Totals, unit: Envelope, finding: Mapping[str, Any], *, error: str | None, at: datetime) -> None:
    for column, total, not_run in _OUTCOMES:
        if finding[column] != not_run:
            totals.add(total, unit.dataset, finding[column])
    for code in _failures(unit.integrity.issues if unit.integrity else ()):
        totals.add(Total.INTEGRITY_FAILURES, unit.dataset, code)
    for code in _failures(unit.metadata.issues if unit.metadata else ()):
        totals.add(Total.METADATA_EXTRACT_FAILURES, unit.dataset, code)
    for issue in unit.provenance.issues if unit.provenance else ():
        # A lost claim is also an issue of this section, but belongs to neither lineage path.
        if issue.code in PATHS:
            totals.add(Total.PROVENANCE_FAILURES, unit.dataset, PATHS[issue.code])
    if error is not None:
        totals.add(Total.VALIDATION_ERRORS, unit.dataset, error)
    elif finding["stac_status"] in WRITTEN:
        size = unit.integrity.actual_size_bytes if unit.integrity else None
        totals.add(Total.BYTES_INGESTED, unit.dataset, amount=size or unit.object_size or 0)
        if _is_timely(unit):
            totals.observe(Total.INGEST_LATENCY, (at - unit.event_time).total_seconds(), subject=unit.dataset)


def _failures(issues: Iterable[Issue]) -> Iterable[str]:
    return (issue.code for issue in issues if issue.severity is Severity.FAILED)


def _is_timely(unit: Envelope) -> bool:
    """Return whether the unit's latency counts; replays and backfills would distort the figures."""
    return unit.lane is Lane.LIVE and unit.replay_reason in {None, ReplayReason.RETRY}
