"""Cases of quarantined units, for the commands that show them."""

from __future__ import annotations

from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.views.view import Parts

CASE_COLUMNS = ("wal_id", "dataset", "reason", "error_code", "attempts", "opened_at", "object_uri")


def cases_of(parts: Parts) -> QuarantineCases:
    """Return the cases of a deployment."""
    return QuarantineCases(parts.database, clock=parts.clock)
