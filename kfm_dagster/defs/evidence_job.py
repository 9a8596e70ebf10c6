"""The job `nodd_evidence`: evidence of quarantined units, apart from what ingests.

A store that does not answer, or a body that takes long, then holds up no tick and no run. Does not belong here: how
evidence is collected (`ingest/evidence.py`).
"""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from datetime import datetime

import dagster as dg

from kfm_dagster.defs.one_line import redacted, refuse_foreign_roots
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ledger.cases import QuarantineCases

EVIDENCE_JOB = "nodd_evidence"
PATIENCE_SECONDS = 600
"""A case that a run could not give its evidence is asked for again after so long."""


def evidence_job() -> dg.JobDefinition:
    """Return the job."""

    @dg.op(
        name="collect_evidence",
        description="Stores the evidence of quarantined units that have none: message, both ends of the object, error, "
        "history.",
    )
    @redacted
    def collect(pipeline: PipelineResource) -> int:
        refuse_foreign_roots(pipeline)
        collector, collected = EvidenceCollector(pipeline.get()), 0
        while bundles := collector.collect():
            collected += bundles
        return collected

    @dg.job(
        name=EVIDENCE_JOB,
        description="Collect the evidence of quarantined units. The sensor nodd_ledger asks for it where some lack it; "
        "kfm quarantine show has it.",
    )
    def nodd_evidence() -> None:
        collect()

    return nodd_evidence


def evidence_runs(cases: QuarantineCases, *, at: datetime) -> list[dg.RunRequest]:
    """Return the request for a run of the job where cases lack their evidence, named by the oldest of them."""
    turn = int(at.timestamp()) // PATIENCE_SECONDS
    return [
        dg.RunRequest(run_key=f"{oldest.wal_id}@{oldest.version}/{turn}", job_name=EVIDENCE_JOB)
        for oldest in cases.due(limit=1)
    ]
