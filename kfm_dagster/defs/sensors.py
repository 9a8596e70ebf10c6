"""Sensors that request runs for messages, pending units, and work due by the clock."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import cache, partial
from typing import Any

import dagster as dg

from kfm_dagster.alerts.store import Alert, Evaluation
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.chain import BACKFILL_TAG, LANE_TAG, SOURCE_TAG, asset_key, asset_keys, dataset_tags, op_name
from kfm_dagster.defs.failing import one_line
from kfm_dagster.defs.jobs import EVIDENCE_JOB, INGEST_JOB, PATH_JOB
from kfm_dagster.defs.long_ticks import SHORT, look_for_work
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.defs.run_storage import DeadRuns, active_runs, cooling_down, listing_days, newest_run, run_slots
from kfm_dagster.ingest.intake import IntakeReport, take_in
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, sentence, units_in_flight
from kfm_dagster.ingest.maintenance import attempt, maintain
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.path_arrivals import PathArrivals, days_to_compute
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.plan import PlannedRun, lane_limits, of_known_days, plan_runs, why_unknown
from kfm_dagster.ingest.process_state import RequestedRuns
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.reports import PendingPartition
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.sqs import FIRST_WAIT_SECONDS, LONG_POLL_SECONDS
from kfm_dagster.plural import counted
from kfm_dagster.recovery.backfill.days import AdvanceReport, Backfills, ListingRequest
from kfm_dagster.recovery.intents import IntentRecovery
from kfm_dagster.recovery.replay.engine import ReplayEngine


def ticking_every(seconds: int) -> int:
    """Return the minimum interval, in seconds, of a sensor that is to tick every `seconds`.

    Every five seconds (MIN_INTERVAL_LOOP_TIME of dagster._daemon.sensor), the daemon evaluates the sensors whose last
    tick began at least an interval ago. The daemon's loop jitters by milliseconds, and with an exact interval every
    early tick would be skipped. So the interval is a second shorter.
    """
    return max(1, seconds - 1)


def ingest_sensors(
    *,
    interval_seconds: int,
    days: dg.PartitionsDefinition,
    pipeline: PipelineResource,
    wal: WalResource,
    jobs: "Sequence[dg.JobDefinition | dg.UnresolvedAssetJobDefinition]",
) -> list[dg.SensorDefinition]:
    """Return the sensors, which request runs of `days` and report units of other days.

    `jobs` are the jobs that `nodd_ledger` requests: ingest, and evidence. The sensors hold their resources, because
    Dagster would create new resources for every tick, which costs more than an idle tick.
    """

    @dg.sensor(
        name="nodd_messages",
        job_name=INGEST_JOB,
        minimum_interval_seconds=ticking_every(interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Receives from the SQS queue in parallel, lands the raw batch immutably, records every unit, and "
        "requests a run for each day that has messages, with that day's datasets. Stops receiving once "
        "KFM_MAX_IN_FLIGHT_UNITS live units are pending or in progress, and while every dataset of the queue is "
        "switched off.",
    )
    @one_line
    def nodd_messages(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened, state = pipeline.get(), pipeline.state()
        state.ensure_ready(opened.settings, opened.database)

        began = time.monotonic()

        def look(wait_seconds: float) -> tuple[IntakeReport, bool]:
            wait = min(int(wait_seconds), LONG_POLL_SECONDS) or FIRST_WAIT_SECONDS
            budget = max(1.0, opened.settings.tick_budget_seconds - (time.monotonic() - began))
            report = take_in(opened, state, wait_seconds=wait, budget_seconds=budget)
            return report, bool(report.received or report.off or report.full)

        report = look_for_work(state.idle, context.sensor_name, look, interval_seconds=interval_seconds)
        planned: list[PlannedRun] = []
        if report.work:
            planned = _plan(context, opened, state.requested, partial(_announced, report), days=days, off=report.policy)
        else:
            state.requested.record(context.sensor_name, (), at=opened.clock())
        if not planned:
            limit, today = opened.settings.max_in_flight_units, opened.clock().date()
            return dg.SensorResult(skip_reason=_why_no_run(opened.ledger, report, limit=limit, today=today))
        return dg.SensorResult(run_requests=[planned_run(run) for run in planned])

    @dg.sensor(
        name="nodd_ledger",
        jobs=jobs,
        minimum_interval_seconds=ticking_every(interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Housekeeping: releases the units of dead runs and expired leases, starts due retries, delivers "
        "lineage to the configured backend, and records objects that a run had listed before it failed. Requests the "
        "job that collects evidence of quarantined units. Requests runs, live work first, for pending units that no "
        "active run will claim.",
    )
    @one_line
    def nodd_ledger(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened, state, ledger = pipeline.get(), pipeline.state(), wal.get()
        # Checked first, so that an unwritable store costs no unit an attempt.
        state.ensure_ready(opened.settings, opened.database)
        info, warn = _to_log(context, logging.INFO), _to_log(context, logging.WARNING)

        def look(wait_seconds: float) -> tuple[dg.SensorResult, bool]:
            SHORT.wait(wait_seconds)
            dead = DeadRuns(context, leased=ledger.leases.held, unleased=state.unleased, now=opened.clock())
            maintain(opened, state, dead=dead, warn=warn)
            dead.forget_ended()
            ReplayEngine(pipeline=opened).advance_all(report=info)
            IntentRecovery(pipeline=opened).advance(state.intents, report=info)
            cooling = cooling_down(context, now=opened.clock(), interval_seconds=interval_seconds)

            def ready(pending: Sequence[PendingPartition]) -> list[PendingPartition]:
                # The other sensor may still request runs for units that have appeared since the last look.
                seen_before = set(json.loads(context.cursor or "[]"))
                context.update_cursor(json.dumps(sorted({_seen(entry) for entry in pending})))
                return [e for e in pending if _seen(e) in seen_before and not cooling(e.partition, e.lane)]

            off = KillSwitchPolicy.now(ledger.switches)
            requests = [planned_run(run) for run in _plan(context, opened, state.requested, ready, days=days, off=off)]
            requests += evidence_runs(QuarantineCases(opened.database, clock=opened.clock), at=opened.clock())
            if requests:
                return dg.SensorResult(run_requests=requests), True
            why = _reason_without_requests(ledger, off, days, today=opened.clock().date())
            return dg.SensorResult(skip_reason=why), False

        return look_for_work(state.idle, context.sensor_name, look, interval_seconds=interval_seconds)

    return [nodd_messages, nodd_ledger]


def _to_log(context: dg.SensorEvaluationContext, level: int) -> Callable[[str], None]:
    """Return a function that writes to the tick's log, which Dagster opens at the first line."""

    def write(line: str) -> None:
        context.log.log(level, line)

    return write


