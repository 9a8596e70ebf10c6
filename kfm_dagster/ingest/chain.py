"""A dataset's chain in one process: its six nodes as one run, as Dagster's ops and IO manager run them.

Belongs here: the order of the nodes, for whoever runs them without Dagster. Does not belong here: what a node does
(`nodes.py`), or what happens around it (`stages/run_contract.py`).
"""

from __future__ import annotations

from typing import Any

from kfm_dagster.ingest.nodes import (
    IntegrityCheck,
    MessageParse,
    MetadataExtract,
    ProvenanceEmit,
    Settle,
    StacRegister,
)
from kfm_dagster.stages.batch import StageBatch

ENRICHING = (IntegrityCheck, MetadataExtract, StacRegister, ProvenanceEmit, Settle)
"""What comes after the node that finds the units."""


def run_chain(first: MessageParse) -> list[StageBatch]:
    """Run the chain over what its first node finds; return each node's output. Raises StageFailedError."""
    stages, run_id = first.pipeline.stages, first.run_id
    shared: dict[str, Any] = {
        "pipeline": first.pipeline,
        "dataset": first.dataset,
        "partition": first.partition,
        "run_id": run_id,
    }
    outputs: list[StageBatch] = []
    for node in (first, *(kind(**shared) for kind in ENRICHING)):
        stage = stages.run(node, run_id=run_id, upstream=outputs[-1] if outputs else None)
        outputs.append(stages.commit(stage))
    return outputs
