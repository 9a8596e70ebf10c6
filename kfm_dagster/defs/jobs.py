"""Dagster's jobs, and the schedules of listings and retention."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from kfm_dagster.contracts.cadence import settled_until
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.chain import LANE_TAG, asset_key, asset_keys, dataset_tags, slug
from kfm_dagster.defs.display import markdown_table
from kfm_dagster.defs.failing import one_line, redacted, refuse_foreign_roots
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.defs.run_storage import OldRuns
from kfm_dagster.errors import KfmError
from kfm_dagster.governance.log import DAGSTER_UI, Decision
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.path_arrivals import PathArrivals, radars
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import selection_of
from kfm_dagster.recovery.work_orders import start
from kfm_dagster.retention import RETENTION, RetentionPolicy, retention_of
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database

INGEST_JOB = "ingest"
PATH_JOB = "path_arrival"
GAP_JOB = "feed_gaps"
EVIDENCE_JOB = "nodd_evidence"
LISTED_DAILY = "40 6 * * *"
"""Not on the full hour, when most jobs start. Late enough for GFS, whose objects are expected within six hours."""

_BY_HAND = {LANE_TAG: Lane.BULK.value}
"""Manual runs and backfills in the UI list a day, so they are bulk work. The sensors set the lane of their runs."""


def ingest_job(registry: ContractRegistry) -> "dg.UnresolvedAssetJobDefinition":
    """Return the job over every dataset's chain; it runs without configuration.

    No dataset has its own job, because the daemon reads every job's snapshot each minute: a job per dataset doubles
    the cost of an idle deployment. A dataset's assets are selected in a run's request or on the page of their group.
    """
    return dg.define_asset_job(
        INGEST_JOB,
        selection=dg.AssetSelection.assets(*(key for contract in registry for key in asset_keys(contract.id))),
        tags=_BY_HAND,
        description="Ingest missing objects of one day: lists the buckets, processes new and pending objects, and "
        "skips objects that have succeeded. The sensors request it for the datasets that have work. To ingest one "
        "dataset, materialize the assets of its group.",
    )


def path_jobs(registry: ContractRegistry) -> "list[dg.UnresolvedAssetJobDefinition]":
    """Return the job of the assets `path_arrival`; none without a dataset of radar volumes."""
    keys = [asset_key(contract.id, PathArrivals.asset) for contract in radars(registry)]
    job = dg.define_asset_job(
        PATH_JOB,
        selection=dg.AssetSelection.assets(*keys),
        tags=_BY_HAND,
        description="Arrival times and phases of a day's radar beams, from all metadata that ingests have extracted. "
        "With new metadata it rebuilds the table, else it reuses the earlier table.",
    )
    return [job] if keys else []


def gap_job(check: dg.AssetCheckKey) -> "dg.UnresolvedAssetJobDefinition":
    """Return the job that checks for gaps now."""
    return dg.define_asset_job(
        GAP_JOB,
        selection=dg.AssetSelection.checks(check),
        description="Check now whether objects of the followed feeds are missing. The schedule nodd_gaps checks every "
        "hour and needs no run.",
    )


def evidence_job() -> dg.JobDefinition:
    """Return the job that collects evidence, so that no tick or ingest waits for a store."""

    @dg.op(
        name="collect_evidence",
        description="Stores the missing evidence of quarantined units: message, first and last bytes of the object, "
        "error, history.",
    )
    @redacted
    def collect(pipeline: PipelineResource) -> int:
        refuse_foreign_roots(pipeline)
        collector, collected = EvidenceCollector(pipeline.get()), 0
        while bundles := collector.collect():
            collected += bundles
        return collected

    return job_of(
        collect,
        name=EVIDENCE_JOB,
        description="Collect the evidence of quarantined units. The sensor nodd_ledger requests the job while a unit "
        "has no evidence; kfm units evidence shows the evidence.",
    )


def job_of(op: dg.OpDefinition, *, name: str, description: str) -> dg.JobDefinition:
    """Return the job of an op."""
    return dg.GraphDefinition(name=name, node_defs=[op]).to_job(description=description)


def listing_schedules(registry: ContractRegistry, *, days: dg.PartitionsDefinition) -> list[dg.ScheduleDefinition]:
    """Return each announced dataset's schedule, which lists the bucket for the last whole day.

    The schedules are switched off, because announced objects need no listing, and a listing costs requests. Switch them
    on if messages may be missing. `nodd_due` starts the listings that a contract schedules.
    """
    return [_schedule(contract, days) for contract in registry if contract.storage.scheduled_listing is None]


def _schedule(contract: DatasetContract, days: dg.PartitionsDefinition) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"nodd_list_{slug(contract.id)}",
        job_name=INGEST_JOB,
        cron_schedule=LISTED_DAILY,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Lists the bucket for the last day that should be complete, and ingests missing objects of "
        f"{contract.metadata.title}. Switched off, because messages announce each object, and kfm reconcile "
        "--repair records single missing objects.",
    )
    def list_last_day(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        at = context.scheduled_execution_time
        settled = settled_until(contract.coverage, at) if contract.coverage else at
        day = (settled.date() - timedelta(days=1)).isoformat()
        if not days.has_partition_key(day):
            return dg.SkipReason(f"{day} is before the first partition; kfm backfill moves the first partition back")
        return dg.RunRequest(
            run_key=day,
            partition_key=day,
            asset_selection=asset_keys(contract.id),
            tags=dataset_tags([contract.id]),
        )

    return list_last_day


RETENTION_JOB = "retention"
DAILY = "23 3 * * *"
"""At night over the United States, and not on the full hour, when most jobs start."""
ACTOR = "nodd_retention"
"""The job's actor in the governance log, whoever starts the job, because the policy decides on removals."""


