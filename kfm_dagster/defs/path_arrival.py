"""The asset `path_arrival` of every radar dataset, beside its chain, and the runs over its days."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dagster as dg

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.assets import stage_asset
from kfm_dagster.defs.chain import asset_key, slug
from kfm_dagster.defs.io_manager import StageIOManager, root_run_id
from kfm_dagster.defs.jobs import PATH_JOB
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.defs.run_tags import DATASET_TAG, dataset_tags
from kfm_dagster.defs.stage_run import run_stage
from kfm_dagster.ingest.path_arrivals import GATES, NODE, PathArrivals, days_to_compute, radars
from kfm_dagster.ingest.pipeline import Pipeline

DESCRIPTION = (
    "When the beams of the day's volumes arrive at the end of their paths, and in which phase, with covariances: one "
    "row per volume and elevation. Made from all metadata of the day, whichever runs extracted it; no ingest waits."
)


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


def path_runs(pipeline: Pipeline, days: dg.PartitionsDefinition) -> tuple[list[dg.RunRequest], str]:
    """Return the requests for the days whose beams are due, and why there is none."""
    due = days_to_compute(pipeline.ledger, pipeline.nodes, at=pipeline.clock())
    requests = [
        dg.RunRequest(
            # A day's metadata are asked for once: nodd_ledger replays what fails.
            run_key=f"{path_day.dataset}/{path_day.day}/{path_day.content_hash}",
            job_name=PATH_JOB,
            partition_key=path_day.day,
            asset_selection=[asset_key(path_day.dataset, NODE)],
            tags=dataset_tags([path_day.dataset]),
        )
        for path_day in due
        if days.has_partition_key(path_day.day)
    ]
    return requests, "every day whose units have ended has its arrivals"


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
