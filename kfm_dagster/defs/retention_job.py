"""The job `retention`, which is `kfm retention run`, and its daily schedule."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import dagster as dg

from kfm_dagster.defs.failing import one_line, redacted
from kfm_dagster.defs.jobs import job_of
from kfm_dagster.defs.old_runs import OldRuns
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.errors import KfmError
from kfm_dagster.retention.policy import RETENTION, RetentionPolicy
from kfm_dagster.retention.pruning import retention_of
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database

RETENTION_JOB = "retention"
DAILY = "23 3 * * *"
"""At night over the United States, off the hour at which most jobs start."""
ACTOR = "nodd_retention"
"""The job's actor in the governance log, whoever starts it: the policy decides what is removed."""


def retention_job() -> dg.JobDefinition:
    """Return the job."""

    @dg.op(
        name="remove_what_is_old",
        description="Removes what is older than its policy in retention.yaml and needed by nothing: runs of Dagster, "
        "landed messages, outputs of stages, evidence of closed cases. No row of the ledger's database goes.",
    )
    @redacted
    def remove_what_is_old(context: dg.OpExecutionContext, pipeline: PipelineResource) -> dict[str, Any]:
        try:
            removed = _removed(context, pipeline.get().settings, pipeline.get().clock)
        except KfmError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from None
        context.add_output_metadata({kind: dg.MetadataValue.json(counts) for kind, counts in removed.items()})
        return removed

    return job_of(
        remove_what_is_old,
        name=RETENTION_JOB,
        description="Remove what is old by the policy of retention.yaml, as kfm retention run does. kfm retention plan "
        "shows before what would go.",
    )


def retention_schedule(pipeline: PipelineResource) -> dg.ScheduleDefinition:
    """Return the schedule, switched on. It uses the resource itself, as the sensors do."""

    @dg.schedule(
        name="nodd_retention",
        job_name=RETENTION_JOB,
        cron_schedule=DAILY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Asks once a day for the job retention, where retention.yaml gives a policy to any kind.",
    )
    @one_line
    def nodd_retention(_: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if not RetentionPolicy.load(pipeline.get().settings.configs_dir).ages:
            return dg.SkipReason(f"everything is kept: no kind has a policy in {RETENTION}")
        return dg.RunRequest()

    return nodd_retention


def _removed(context: dg.OpExecutionContext, settings: Settings, clock: Callable[[], datetime]) -> dict[str, Any]:
    removed: dict[str, Any] = {}
    with ExitStack() as stack:
        database = Database.open(settings.retention_url)
        stack.callback(database.dispose)
        runs = OldRuns(instance=context.instance, database=database)
        retention = retention_of(settings, database, runs=runs, clock=clock)
        for entry in retention.run(actor=ACTOR):
            removed[entry.kind.value] = {"older": entry.old, "removed": entry.removed, "bytes": entry.bytes}
            context.log.info("%s: %s of %s that are older were removed", entry.kind, entry.removed, entry.old)
    return removed
