"""What Dagster is told of a stage that failed: to try it again, or that it is over and its run is rolled back."""

from __future__ import annotations

import dagster as dg

from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.rollback import roll_back_or_leave
from kfm_dagster.stages.failure import StageFailedError, classify
from kfm_dagster.stages.node import Node


def try_again_or_roll_back(node: Node, error: BaseException, *, tries: int, log: dg.DagsterLogManager) -> None:
    """Ask Dagster to try a stage again where the pipeline card wants that, else take back what its run did.

    `tries` counts those of this Dagster run. Raises dagster.RetryRequested for another one.
    """
    if not isinstance(node, ChainNode):
        return
    keeper = node.pipeline.stages.keeper
    error_class = error.error_class if isinstance(error, StageFailedError) else classify(error)
    wait = keeper.retry_in(node.run_id, node.dataset_id, error_class, tries=tries)
    if wait is not None:
        raise dg.RetryRequested(max_retries=keeper.card.retry_policy.max_retries, seconds_to_wait=wait) from error
    if (rollback := roll_back_or_leave(node, error)) is not None:
        log.warning("%s failed for good, its run is rolled back: %s", node.dataset_id, rollback)
