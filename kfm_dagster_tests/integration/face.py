"""Dagster's sensors and runs, executed in this process as daemon and run worker execute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster import definitions
from kfm_dagster.defs.chain import DATASET_TAG, asset_keys
from kfm_dagster.defs.jobs import INGEST_JOB
from kfm_dagster.defs.resources import SqsQueueResource, open_pipeline
from kfm_dagster.ingest.nodes import chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster_tests.integration.chain import assert_conserved

ELSEWHERE = {"home": Path("elsewhere"), "object_root": None, "wal_dsn": ""}
"""Settings that differ for each test; Dagster's definitions do not depend on them."""


def repository() -> dg.RepositoryDefinition:
    """Return the product's definitions in this environment: the same object if their inputs are equal."""
    settings, *others = definitions._inputs(Settings.load())
    return _repository(tuple(chain()), settings.model_copy(update=ELSEWHERE), *others)


@lru_cache(maxsize=8)
def _repository(_steps: tuple[Any, ...], *inputs: Any) -> dg.RepositoryDefinition:
    return definitions._assemble(*inputs).get_repository_def()


def job(name: str) -> dg.JobDefinition:
    """Return a job of the product's definitions, in the environment of this process."""
    return repository().get_job(name)


def ingest_nexrad_l2() -> dg.JobDefinition:
    """Return the ingest of one dataset, which `dg.reconstructable` imports by this name."""
    return job(INGEST_JOB).get_subset(asset_selection=frozenset(asset_keys("nexrad-l2")))


def requested_datasets(request: dg.RunRequest) -> set[str]:
    """Return the datasets in a run request's tags."""
    beginning = f"{DATASET_TAG}."
    return {
        name.removeprefix(beginning)
        for name, value in request.tags.items()
        if name.startswith(beginning) and value == "yes"
    }


@dataclass
class Face:
    """Definitions over an instance. After each tick and run, every unit and message must be accounted for."""

    instance: dg.DagsterInstance
    pipeline: Pipeline
    repository: dg.RepositoryDefinition = field(default_factory=repository)
    cursors: dict[str, str | None] = field(default_factory=dict)
    run_keys: set[str] = field(default_factory=set)

    def tick(self, sensor: str) -> Any:
        """Evaluate a sensor once, with its last cursor. Returns Dagster's SensorExecutionData."""
        every = self.repository.get_top_level_resources()
        resources = {key: every[key] for key in self.repository.get_sensor_def(sensor).required_resource_keys}
        with dg.build_sensor_context(
            instance=self.instance,
            repository_def=self.repository,
            resources=resources,
            cursor=self.cursors.get(sensor),
            sensor_name=sensor,
        ) as context:
            tick_data = self.repository.get_sensor_def(sensor).evaluate_tick(context)
        self.cursors[sensor] = tick_data.cursor
        assert_conserved(self.pipeline)
        return tick_data

    def tick_schedule(self, name: str, instance: dg.DagsterInstance) -> Any:
        """Evaluate a schedule once; it needs an instance on disk."""
        with dg.build_schedule_context(instance=instance, repository_def=self.repository) as context:
            return self.repository.get_schedule_def(name).evaluate_tick(context)

    def launch(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult | None:
        """Execute a run request. Like the daemon, skip a known run_key; return None then."""
        if request.run_key in self.run_keys:
            return None
        self.run_keys.add(str(request.run_key))
        if request.partition_key is None:
            return self.repository.get_job(str(request.job_name)).execute_in_process(instance=self.instance)
        return self.execute(
            str(request.job_name),
            partition=str(request.partition_key),
            run_config=request.run_config,
            asset_selection=request.asset_selection,
            tags=request.tags,
        )

    def work(self, sensor: str, *, quiet: int = 1) -> list[dg.RunRequest]:
        """Launch a sensor's run requests until `quiet` ticks in a row request none; return the requests."""
        launched: list[dg.RunRequest] = []
        idle = 0
        while idle < quiet:
            requests = self.tick(sensor).run_requests or []
            idle = 0 if requests else idle + 1
            for request in requests:
                assert self.launch(request).success
            launched += requests
        return launched

    def reopened(self) -> Face:
        """Reopen the deployment with the current environment; the caller closes its pipeline."""
        return Face(instance=self.instance, pipeline=open_pipeline(Settings.load(), SqsQueueResource()))

    def ingest(self, dataset: str = "nexrad-l2", *, partition: str, **more: Any) -> Any:
        """Ingest a dataset for one day."""
        return self.execute(INGEST_JOB, partition=partition, asset_selection=asset_keys(dataset), **more)

    def execute(self, name: str, *, partition: str, tags: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Execute a job for one day."""
        result = self.repository.get_job(name).execute_in_process(
            partition_key=partition, instance=self.instance, tags=tags, **more
        )
        assert_conserved(self.pipeline)
        return result


def materialisations(result: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of every materialisation of a run, by the last part of the asset's key."""
    return {
        event.asset_key.path[-1]: {name: value.value for name, value in event.materialization.metadata.items()}
        for event in result.all_events
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION
    }


def unit_check(result: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    """Return the check over the units of a one-dataset run; gates have separate checks."""
    [check] = [
        evaluation
        for evaluation in result.get_asset_check_evaluations()
        if evaluation.check_name == "every_unit_succeeded"
    ]
    return check
