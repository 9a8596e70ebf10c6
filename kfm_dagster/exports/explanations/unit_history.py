"""All that is recorded of one unit outside its record, as JSON values. Only reads."""

from __future__ import annotations

from typing import Any

from kfm_dagster.exports.explanations.unit_issues import issues_of
from kfm_dagster.exports.json_rows import json_row
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.choice import looked_up_states


def unit_history(pipeline: Pipeline, record: NoddWalRecord) -> dict[str, list[dict[str, Any]]]:
    """Return a unit's issues, versions of its object, lease, cases, decisions and changes.

    Only a unit in progress is under a lease. A store that does not answer is an issue.
    """
    ledger = pipeline.ledger
    held = [
        lease
        for lease in ledger.leases.all()
        if record.status is Status.IN_PROGRESS
        and (lease.run_id, lease.dataset) == (record.ingest_run_id, record.dataset)
    ]
    run_states = looked_up_states(pipeline.database, pipeline.settings)
    return {
        "issues": [json_row(one) for one in issues_of(record, run_states, pipeline.artifacts)],
        "versions": [json_row(one) for one in ledger.versions(record.wal_id)],
        "lease": [json_row(lease) for lease in held],
        "cases": [
            case.as_json() for case in QuarantineCases(pipeline.database, clock=pipeline.clock).of(record.wal_id)
        ],
        "governance": [entry.as_json() for entry in ledger.log.entries(wal_id=record.wal_id)],
        "history": [entry.model_dump(mode="json") for entry in ledger.history(record.wal_id)],
    }
