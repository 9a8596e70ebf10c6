"""What Dagster is told of a stage that failed: to try it again, or that it is over and its run is rolled back."""

from __future__ import annotations

import dagster as dg

from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.rollback import retry_in, roll_back_or_leave
from kfm_dagster.redaction import redacted_error
from kfm_dagster.stages.node import StageNode


def try_again_or_roll_back(node: StageNode, error: BaseException, *, tries: int, log: dg.DagsterLogManager) -> None:
    """Ask Dagster to try a stage again where the pipeline card wants that, else take back what its run did.

    `tries` counts those of this Dagster run. Raises dagster.RetryRequested for another one.
    """
    if not isinstance(node, ChainNode):
        return
    wait = retry_in(node, error, tries=tries)
    if wait is not None:
        policy = node.pipeline.card.machine.retry_policy
        raise dg.RetryRequested(max_retries=policy.max_retries, seconds_to_wait=wait) from redacted_error(error)
    if (rollback := roll_back_or_leave(node, error)) is not None:
        log.warning("%s failed for good, its run is rolled back: %s", node.kind, rollback)
