"""Metrics of settled attempts: each operator's outcome, failures, bytes and latency.

Belongs here: pure counting, from the settled rows and their envelopes. Does not belong here: settling (`store.py`), or
how totals are kept (`telemetry/totals.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Lane, ProvenanceStatus, StacStatus, WalId
from kfm_dagster.contracts.issues import Issue, Severity
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.telemetry.totals import PATHS, Total, Totals

WRITTEN: Final = frozenset({StacStatus.CREATED, StacStatus.UPDATED})
"""Outcomes that put an Item into the catalog."""
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

    `findings` are their sub-statuses, by the names of the ledger's columns. A unit that `ended` lacks is a conflict.
    """
    totals, statuses = Totals(), {row["wal_id"]: row for row in findings}
    for unit in units:
        if unit.wal_id not in ended:
            totals.add(Total.CONFLICTS, unit.dataset)
            continue
        _count(totals, unit, statuses[unit.wal_id], error=ended[unit.wal_id], at=at)
    return totals


def _count(totals: Totals, unit: Envelope, found: Mapping[str, Any], *, error: str | None, at: datetime) -> None:
    for column, total, not_run in _OUTCOMES:
        if found[column] != not_run:
            totals.add(total, unit.dataset, found[column])
    for code in _failures(unit.integrity.issues if unit.integrity else ()):
        totals.add(Total.INTEGRITY_FAILURES, unit.dataset, code)
    for code in _failures(unit.metadata.issues if unit.metadata else ()):
        totals.add(Total.METADATA_EXTRACT_FAILURES, unit.dataset, code)
    for issue in unit.provenance.issues if unit.provenance else ():
        # A lost claim is an issue here, too, but of no path.
        if issue.code in PATHS:
            totals.add(Total.PROVENANCE_FAILURES, unit.dataset, PATHS[issue.code])
    if error is not None:
        totals.add(Total.VALIDATION_ERRORS, unit.dataset, error)
    elif found["stac_status"] in WRITTEN:
        size = unit.integrity.actual_size_bytes if unit.integrity else None
        totals.add(Total.BYTES_INGESTED, unit.dataset, amount=size or unit.object_size or 0)
        if _is_timely(unit):
            totals.observe(Total.INGEST_LATENCY, (at - unit.event_time).total_seconds(), subject=unit.dataset)


def _failures(issues: Iterable[Issue]) -> Iterable[str]:
    return (issue.code for issue in issues if issue.severity is Severity.FAILED)


def _is_timely(unit: Envelope) -> bool:
    """Tell whether latency counts from the unit's event: replays and backfills begin later."""
    return unit.lane is Lane.LIVE and unit.replay_reason in {None, ReplayReason.RETRY}
