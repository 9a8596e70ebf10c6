"""A dataset's chain in one process: its nodes as one run, as Dagster's ops and IO manager run them.

Belongs here: running the nodes without Dagster. Does not belong here: what a node does
(`nodes.py`), or what happens around it (`stages/run_contract.py`).
"""

from __future__ import annotations

from typing import Any

from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.nodes import MessageParse, chain, operators
from kfm_dagster.ingest.path_arrivals import NODE as PATH_ARRIVAL
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import StageBatch


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
    for node in (first, *(kind(**shared) for kind in chain()[1:])):
        stage = stages.run(node, run_id=run_id, upstream=outputs[-1] if outputs else None)
        outputs.append(stages.commit(stage))
    return outputs


def read_configuration(settings: Settings) -> Configuration:
    """Read everything that settings name, and refuse a stage that there is not; makes nothing.

    Whatever starts servers, daemons or workers does it first, so that a wrong file is one line there and not a line of
    every process. Raises ContractError, CardError or ConfigurationError.
    """
    read = Configuration.load(settings)
    read.card.refuse_unknown_stages((*operators(), PATH_ARRIVAL))
    return read
