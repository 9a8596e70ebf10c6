"""Entry point of the code location: assembly only."""

from __future__ import annotations

from datetime import date
from functools import lru_cache

import dagster as dg

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.assets import dataset_assets, queue_asset
from kfm_dagster.defs.chain import daily_partitions
from kfm_dagster.defs.checks import FEED_CHECK, feed_check, gap_schedule, unit_checks
from kfm_dagster.defs.executors import step_executor
from kfm_dagster.defs.io_manager import StageIOManager
from kfm_dagster.defs.jobs import (
    evidence_job,
    gap_job,
    ingest_job,
    listing_schedules,
    path_jobs,
    replay_job,
    retention_job,
    retention_schedule,
)
from kfm_dagster.defs.resources import PipelineResource, SqsQueueResource, WalResource
from kfm_dagster.defs.sensors import due_sensor, ingest_sensors
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import installed_code, utc_now
from kfm_dagster.ingest.window import stored_first_day
from kfm_dagster.settings import Settings


def build_definitions(settings: Settings) -> dg.Definitions:
    """Assemble the definitions, or raise KfmError for a wrong configuration."""
    return _assemble(*_inputs(settings))


def _inputs(settings: Settings) -> tuple[Settings, ContractRegistry, date, str]:
    """Read the inputs of the definitions; importing this module reads nothing."""
    registry, first_day = read_configuration(settings).registry, stored_first_day(settings, clock=utc_now)
    return settings, registry, first_day, installed_code(settings).code_sha


def _assemble(settings: Settings, registry: ContractRegistry, first_day: date, code_version: str) -> dg.Definitions:
    days = daily_partitions(first_day)
    wal = WalResource()
    pipeline = PipelineResource(wal=wal, queue=SqsQueueResource())
    interval = settings.sensor_interval_seconds
    ingest, paths, evidence = ingest_job(registry), path_jobs(registry), evidence_job()
    return dg.Definitions(
        assets=[queue_asset(), *dataset_assets(registry, days=days, code_version=code_version, settings=settings)],
        asset_checks=[*unit_checks(registry, days=days), feed_check()],
        jobs=[ingest, *paths, gap_job(FEED_CHECK), evidence, replay_job(), retention_job()],
        schedules=[*listing_schedules(registry, days=days), gap_schedule(pipeline), retention_schedule(pipeline)],
        sensors=[
            *ingest_sensors(interval_seconds=interval, days=days, pipeline=pipeline, wal=wal, jobs=[ingest, evidence]),
            due_sensor(interval_seconds=interval, days=days, pipeline=pipeline, jobs=[ingest, *paths]),
        ],
        resources={"wal": wal, "pipeline": pipeline, "stage_io": StageIOManager(pipeline=pipeline, wal=wal)},
        executor=step_executor(settings),
    )


_kept = lru_cache(maxsize=1)(_assemble)


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the environment; equal inputs give the same object.

    Dagster requests them twice in each run's process, and assembling them takes a third of a small run's CPU.
    """
    return _kept(*_inputs(Settings.load()))
