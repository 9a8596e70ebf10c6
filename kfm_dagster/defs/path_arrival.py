"""The asset `path_arrival` of every radar dataset, beside its chain, and the sensor that asks for its days."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dagster as dg

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.assets import stage_asset
from kfm_dagster.defs.chain import asset_key, slug
from kfm_dagster.defs.intervals import ticking_every
from kfm_dagster.defs.io_manager import StageIOManager, root_run_id
from kfm_dagster.defs.jobs import PATH_JOB
from kfm_dagster.defs.one_line import one_line
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.defs.run_tags import DATASET_TAG, dataset_tags
from kfm_dagster.defs.stage_run import run_stage
from kfm_dagster.ingest.path_arrivals import GATES, NODE, PathArrivals
from kfm_dagster.ingest.path_days import days_to_compute, radars

DESCRIPTION = (
    "When the beams of the day's volumes arrive at the end of their paths, and in which phase, with covariances: one "
    "row per volume and elevation. Made from all metadata of the day, whichever runs extracted it; no ingest waits."
)


INTERVALS = 3
"""A day's units have ended long before its beams are asked for: this sensor need not look as often as the others."""


def path_assets(
    registry: ContractRegistry, *, days: dg.PartitionsDefinition, code_version: str
) -> list[dg.AssetsDefinition]:
    """Return `<dataset>/path_arrival`, downstream of its metadata, for every dataset of radar volumes."""
    assets = []
    for contract in radars(registry):
        key = asset_key(contract.id, NODE)
        name = f"{slug(contract.id)}__{NODE}"
        made = stage_asset(
            contract.id,
            key,
            name=name,
            description=DESCRIPTION,
            gates=GATES,
            days=days,
            code_version=code_version,
        )
        assets.append(made(_run(contract.id)).map_asset_specs(partial(_described, contract=contract)))
    return assets


def path_sensors(
    registry: ContractRegistry, *, interval_seconds: int, days: dg.PartitionsDefinition, pipeline: PipelineResource
) -> list[dg.SensorDefinition]:
    """Return the sensor, switched on; none without a dataset of radar volumes."""

    @dg.sensor(
        name="nodd_paths",
        job_name=PATH_JOB,
        minimum_interval_seconds=ticking_every(INTERVALS * interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for the arrival times and phases of a day's radar beams once all units of the day have "
        "ended, and again after more of them, every ten minutes at most.",
    )
    @one_line
    def nodd_paths(_: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened = pipeline.get()
        due = days_to_compute(opened.ledger, opened.nodes, at=opened.clock())
        known = [one for one in due if days.has_partition_key(one.day)]
        if not known:
            return dg.SensorResult(skip_reason="every day whose units have ended has its arrivals")
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    # A day's metadata are asked for once: what fails is replayed by nodd_ledger.
                    run_key=f"{one.dataset}/{one.day}/{one.content_hash}",
                    partition_key=one.day,
                    asset_selection=[asset_key(one.dataset, NODE)],
                    tags=dataset_tags([one.dataset]),
                )
                for one in known
            ]
        )

    return [nodd_paths] if radars(registry) else []


def _described(spec: dg.AssetSpec, *, contract: DatasetContract) -> dg.AssetSpec:
    return spec.replace_attributes(
        description=f"{DESCRIPTION}\n\n{contract.metadata.title}.",
        owners=contract.metadata.owners,
        kinds={"python", "parquet"},
        tags={**spec.tags, DATASET_TAG: contract.id},
        deps=[asset_key(contract.id, "metadata")],
    )


def _run(dataset: str) -> Callable[..., Iterator[Any]]:
    def run_path_arrival(
        context: dg.AssetExecutionContext,
        pipeline: PipelineResource,
        wal: WalResource,
        stage_io: dg.ResourceParam[StageIOManager],
    ) -> Iterator[Any]:
        run_id = root_run_id(context.run)
        node = PathArrivals(pipeline=pipeline.get(), dataset=dataset, partition=context.partition_key, run_id=run_id)
        yield from run_stage(context, node, None, wal, stage_io)

    return run_path_arrival
