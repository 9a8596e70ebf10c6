"""A dataset's chain in one process: its nodes as one run, as Dagster's ops and IO manager run them.

Belongs here: running the nodes without Dagster. Does not belong here: what a node does
(`nodes.py`), or what happens around it (`stages/run_contract.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, chain, operators
from kfm_dagster.ingest.path_arrivals import NODE as PATH_ARRIVAL
from kfm_dagster.ingest.rollback import retry_in, roll_back_or_leave
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import StageBatch

_LOG = logging.getLogger(__name__)


def run_chain(first: MessageParse, *, pause: Callable[[float], None] | None = None) -> list[StageBatch]:
    """Run the chain over what its first node finds; return each node's output.

    With a `pause`, which waits for some seconds, a stage that fails is tried again after it where the pipeline card
    wants that, else its run is rolled back, as Dagster's runs are. Without one the first failure ends the chain and is
    left as it is. Raises what the stage failed with, StageFailedError where it was not its commit.
    """
    shared: dict[str, Any] = {
        "pipeline": first.pipeline,
        "dataset": first.dataset,
        "partition": first.partition,
        "run_id": first.run_id,
        "read_ahead": first.read_ahead,
    }
    outputs: list[StageBatch] = []
    for node in (first, *(kind(**shared) for kind in chain()[1:])):
        outputs.append(_run_stage(node, outputs[-1] if outputs else None, pause))
    return outputs


def _run_stage(node: ChainNode, upstream: StageBatch | None, pause: Callable[[float], None] | None) -> StageBatch:
    stages = node.pipeline.stages
    for tries in count(1):
        # Another one for each try: a node keeps what it has found.
        trying = replace(node)
        try:
            return stages.commit(stages.run(trying, run_id=node.run_id, upstream=upstream))
        except Exception as error:
            if pause is None:
                raise
            wait = retry_in(trying, error, tries=tries)
            if wait is None:
                if (rollback := roll_back_or_leave(trying, error)) is not None:
                    _LOG.warning("%s failed for good, its run is rolled back: %s", node.kind, rollback)
                raise
            pause(wait)
    raise AssertionError("tries end by a return or an error")


def read_configuration(settings: Settings) -> Configuration:
    """Read everything that settings name, and refuse a stage that there is not; makes nothing.

    Whatever starts servers, daemons or workers does it first, so that a wrong file is one line there and not a line of
    every process. Raises ContractError, CardError or ConfigurationError.
    """
    read = Configuration.load(settings)
    read.card.refuse_unknown_stages((*operators(), PATH_ARRIVAL))
    return read