def _plan(
    context: dg.SensorEvaluationContext,
    pipeline: Pipeline,
    requested: RequestedRuns,
    chosen: Callable[[Sequence[PendingPartition]], Sequence[PendingPartition]],
    *,
    days: dg.PartitionsDefinition,
    off: KillSwitchPolicy,
) -> list[PlannedRun]:
    """Plan runs over `chosen` pending units of `days`, within lane limits; omit paused datasets."""
    with requested.lock:
        if not pipeline.ledger.pending_by_partition():
            chosen(())
            requested.record(context.sensor_name, (), at=pipeline.clock())
            return []
        others = requested.by_others(context.sensor_name, at=pipeline.clock())
        # Active runs are read before pending units; otherwise a unit claimed in between would count twice.
        begun = pipeline.stages.lifecycle.store.begun_runs
        runs = active_runs(context.instance, begun=begun).with_requested(others)
        on = [
            entry
            for entry in pipeline.ledger.pending_by_partition()
            if off.of(entry.dataset) is None and entry.dataset in pipeline.registry.contracts
        ]
        waiting, unknown = of_known_days(on, days.has_partition_key)
        bulk_waits = runs.of(Lane.BULK) > 0 or any(entry.lane is Lane.BULK for entry in waiting)
        planned = plan_runs(
            chosen(waiting),
            runs=runs,
            limits=lane_limits(pipeline.settings, run_slots=run_slots(context.instance), bulk_waits=bulk_waits),
            max_units_per_run=pipeline.settings.max_units_per_run,
            salt=cache(partial(newest_run, context.instance)),
        )
        requested.record(context.sensor_name, [(run.partition, run.lane) for run in planned], at=pipeline.clock())
    if unknown and planned:
        context.log.warning(why_unknown(unknown, today=pipeline.clock().date().isoformat()))
    return planned


def _announced(report: IntakeReport, pending: Sequence[PendingPartition]) -> list[PendingPartition]:
    return [e for e in pending if e.lane is Lane.LIVE and (e.dataset, e.partition) in report.work]


def _seen(entry: PendingPartition) -> str:
    return f"{entry.partition}/{entry.lane}"


