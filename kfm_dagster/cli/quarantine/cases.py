"""Cases of quarantined units: asked for, and as rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCase, QuarantineCases

CASE_COLUMNS = ("wal_id", "dataset", "reason", "error_code", "attempts", "opened_at", "object_uri")


def cases_of(pipeline: Pipeline) -> QuarantineCases:
    """Return the cases of a deployment."""
    return QuarantineCases(pipeline.database, clock=pipeline.clock)


def case_row(case: QuarantineCase) -> dict[str, Any]:
    """Return the published form of a case."""
    return {
        "wal_id": case.key.wal_id,
        "quarantined_version": case.key.version,
        "dataset": case.dataset,
        "object_uri": case.object_uri,
        "reason": case.reason,
        "error_code": case.error_code,
        "attempts": case.attempts,
        "state": case.state.value,
        "opened_at": rfc3339(case.opened_at),
        "evidence_file": None if case.evidence is None else dataclasses.asdict(case.evidence),
        "collected_at": None if case.collected_at is None else rfc3339(case.collected_at),
        "closed_at": None if case.closed_at is None else rfc3339(case.closed_at),
        "closed_by": case.closed_by,
        "closing_reason": case.closing_reason,
        "change_ref": case.change_ref,
    }