def retention_job() -> dg.JobDefinition:
    """Return the job `retention`, which is `kfm retention run`."""

    @dg.op(
        name="remove_old_data",
        description="Deletes runs of Dagster, landed messages, outputs of stages and evidence of closed cases that "
        "nothing needs and that are older than retention.yaml allows. No row of the ledger's database is deleted.",
    )
    @redacted
    def remove_old_data(context: dg.OpExecutionContext, pipeline: PipelineResource) -> dict[str, Any]:
        try:
            removed = _removed(context, pipeline.get().settings, pipeline.get().clock)
        except KfmError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from None
        context.add_output_metadata({kind: dg.MetadataValue.json(counts) for kind, counts in removed.items()})
        return removed

    return job_of(
        remove_old_data,
        name=RETENTION_JOB,
        description="Delete old data by the policy of retention.yaml, as kfm retention run does. kfm retention plan "
        "shows beforehand what would be deleted.",
    )


def retention_schedule(pipeline: PipelineResource) -> dg.ScheduleDefinition:
    """Return the daily schedule, switched on; it keeps its resource between ticks."""

    @dg.schedule(
        name="nodd_retention",
        job_name=RETENTION_JOB,
        cron_schedule=DAILY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Requests the job retention once a day, if retention.yaml has a policy for any kind of data.",
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
            context.log.info("%s: removed %s of %s that exceed the policy's age", entry.kind, entry.removed, entry.old)
    return removed


REPLAY_JOB = "replay"


class ReplayConfig(dg.Config):
    """The selection to replay. The actor is always DAGSTER_UI."""

    selection: dict[str, Any] = Field(
        default_factory=dict, description="A selection as kfm replay select --save writes it; see docs/replay.md."
    )
    reason: str = Field("", description="Reason, recorded in the governance log; required if dry_run is false.")
    change_ref: str = Field("", description="Change or incident under which the replay was approved.")
    dry_run: bool = Field(default=True, description="true: only report the plan. false: replay the units.")


def replay_job() -> dg.JobDefinition:
    """Return the job `replay`: the same engine as `kfm replay`, started from the launchpad."""

    @dg.op(
        name="start_replay",
        description="Counts the selection's units, and fails if a guard refuses the selection. If dry_run is false, it "
        "starts the replay, and the sensor nodd_ledger continues the replay batch by batch.",
    )
    @redacted
    def start_replay(
        context: dg.OpExecutionContext, config: ReplayConfig, pipeline: PipelineResource
    ) -> dict[str, Any]:
        engine = ReplayEngine(pipeline=pipeline.get())
        try:
            result = _started(engine, config, context.run_id)
        except KfmError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from None
        context.add_output_metadata(_metadata(result))
        return result

    return job_of(
        start_replay,
        name=REPLAY_JOB,
        description="Repeat units through the ledger, as kfm replay does. Only shows the plan unless dry_run is false; "
        "kfm replay status shows the progress. The actor is dagster-ui: failed units are requeued and days are listed "
        "immediately; succeeded and quarantined units are requeued only after a person approves the proposal.",
    )


def _started(engine: ReplayEngine, config: ReplayConfig, run_id: str) -> dict[str, Any]:
    selection = selection_of(config.selection, source="the field selection")
    change_ref = config.change_ref or None
    if config.dry_run or selection.spec.options.dry_run:
        plan = engine.plan(selection, change_ref=change_ref)
        plan.refuse()
        return {"replay_run_id": None, "proposal_id": None, **plan.as_json()}
    decision = Decision(actor=DAGSTER_UI, reason=config.reason, change_ref=change_ref, dagster_run_id=run_id)
    started = start(engine, selection, decision)
    return {"replay_run_id": started.replay_run_id, "proposal_id": started.proposal_id, **started.plan.as_json()}


def _metadata(result: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in result.items() if not isinstance(value, (list, dict)) and value is not None}
    tables = {name: dg.MetadataValue.md(_table(result[name])) for name in ("breakdown", "examples") if result[name]}
    return {**shown, **tables}


def _table(rows: list[dict[str, Any]]) -> str:
    return markdown_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