def _why_no_run(ledger: Ledger, report: IntakeReport, *, limit: int, today: date) -> str:
    off = report.policy
    if report.off:
        return f"nothing is received, messages stay safe in the queue: {off.sentences()}"
    if report.full:
        return (
            f"{units_in_flight(ledger, Lane.LIVE, off, today=today)} live units are in flight, the limit is "
            f"{limit} (KFM_MAX_IN_FLIGHT_UNITS); messages stay safe in the queue"
        )
    waiting = (
        f"; {counted(report.unverified, 'message')} left on the queue: their topic's certificate cannot be fetched"
        if report.unverified
        else ""
    )
    if report.received == 0 and not report.unverified:
        return f"the queue is empty ({report.deleted} finished messages deleted)"
    aside = f", {counted(report.postponed, 'message')} hidden ({off.sentences()})" if report.postponed else ""
    return (
        f"{counted(report.received, 'message')} received: {counted(report.known, 'unit')} known already, "
        f"{report.ignored} ignored, {report.rejected} rejected, {report.created + report.requeued} waiting for a run"
        f"{aside}{waiting}"
    )


def _reason_without_requests(
    ledger: Ledger, off: KillSwitchPolicy, days: dg.PartitionsDefinition, *, today: date
) -> str:
    known, unknown = of_known_days(ledger.pending_by_partition(), days.has_partition_key)
    waiting: Counter[str] = Counter()
    for entry in known:
        switch = off.of(entry.dataset)
        waiting[sentence(switch) if switch else "an active run or a later tick will take them"] += entry.units
    reasons = [f"{counted(units, 'unit')} pending; {why}" for why, units in waiting.items()]
    reasons += [why_unknown(unknown, today=today.isoformat())] if unknown else []
    return "; ".join(reasons) or "nothing is pending in the ledger"


INTERVALS = 3
"""`nodd_due` ticks once per 3 ticks of the other sensors, which suffices: a listing takes longer than these ticks, and
alerts have windows of minutes."""
NO_ALERT = "no alert fires"
NAMED = 5
"""Alerts that a tick names; `kfm alerts list` has all."""

Due = tuple[Sequence[dg.RunRequest], str]
"""Runs that a task of `nodd_due` requests, and the reason if there are none."""


