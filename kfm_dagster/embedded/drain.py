"""Drain: run a deployment until its queue is empty and every unit is terminal."""

from __future__ import annotations

import time
from collections.abc import Callable

from kfm_dagster.embedded.deployment import Deployment
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.progress import Progress, progress
from kfm_dagster.replay.engine import ReplayEngine

POLL_SECONDS = 0.5
QUIET_POLLS = 3
"""Looks in a row that must find nothing: SQS counts are approximate."""


class DrainError(DependencyUnavailableError):
    """The queue did not drain."""


def drain(
    deployment: Deployment, pipeline: Pipeline, *, timeout_seconds: float, report: Callable[[Progress], None]
) -> Progress:
    """Watch until drained, calling `report` on every look.

    A part of the deployment that dies is started again. Raises DrainError when the time is over, and DeploymentError
    when parts keep dying; nothing is lost, the next drain goes on.
    """
    deadline = time.monotonic() + timeout_seconds
    replays = ReplayEngine(pipeline=pipeline)
    quiet = 0
    while True:
        now = progress(pipeline)
        report(now)
        quiet = quiet + 1 if now.drained and not replays.at_work() else 0
        if quiet >= QUIET_POLLS:
            return now
        deployment.tend()
        if time.monotonic() > deadline:
            raise DrainError(
                observed=f"{now.queued} messages, {now.units - now.terminal} units left after {timeout_seconds:.0f} s",
                next_step=f"read {deployment.home / 'logs'} and run the command again; it goes on where it stopped",
            )
        time.sleep(POLL_SECONDS)


def flush_lineage(pipeline: Pipeline, say: Callable[[str], None]) -> None:
    """Publish what the last runs of a deployment that has ended left, which no sensor will: their last steps."""
    if (error := pipeline.lineage.flush()) is not None:
        say(f"lineage waits for its backend: {error}")
