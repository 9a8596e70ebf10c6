"""Failures of ticks and ops: reported in a redacted line, or retried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import dagster as dg

from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.errors import DependencyUnavailableError, ForeignRootError, KfmError
from kfm_dagster.ingest.chain import retry_in, roll_back_or_leave
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.redaction import redacted_error
from kfm_dagster.stages.node import StageNode

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def one_line(tick: Callable[Arguments, Result]) -> Callable[Arguments, Result | dg.SkipReason]:
    """Skip a tick, with the reason, if a dependency is unavailable or a root is foreign."""
    redacting = redacted(tick)

    @functools.wraps(tick)
    def ticked(*positional: Arguments.args, **named: Arguments.kwargs) -> Result | dg.SkipReason:
        try:
            return redacting(*positional, **named)
        except (DependencyUnavailableError, ForeignRootError) as error:
            return dg.SkipReason(str(error))

    return ticked


def refuse_foreign_roots(pipeline: PipelineResource) -> None:
    """Raise a one-line dg.Failure if a root is foreign or unreachable; check once per process."""
    opened = pipeline.get()
    try:
        pipeline.state().hold_roots(opened.settings, opened.database)
    except KfmError as error:
        raise dg.Failure(description=str(error), allow_retries=not isinstance(error, ForeignRootError)) from None


def redacted(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Redact the errors of `work`, because Dagster stores an error with the texts of all causes."""

    @functools.wraps(work)
    def worked(*positional: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return work(*positional, **named)
        except dg.Failure:
            raise  # our own line, with Dagster's next action
        except Exception as error:
            shown = redacted_error(error)
            raise shown from shown.__cause__

    return worked


def retry_or_roll_back(node: StageNode, error: BaseException, *, tries: int, log: dg.DagsterLogManager) -> None:
    """Ask Dagster to retry a stage if the pipeline card allows it, else roll back the run.

    `tries` counts the stage's attempts in this Dagster run. Raises dagster.RetryRequested for another attempt.
    """
    if not isinstance(node, ChainNode):
        return
    wait = retry_in(node, error, tries=tries)
    if wait is not None:
        policy = node.pipeline.card.machine.retry_policy
        raise dg.RetryRequested(max_retries=policy.max_retries, seconds_to_wait=wait) from redacted_error(error)
    if (rollback := roll_back_or_leave(node, error)) is not None:
        log.warning("%s failed for good, its run is rolled back: %s", node.kind, rollback)