def due_sensor(
    *, interval_seconds: int, days: dg.PartitionsDefinition, pipeline: PipelineResource, jobs: Sequence[Any]
) -> dg.SensorDefinition:
    """Return the sensor of work that is due by the clock, not by a message; it is switched on.

    It requests `jobs`: ingest, and the job of radar beams if a dataset has beams.
    """

    @dg.sensor(
        name="nodd_due",
        jobs=jobs,
        minimum_interval_seconds=ticking_every(INTERVALS * interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests the listings that are due by a contract's schedule, and the next days of running "
        "backfills (kfm backfill) while fewer bulk units are in flight than KFM_LIVE_SHARE allows. Requests the "
        "arrival times and phases of a day's radar beams once all units of the day have ended. Requests them again "
        "when more units have ended, at most every ten minutes. Evaluates the rules of alerts.yaml, and sends each "
        "alert to the channels of KFM_ALERT_URLS once within its window of suppression.",
    )
    @one_line
    def nodd_due(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened, state, every = pipeline.get(), pipeline.state(), INTERVALS * interval_seconds
        parts: dict[str, Callable[[], Due]] = {
            "listing days": partial(_listings, context, opened, state.requested, days),
            "computing arrivals": partial(path_runs, opened, days),
            "evaluating alerts": partial(_alerts, context, opened),
        }

        def look(wait_seconds: float) -> tuple[dg.SensorResult, bool]:
            SHORT.wait(wait_seconds)
            failures: list[str] = []
            results = [due for name, part in parts.items() if (due := attempt(name, part, failures.append))]
            for failure in failures:
                context.log.warning(failure)
            if requests := [request for runs, _ in results for request in runs]:
                return dg.SensorResult(run_requests=requests), True
            reasons = [reason for _, reason in results]
            return dg.SensorResult(skip_reason="; ".join([*reasons, *failures])), NO_ALERT not in reasons

        return look_for_work(state.idle, context.sensor_name, look, interval_seconds=every)

    return nodd_due


def _listings(
    context: dg.SensorEvaluationContext, pipeline: Pipeline, requested: RequestedRuns, days: dg.PartitionsDefinition
) -> Due:
    backfills = Backfills(pipeline)
    for backfill_id in backfills.begin_due():
        context.log.info("%s is begun: a listing is due by a contract's schedule", backfill_id)
    with pipeline.database.snapshot() as view:
        running = view.run("backfill.running").scalar_one()
    with requested.lock:
        report = AdvanceReport()
        if running:
            limit = pipeline.settings.bulk_runs(run_slots(context.instance))
            listing = listing_days(context.instance)
            report = backfills.advance(listing=listing, limit=limit, known=days.has_partition_key)
        listings = [(request.day, Lane.BULK) for request in report.requests]
        requested.record(context.sensor_name, listings, at=pipeline.clock())
    return [listing_run(request) for request in report.requests], report.reason


def _alerts(context: dg.SensorEvaluationContext, pipeline: Pipeline) -> Due:
    evaluator = pipeline.alert_evaluator()
    evaluation = evaluator.evaluate()
    for undelivered in evaluation.dead:
        context.log.warning("a channel does not accept an alert, which is sent again later: %s", undelivered)
    return (), _alert_line(evaluation, evaluator.store.listed(), unheard=evaluator.unheard())


def _alert_line(done: Evaluation, alerts: Sequence[Alert], *, unheard: Sequence[str]) -> str:
    if not alerts:
        return NO_ALERT
    named = [f"{alert.alert_id} [{alert.level}] {alert.rule}: {alert.subject} ({alert.state})" for alert in alerts]
    more = [f"and {len(alerts) - NAMED} more"] if len(alerts) > NAMED else []
    waiting = sum(alert.undelivered for alert in alerts)
    parts = [
        "; ".join([*named[:NAMED], *more]),
        f"{counted(done.delivered, 'message')} delivered" if done.delivered else "",
        f"{waiting} waiting for their channel" if waiting else "",
        f"channels without a URL: {', '.join(unheard)} (KFM_ALERT_URLS)" if unheard else "",
    ]
    return " | ".join(part for part in parts if part)


PRIORITY_TAG = "dagster/priority"
PRIORITIES: Mapping[Lane, str] = {Lane.LIVE: "10", Lane.BULK: "-10"}
"""The queued run with the highest priority starts first; a run started by a person has no priority, which means 0."""
EVIDENCE_SECONDS = 600
"""Seconds after which a run is requested again for a case whose evidence could not be collected."""


def planned_run(run: PlannedRun) -> dg.RunRequest:
    """Return the request for a planned run."""
    config = {"source": Source.LEDGER.name, "lane": run.lane.name}
    tags = {SOURCE_TAG: Source.LEDGER.value}
    return _request(run.run_key, run.partition, run.lane, dict.fromkeys(run.datasets, config), tags=tags)


def listing_run(request: ListingRequest) -> dg.RunRequest:
    """Return the request for the run that lists a day of a backfill."""
    config = {"source": Source.LISTING.name, "lane": Lane.BULK.name, "backfill_id": request.backfill_id}
    tags = {SOURCE_TAG: Source.LISTING.value, BACKFILL_TAG: request.backfill_id}
    return _request(request.run_key, request.day, Lane.BULK, dict.fromkeys(request.datasets, config), tags=tags)


def path_runs(pipeline: Pipeline, days: dg.PartitionsDefinition) -> tuple[list[dg.RunRequest], str]:
    """Return the requests for the days whose beams are due, and the reason if no day is due."""
    due = days_to_compute(pipeline.ledger, pipeline.nodes, at=pipeline.clock())
    requests = [
        dg.RunRequest(
            # By this key, Dagster starts one run for each state of a day's metadata. `kfm replay intents` repeats a
            # failed run.
            run_key=f"{path_day.dataset}/{path_day.day}/{path_day.content_hash}",
            job_name=PATH_JOB,
            partition_key=path_day.day,
            asset_selection=[asset_key(path_day.dataset, PathArrivals.asset)],
            tags=dataset_tags([path_day.dataset]),
        )
        for path_day in due
        if days.has_partition_key(path_day.day)
    ]
    return requests, "arrivals are computed for every day whose units have ended"


def evidence_runs(cases: QuarantineCases, *, at: datetime) -> list[dg.RunRequest]:
    """Return the request of the evidence job if cases lack evidence, keyed by the oldest case."""
    turn = int(at.timestamp()) // EVIDENCE_SECONDS
    return [
        dg.RunRequest(run_key=f"{oldest.wal_id}@{oldest.version}/{turn}", job_name=EVIDENCE_JOB)
        for oldest in cases.due(limit=1)
    ]


def _request(
    run_key: str, partition: str, lane: Lane, configs: Mapping[str, Mapping[str, Any]], *, tags: Mapping[str, str]
) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=run_key,
        job_name=INGEST_JOB,
        partition_key=partition,
        asset_selection=[key for dataset in configs for key in asset_keys(dataset)],
        run_config={
            "ops": {op_name(dataset, MessageParse.operator): {"config": config} for dataset, config in configs.items()}
        },
        tags={**dataset_tags(configs), LANE_TAG: lane.value, PRIORITY_TAG: PRIORITIES[lane], **tags},
    )
