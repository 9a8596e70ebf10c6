"""A dataset's chain in one process: a run as by Dagster's ops and IO manager.

Belongs here: running the nodes without Dagster. Does not belong here: the nodes (`nodes.py`), or the run contract
around each (`stages/run_contract.py`).
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
    """Run the chain over the units of its first node; return each node's output.

    With `pause`, which waits for a number of seconds, a failed stage is retried by the pipeline card's rules, else its
    run is rolled back, as Dagster's runs are. Without `pause` the first failure ends the chain, and nothing is rolled
    back. Raises the stage's error: StageFailedError, or the error of its commit.
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
        # A new copy for each try, because a node has state.
        copy = replace(node)
        try:
            return stages.commit(stages.run(copy, run_id=node.run_id, upstream=upstream))
        except Exception as error:
            if pause is None:
                raise
            wait = retry_in(copy, error, tries=tries)
            if wait is None:
                if (rollback := roll_back_or_leave(copy, error)) is not None:
                    _LOG.warning("%s failed for good, its run is rolled back: %s", node.kind, rollback)
                raise
            pause(wait)
    raise AssertionError("tries end by a return or an error")


def read_configuration(settings: Settings) -> Configuration:
    """Read all files that settings name, and refuse unknown stages; creates nothing.

    Commands that start servers, daemons or workers call it first, so that a wrong file gives one line instead of one
    for every process. Raises ContractError, CardError or ConfigurationError.
    """
    configuration = Configuration.load(settings)
    configuration.card.refuse_unknown_stages((*operators(), PATH_ARRIVAL))
    return configuration
