"""The sensor that evaluates alerts and has them told. Nothing that is ingested waits for it."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Sequence

import dagster as dg

from kfm_dagster.alerts.evaluator import Evaluation
from kfm_dagster.alerts.store import Alert
from kfm_dagster.defs.intervals import ticking_every
from kfm_dagster.defs.one_line import one_line
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.ingest.alerting import alert_evaluator

INTERVAL_SECONDS = 30
"""Alerts are over windows of minutes; a tick looks at indexes alone while nothing is wrong."""
NAMED = 5
"""Alerts that a tick names; kfm alerts list has them all."""


def alert_sensor(pipeline: PipelineResource) -> dg.SensorDefinition:
    """Return the sensor, switched on."""

    @dg.sensor(
        name="nodd_alerts",
        minimum_interval_seconds=ticking_every(INTERVAL_SECONDS),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Evaluates the rules of alerts.yaml over what stages and clock have recorded, and tells what fires "
        "on the channels of KFM_ALERT_URLS, each alert once within its window of suppression. Asks for no run.",
    )
    @one_line
    def nodd_alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        evaluator = alert_evaluator(pipeline.get())
        done = evaluator.evaluate()
        for said in done.dead:
            context.log.warning("an alert waits for a channel that does not take it: %s", said)
        return dg.SkipReason(_told(done, evaluator.store.listed(), unheard=evaluator.unheard()))

    return nodd_alerts


def _told(done: Evaluation, standing: Sequence[Alert], *, unheard: Sequence[str]) -> str:
    if not standing:
        return "no alert fires"
    named = [f"{one.alert_id} [{one.level}] {one.rule}: {one.subject} ({one.state})" for one in standing[:NAMED]]
    more = [f"and {len(standing) - NAMED} more"] if len(standing) > NAMED else []
    waiting = sum(one.undelivered for one in standing)
    parts = [
        "; ".join([*named, *more]),
        f"{done.delivered} messages taken" if done.delivered else "",
        f"{waiting} waiting for their channel" if waiting else "",
        f"nobody hears the channels {', '.join(unheard)} (KFM_ALERT_URLS)" if unheard else "",
    ]
    return " | ".join(part for part in parts if part)
