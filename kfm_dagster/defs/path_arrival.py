"""The asset `path_arrival` of every radar dataset, beside its chain."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from functools import partial
from typing import Any

import dagster as dg

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.arrival_plot import arrival_plot
from kfm_dagster.defs.chain import asset_key, radars, slug
from kfm_dagster.defs.display import MAX_TABLE_ROWS
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.partitions import DAYS
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.idempotent_node.node import NodeResult
from kfm_dagster.ingest.path_arrivals import NODE, compute_path_arrivals, read_table
from kfm_dagster.ingest.pipeline import Pipeline

DESCRIPTION = (
    "When the beams of the day's volumes arrive at the end of their paths, and in which phase, with covariances: one "
    "row per volume and elevation. Made from all metadata of the day, whichever runs extracted it; no ingest waits."
)


def path_assets(registry: ContractRegistry) -> list[dg.AssetsDefinition]:
    """Return `<dataset>/path_arrival`, downstream of its metadata, for every dataset of radar volumes."""
    assets = []
    for contract in radars(registry):
        lifted = dg.AssetsDefinition.from_op(
            _op(contract.id),
            keys_by_output_name={"result": asset_key(contract.id, NODE)},
            partitions_def=DAYS,
            group_name=slug(contract.id),
        )
        assets.append(lifted.map_asset_specs(partial(_described, contract=contract)))
    return assets


def _described(spec: dg.AssetSpec, *, contract: DatasetContract) -> dg.AssetSpec:
    return spec.replace_attributes(
        description=f"{DESCRIPTION}\n\n{contract.metadata.title}.",
        owners=contract.metadata.owners,
        kinds={"python", "parquet"},
        tags={**spec.tags, "kfm/dataset": contract.id},
        deps=[asset_key(contract.id, "metadata")],
    )


def _op(dataset: str) -> dg.OpDefinition:
    @dg.op(name=f"{slug(dataset)}__{NODE}", description=DESCRIPTION, out=dg.Out(dg.Nothing))
    def run_path_arrival(context: dg.OpExecutionContext, pipeline: PipelineResource) -> None:
        opened = pipeline.get()
        found = compute_path_arrivals(
            opened, dataset=dataset, partition=context.partition_key, run_id=root_run_id(context.run)
        )
        context.add_output_metadata(_shown(opened, found))

    return run_path_arrival


def _shown(pipeline: Pipeline, found: NodeResult) -> dict[str, Any]:
    record = found.output.record
    shown: dict[str, Any] = {name: record[name] for name in ("units", "rows")}
    if picture := arrival_plot(read_table(pipeline, record)):
        shown["arrivals"] = dg.MetadataValue.md(picture)
    if refused := record["refused"]:
        rows = [dg.TableRecord({"wal_id": unit, "why": why}) for unit, why in list(refused.items())[:MAX_TABLE_ROWS]]
        shown |= {"refused": len(refused), "refused_units": dg.MetadataValue.table(rows)}
    shown |= {f"gate_{gate}": observed for gate, observed in record["gates"].items()}
    return shown | {
        "outcome": found.status.value,
        "applied_by": found.applied_run_id,
        "content_hash": found.output.content_hash,
        "artifact": record["artifact_uri"],
    }
