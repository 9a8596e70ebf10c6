"""The sensor of work due by the clock: listings, beams, alerts. No message waits for it."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dagster as dg

from kfm_dagster.alerts.store import Alert, Evaluation
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.failing import one_line
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.defs.run_requests import listing_run, path_runs
from kfm_dagster.defs.run_storage import listing_days, run_slots
from kfm_dagster.defs.sensors import ticking_every
from kfm_dagster.ingest.maintenance import attempt
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import RequestedRuns
from kfm_dagster.recovery.backfill.days import AdvanceReport, Backfills

INTERVALS = 3
"""Ticks of the other sensors per tick: a listed day takes longer, alerts have windows of minutes, little is due."""
NAMED = 5
"""Alerts that a tick names; `kfm alerts list` has all."""

Due = tuple[Sequence[dg.RunRequest], str]
"""Runs that a part requests, and the reason where there are none."""


def due_sensor(
    *, interval_seconds: int, days: dg.PartitionsDefinition, pipeline: PipelineResource, jobs: Sequence[Any]
) -> dg.SensorDefinition:
    """Return the sensor, switched on; it requests `jobs`: ingest and any job of radar beams."""

    @dg.sensor(
        name="nodd_due",
        jobs=jobs,
        minimum_interval_seconds=ticking_every(INTERVALS * interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Begins the listings that are due by a contract's schedule, and asks for those of running "
        "backfills (kfm backfill), day by day, while fewer bulk units are in flight than KFM_LIVE_SHARE leaves to "
        "them. Asks for the arrival times and phases of a day's radar beams once all units of the day have ended, and "
        "again after more of them, every ten minutes at most. Evaluates the rules of alerts.yaml, and sends each alert "
        "to the channels of KFM_ALERT_URLS once within its window of suppression.",
    )
    @one_line
    def nodd_due(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened = pipeline.get()
        parts: dict[str, Callable[[], Due]] = {
            "listing days": partial(_listings, context, opened, pipeline.state().requested, days),
            "computing arrivals": partial(path_runs, opened, days),
            "evaluating alerts": partial(_alerts, context, opened),
        }
        failures: list[str] = []
        results = [due for name, part in parts.items() if (due := attempt(name, part, failures.append))]
        for failure in failures:
            context.log.warning(failure)
        if requests := [request for runs, _ in results for request in runs]:
            return dg.SensorResult(run_requests=requests)
        return dg.SensorResult(skip_reason="; ".join([*(reason for _, reason in results), *failures]))

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
        context.log.warning("an alert waits for a channel that does not take it: %s", undelivered)
    return (), _alert_line(evaluation, evaluator.store.listed(), unheard=evaluator.unheard())


def _alert_line(done: Evaluation, alerts: Sequence[Alert], *, unheard: Sequence[str]) -> str:
    if not alerts:
        return "no alert fires"
    named = [f"{alert.alert_id} [{alert.level}] {alert.rule}: {alert.subject} ({alert.state})" for alert in alerts]
    more = [f"and {len(alerts) - NAMED} more"] if len(alerts) > NAMED else []
    waiting = sum(alert.undelivered for alert in alerts)
    parts = [
        "; ".join([*named[:NAMED], *more]),
        f"{done.delivered} messages taken" if done.delivered else "",
        f"{waiting} waiting for their channel" if waiting else "",
        f"nobody hears the channels {', '.join(unheard)} (KFM_ALERT_URLS)" if unheard else "",
    ]
    return " | ".join(part for part in parts if part)
