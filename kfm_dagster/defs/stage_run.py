"""A stage inside an op: its gates as results, its output for the IO manager, its failure as Dagster's.

Belongs here: what Dagster sees of a stage while it runs. Does not belong here: which node it is (`assets.py`), or what
is recorded (`io_manager.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dagster as dg

from kfm_dagster.defs.chain import dataset_of
from kfm_dagster.defs.failing import try_again_or_roll_back
from kfm_dagster.defs.gate_checks import gate_results, not_evaluated
from kfm_dagster.defs.io_manager import StageIOManager
from kfm_dagster.defs.one_line import refuse_foreign_roots
from kfm_dagster.defs.resources import WalResource
from kfm_dagster.defs.run_tags import FORCE_TAG
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.failure import StageFailedError


def run_stage(
    context: dg.AssetExecutionContext,
    node: ChainNode,
    upstream: StageBatch | None,
    wal: WalResource,
    stage_io: StageIOManager,
) -> Iterator[Any]:
    """Yield what a stage's gates said, and its output for the IO manager. Raises what makes Dagster fail or retry."""
    refuse_foreign_roots(stage_io.pipeline)
    key = context.asset_key
    day = partial(wal.get().day, dataset=dataset_of(key), partition=context.partition_key)
    console = wal.settings().console_url
    try:
        stage = stage_io.run(node, upstream, force=context.run.tags.get(FORCE_TAG))
    except StageFailedError as error:
        if error.decision is not None:
            yield from gate_results(key, node.required_gates, error.decision, day=day(), console=console)
        try_again_or_roll_back(node, error, tries=context.retry_number + 1, log=context.log)
        raise dg.Failure(description=str(error), metadata={"error_class": error.error_class.value}) from error
    if stage.decision is None:
        yield from not_evaluated(key, node.required_gates, stage, day=day())
    else:
        yield from gate_results(key, node.required_gates, stage.decision, day=day(), console=console)
    # The same inputs, parameters and code are the same data: what was handed on keeps its version.
    version = stage_io.content_hash(stage)
    yield dg.Output(stage, output_name="result", data_version=dg.DataVersion(version) if version else None)
