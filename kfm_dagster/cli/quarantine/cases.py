"""Cases of quarantined units, for the commands that show them."""

from __future__ import annotations

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases

CASE_COLUMNS = ("wal_id", "dataset", "reason", "error_code", "attempts", "opened_at", "object_uri")


def cases_of(pipeline: Pipeline) -> QuarantineCases:
    """Return the cases of a deployment."""
    return QuarantineCases(pipeline.database, clock=pipeline.clock)
