"""The alert evaluator of a pipeline, in a module of its own because apprise is slow to load."""

from __future__ import annotations

from kfm_dagster.alerts.evaluator import AlertEvaluator
from kfm_dagster.ingest.pipeline import Pipeline


def alert_evaluator(pipeline: Pipeline) -> AlertEvaluator:
    """Return the evaluator with the pipeline's card, database, clock and KFM_ALERT_URLS."""
    clock = pipeline.card.machine.clock
    return AlertEvaluator(
        plan=pipeline.card.alerts,
        on_divergence=pipeline.card.replay_plan.alerts.on_divergence,
        max_offset=clock.max_offset,
        tau_calib=clock.tau_calib,
        database=pipeline.database,
        clock=pipeline.clock,
        urls=pipeline.settings.alert_urls,
    )
