"""Sensors: SQS messages to partitioned runs, and the ledger's leftovers to further runs."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from functools import cache, partial

import dagster as dg

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.failing import one_line
from kfm_dagster.defs.jobs import INGEST_JOB
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.defs.run_requests import evidence_runs, planned_run
from kfm_dagster.defs.run_storage import DeadRuns, active_runs, cooling_down, newest_run, run_slots
from kfm_dagster.ingest.intake import IntakeReport, take_in
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, sentence, units_in_flight
from kfm_dagster.ingest.maintenance import look_after
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.plan import PlannedRun, lane_limits, of_known_days, plan_runs, why_unknown
from kfm_dagster.ingest.process_state import RequestedRuns
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.reports import PendingPartition
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.intents import IntentRecovery
from kfm_dagster.recovery.replay.engine import ReplayEngine


def ticking_every(seconds: int) -> int:
    """Return the minimum interval, in seconds, of a sensor that is to tick every `seconds`.

    Every five seconds (MIN_INTERVAL_LOOP_TIME of dagster._daemon.sensor), the daemon evaluates the sensors whose last
    tick began at least an interval ago. It is a few milliseconds early as often as late, which would stretch every
    other interval of five seconds to ten; so the interval ends a second before the intended evaluation.
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
    """Return the sensors, switched on. They request runs of `days`, and report units of others.

    `jobs` are the jobs that `nodd_ledger` requests: ingest, and evidence.

    They use the resources themselves: Dagster would create resources anew for every tick, which costs more than an
    idle tick.
    """

    @dg.sensor(
        name="nodd_messages",
        job_name=INGEST_JOB,
        minimum_interval_seconds=ticking_every(interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Receives from the SQS queue in parallel, lands the raw batch immutably, records every unit, and "
        "asks for one run per day over all datasets that have messages for it. Stops receiving while more than "
        "KFM_MAX_IN_FLIGHT_UNITS live units are pending or in progress, and while everything that the queue brings is "
        "switched off.",
    )
    @one_line
    def nodd_messages(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened, state = pipeline.get(), pipeline.state()
        state.ensure_ready(opened.settings, opened.database)
        report = take_in(opened, state)
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
        description="Gives back the units of dead runs and of expired leases, lets due retries in, delivers "
        "lineage to the configured backend, enters what failed listings had found, asks for evidence of "
        "quarantined units, and for runs over what is pending and no active run will take, live work first.",
    )
    @one_line
    def nodd_ledger(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened, state, ledger = pipeline.get(), pipeline.state(), wal.get()
        # Before evidence, lineage and Items are written; units keep their attempts while no run could store results.
        state.ensure_ready(opened.settings, opened.database)
        say, warn = _to_log(context, logging.INFO), _to_log(context, logging.WARNING)
        dead = DeadRuns(context, leased=ledger.leases.held, unleased=state.unleased, now=opened.clock())
        look_after(opened, state, dead=dead, warn=warn)
        dead.forget_ended()
        ReplayEngine(pipeline=opened).advance_all(say=say)
        IntentRecovery(pipeline=opened).advance(state.intents, say=say)
        cooling = cooling_down(context, now=opened.clock(), interval_seconds=interval_seconds)

        def ready(pending: Sequence[PendingPartition]) -> list[PendingPartition]:
            # Units that appeared since the last tick may be the other sensor's, which has yet to request their run.
            seen_before = set(json.loads(context.cursor or "[]"))
            context.update_cursor(json.dumps(sorted({_seen(entry) for entry in pending})))
            return [e for e in pending if _seen(e) in seen_before and not cooling(e.partition, e.lane)]

        off = KillSwitchPolicy.now(ledger.switches)
        requests = [planned_run(run) for run in _plan(context, opened, state.requested, ready, days=days, off=off)]
        requests += evidence_runs(QuarantineCases(opened.database, clock=opened.clock), at=opened.clock())
        if not requests:
            why = _why_nothing_is_asked_for(ledger, off, days, today=opened.clock().date())
            return dg.SensorResult(skip_reason=why)
        return dg.SensorResult(run_requests=requests)

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
    """Plan runs over `chosen` pending units of `days` that no switch holds, within lane limits."""
    with requested.lock:
        if not pipeline.ledger.pending_by_partition():
            chosen(())
            requested.record(context.sensor_name, (), at=pipeline.clock())
            return []
        others = requested.by_others(context.sensor_name, at=pipeline.clock())
        # Read before the pending units: units that a run takes in between must not count as waiting for it.
        runs = active_runs(context.instance, claimed=set(pipeline.ledger.in_progress_runs())).and_asked_for(others)
        on = [entry for entry in pipeline.ledger.pending_by_partition() if off.of(entry.dataset) is None]
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
        f"; {report.unverified} messages wait on the queue: their topic's certificate cannot be fetched"
        if report.unverified
        else ""
    )
    if report.received == 0 and not report.unverified:
        return f"the queue is empty ({report.deleted} finished messages deleted)"
    aside = f", {report.postponed} messages put aside ({off.sentences()})" if report.postponed else ""
    return (
        f"{report.received} messages received: {report.known} units known already, {report.ignored} ignored, "
        f"{report.rejected} rejected, {report.created + report.requeued} waiting for a run{aside}{waiting}"
    )


def _why_nothing_is_asked_for(
    ledger: Ledger, off: KillSwitchPolicy, days: dg.PartitionsDefinition, *, today: date
) -> str:
    known, unknown = of_known_days(ledger.pending_by_partition(), days.has_partition_key)
    waiting: Counter[str] = Counter()
    for entry in known:
        switch = off.of(entry.dataset)
        waiting[sentence(switch) if switch else "an active run or a later tick will take them"] += entry.units
    reasons = [f"{units} units are pending; {why}" for why, units in waiting.items()]
    reasons += [why_unknown(unknown, today=today.isoformat())] if unknown else []
    return "; ".join(reasons) or "nothing is pending in the ledger"
