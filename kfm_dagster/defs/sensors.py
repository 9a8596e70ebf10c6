"""Sensors: SQS messages to partitioned runs, and the ledger's leftovers to further runs."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import takewhile

import dagster as dg

from kfm_dagster.defs.chain import CHAIN, asset_key, op_name
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.jobs import INGEST_JOB
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.ingest.evidence import collect_evidence
from kfm_dagster.ingest.intake import IntakeReport, take_in
from kfm_dagster.ingest.nodes import Operator
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.plan import PlannedRun, plan_runs
from kfm_dagster.lineage.backend import BackendUnavailableError

ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
PARTITION_TAG = "dagster/partition"
MAX_DOUBLINGS = 10
MAX_PAUSE_SECONDS = 600.0
"""Longest pause between two runs of a partition whose runs all fail."""


def ingest_sensors(*, interval_seconds: int) -> list[dg.SensorDefinition]:
    """Return both sensors, switched on."""

    @dg.sensor(
        name="nodd_messages",
        job_name=INGEST_JOB,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Receives from the SQS queue in parallel, lands the raw batch immutably, records every unit, and "
        "asks for one run per day over all datasets that have messages for it. Stops receiving while more than "
        "KFM_MAX_IN_FLIGHT_UNITS units are pending or in progress.",
    )
    def nodd_messages(context: dg.SensorEvaluationContext, pipeline: PipelineResource) -> dg.SensorResult:
        opened = pipeline.get()
        report = take_in(opened)
        planned = plan_runs(
            [
                entry
                for entry in opened.ledger.pending_by_partition()
                if (entry.dataset, entry.partition) in report.landed
            ],
            landed=report.landed,
            **_active_runs(context.instance, opened),
            max_units_per_run=opened.settings.max_units_per_run,
            salt=_runs_so_far(context.instance),
        )
        if not planned:
            return dg.SensorResult(skip_reason=_why_no_run(opened, report))
        return dg.SensorResult(run_requests=[_request(run) for run in planned])

    @dg.sensor(
        name="nodd_ledger",
        job_name=INGEST_JOB,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Gives back the units of dead runs and of expired leases, lets due retries in, delivers lineage "
        "to the configured backend, and asks for runs over what is pending and no active run will take.",
    )
    def nodd_ledger(context: dg.SensorEvaluationContext, pipeline: PipelineResource) -> dg.SensorResult:
        opened = pipeline.get()
        _recover(context, opened)
        opened.ledger.retry_due(now=opened.clock(), limit=opened.settings.max_in_flight_units)
        opened.acknowledge()
        collect_evidence(opened)
        _deliver_lineage(context, opened)
        pending = opened.ledger.pending_by_partition()
        # What appeared since the last tick may be the other sensor's, whose run is not asked for yet.
        seen_before = set(json.loads(context.cursor or "[]"))
        context.update_cursor(json.dumps(sorted({entry.partition for entry in pending})))
        cooling = _cooling_down(context.instance, now=opened.clock(), interval_seconds=interval_seconds)
        planned = plan_runs(
            [entry for entry in pending if entry.partition in seen_before and not cooling(entry.partition)],
            landed={},
            **_active_runs(context.instance, opened),
            max_units_per_run=opened.settings.max_units_per_run,
            salt=_runs_so_far(context.instance),
        )
        if not planned:
            waiting = sum(entry.units for entry in pending)
            return dg.SensorResult(
                skip_reason=f"{waiting} units are pending; an active run or a later tick will take them"
                if waiting
                else "nothing is pending in the ledger"
            )
        return dg.SensorResult(run_requests=[_request(run) for run in planned])

    return [nodd_messages, nodd_ledger]


def _request(run: PlannedRun) -> dg.RunRequest:
    config = {
        op_name(dataset, Operator.MESSAGE_PARSE): {
            "config": {"source": run.source.name, "landing": list(run.landing.get(dataset, ()))}
        }
        for dataset in run.datasets
    }
    return dg.RunRequest(
        run_key=run.run_key,
        partition_key=run.partition,
        asset_selection=[asset_key(dataset, noun) for dataset in run.datasets for noun in CHAIN],
        run_config={"ops": config},
        tags={"kfm/datasets": ",".join(run.datasets), "kfm/source": run.source.value},
    )


def _active_runs(instance: dg.DagsterInstance, pipeline: Pipeline) -> dict[str, Counter[str]]:
    """Count, by partition, the queued and running runs, and those of them that will still claim."""
    claimed = set(pipeline.ledger.in_progress_runs())
    runs = [run for run in instance.get_runs(filters=dg.RunsFilter(statuses=ACTIVE)) if PARTITION_TAG in run.tags]
    return {
        "active": Counter(run.tags[PARTITION_TAG] for run in runs),
        "coming": Counter(run.tags[PARTITION_TAG] for run in runs if root_run_id(run) not in claimed),
    }


def _recover(context: dg.SensorEvaluationContext, pipeline: Pipeline) -> None:
    dead = _dead(context.instance, pipeline.ledger.in_progress_runs())
    report = pipeline.ledger.release_lost(run_ids=dead)
    if report.readmitted or report.quarantined:
        context.log.warning(
            "gave back %d units of dead runs or expired leases, quarantined %d",
            len(report.readmitted),
            len(report.quarantined),
        )


def _deliver_lineage(context: dg.SensorEvaluationContext, pipeline: Pipeline) -> None:
    pipeline.lineage.publish_staged()
    try:
        pipeline.lineage.deliver()
    except BackendUnavailableError as error:
        # Recorded events wait; ingestion does not.
        context.log.warning(str(error))


def _dead(instance: dg.DagsterInstance, root_run_ids: Iterable[str]) -> list[str]:
    """Return the root run ids of which no run, original or re-execution, is active any more."""
    dead = []
    for root in root_run_ids:
        group = [
            *instance.get_runs(filters=dg.RunsFilter(run_ids=[root])),
            *instance.get_runs(filters=dg.RunsFilter(tags={"dagster/root_run_id": root})),
        ]
        if not any(run.status in ACTIVE for run in group):
            dead.append(root)
    return dead


def _cooling_down(instance: dg.DagsterInstance, *, now: datetime, interval_seconds: int) -> Callable[[str], bool]:
    """Return a function that tells whether a partition's runs keep failing, so that the next one has to wait.

    The pause doubles with every failure in a row: something that fails every run (a database that is down, a disk that
    is full) must not keep the machine busy starting runs.
    """

    def cooling(partition: str) -> bool:
        records = instance.get_run_records(filters=dg.RunsFilter(tags={PARTITION_TAG: partition}), limit=MAX_DOUBLINGS)
        failures = list(takewhile(lambda record: record.dagster_run.status is dg.DagsterRunStatus.FAILURE, records))
        if not failures:
            return False
        pause = min(interval_seconds * 2.0 ** len(failures), MAX_PAUSE_SECONDS)
        return now.timestamp() < (failures[0].end_time or 0.0) + pause

    return cooling


def _runs_so_far(instance: dg.DagsterInstance) -> Callable[[str], str]:
    """Return a function that names how many runs a partition has had: it changes when one more has been asked for."""
    return lambda partition: str(instance.get_runs_count(filters=dg.RunsFilter(tags={PARTITION_TAG: partition})))


def _why_no_run(pipeline: Pipeline, report: IntakeReport) -> str:
    if report.full:
        return (
            f"{pipeline.ledger.in_flight()} units are in flight, the limit is {pipeline.settings.max_in_flight_units} "
            "(KFM_MAX_IN_FLIGHT_UNITS); messages stay safe in the queue"
        )
    if report.received == 0:
        return f"the queue is empty ({report.deleted} finished messages deleted)"
    return (
        f"{report.received} messages received: {report.known} units known already, {report.ignored} ignored, "
        f"{report.rejected} rejected, {report.created + report.readmitted} waiting for an active run"
    )
