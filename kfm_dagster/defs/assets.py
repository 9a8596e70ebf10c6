"""Assets: each (dataset, operator) as an op, lifted into a software-defined asset; all derived from the contracts."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.chain import QUEUE_KEY, asset_key, op_name, slug
from kfm_dagster.defs.freshness import freshness_policy
from kfm_dagster.defs.gate_checks import gate_specs
from kfm_dagster.defs.io_manager import StageIOManager, root_run_id
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.defs.run_tags import DATASET_TAG
from kfm_dagster.defs.stage_run import run_stage
from kfm_dagster.governance.log import DAGSTER_UI, Decision
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, Source, StacRegister, chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import ReplayedParse
from kfm_dagster.recovery.backfill.days import DayListing
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.gates.verdict import Gate


class ReplayOf(dg.Config):
    """The run that is done again as replay_plan.yaml says, and why. A person approves it first."""

    run_id: str = Field(description="The run: the id that it has in Dagster, the root's of a re-execution.")
    reason: str = Field(description="Why.")
    change_ref: str = Field(description="The change or incident under which it was approved.")


class MessageParseConfig(dg.Config):
    """Where a run takes its units from. Empty is right for a run started by hand."""

    source: Source = Field(
        default=Source.LISTING,
        description="LEDGER: what is pending; LISTING: the bucket's objects of the day, and what is pending.",
    )
    lane: Lane | None = Field(
        default=None, description="LIVE or BULK: only units of that lane are claimed. Empty: both, live units first."
    )
    replay: ReplayOf | None = Field(
        default=None, description="Do a run of this day again and compare: replay_plan.yaml, docs/pipeline-card.md."
    )
    backfill_id: str | None = Field(default=None, description="The backfill (kfm backfill) that wants the listing.")


def queue_asset() -> dg.AssetSpec:
    """Return the external asset that stands for the SQS queue."""
    return dg.AssetSpec(
        QUEUE_KEY,
        description="The SQS queue that NOAA's SNS topics feed. The sensor nodd_messages receives from it.",
        group_name="queue",
        kinds={"sqs"},
    )


def dataset_assets(
    registry: ContractRegistry, *, days: dg.PartitionsDefinition, code_version: str, settings: Settings
) -> list[dg.AssetsDefinition]:
    """Return the chain of every dataset: envelopes > integrity > metadata > stac_items > provenance > ledger."""
    return [asset for contract in registry for asset in _chain(contract, days, code_version, settings)]


def _chain(
    contract: DatasetContract, days: dg.PartitionsDefinition, code_version: str, settings: Settings
) -> list[dg.AssetsDefinition]:
    assets = []
    upstream: dg.AssetKey | None = None
    for kind in chain():
        key = asset_key(contract.id, kind.asset)
        made = stage_asset(
            contract.id,
            key,
            name=op_name(contract.id, kind.operator),
            description=kind.description,
            gates=kind.required_gates,
            days=days,
            code_version=code_version,
            upstream=upstream,
        )
        asset = made(_first(contract.id) if upstream is None else _later(contract.id, kind))
        assets.append(asset.map_asset_specs(partial(_described, contract=contract, kind=kind, settings=settings)))
        upstream = key
    return assets


def _described(
    spec: dg.AssetSpec, *, contract: DatasetContract, kind: type[ChainNode], settings: Settings
) -> dg.AssetSpec:
    described = spec.replace_attributes(
        description=f"{kind.description}\n\n{contract.metadata.title}.",
        owners=contract.metadata.owners,
        kinds={"python", *({"json"} if kind is StacRegister else {"parquet"})},
        tags={**spec.tags, DATASET_TAG: contract.id},
        freshness_policy=freshness_policy(contract, settings) if kind is StacRegister else None,
    )
    return described.replace_attributes(deps=[QUEUE_KEY]) if kind is MessageParse else described


def stage_asset(
    dataset: str,
    key: dg.AssetKey,
    *,
    name: str,
    description: str,
    gates: Sequence[Gate],
    days: dg.PartitionsDefinition,
    code_version: str,
    upstream: dg.AssetKey | None = None,
) -> Callable[[Callable[..., Iterator[Any]]], dg.AssetsDefinition]:
    """Return what makes the asset of a stage, with the gates that it is held against as checks."""
    return dg.multi_asset(
        name=name,
        description=description,
        ins={} if upstream is None else {"upstream": dg.AssetIn(key=upstream)},
        outs={"result": dg.AssetOut(key=key, io_manager_key="stage_io", code_version=code_version)},
        check_specs=gate_specs(key, gates, days=days),
        partitions_def=days,
        group_name=slug(dataset),
        # Of all its steps: a limit on it is one on the runs that have work of the dataset (dagster.yaml).
        pool=dataset,
    )


def _first(dataset: str) -> Callable[..., Iterator[Any]]:
    def message_parse(
        context: dg.AssetExecutionContext,
        config: MessageParseConfig,
        pipeline: PipelineResource,
        wal: WalResource,
        stage_io: dg.ResourceParam[StageIOManager],
    ) -> Iterator[Any]:
        node = _first_node(pipeline.get(), config, dataset, context.partition_key, context.run)
        yield from run_stage(context, node, None, wal, stage_io)

    return message_parse


def _first_node(
    pipeline: Pipeline, config: MessageParseConfig, dataset: str, day: str, run: dg.DagsterRun
) -> ChainNode:
    parts: dict[str, Any] = {"pipeline": pipeline, "dataset": dataset, "partition": day, "run_id": root_run_id(run)}
    if config.replay is not None:
        return ReplayedParse(**parts, original=config.replay.run_id, decision=_decision(config.replay, run.run_id))
    return MessageParse(
        **parts,
        source=config.source,
        limit=pipeline.settings.max_units_per_run,
        lane=config.lane,
        account=DayListing(clock=pipeline.clock, backfill_id=config.backfill_id, dataset=dataset, day=day)
        if config.backfill_id
        else None,
    )


def _decision(replay: ReplayOf, run_id: str) -> Decision:
    return Decision(actor=DAGSTER_UI, reason=replay.reason, change_ref=replay.change_ref, dagster_run_id=run_id)


def _later(dataset: str, kind: type[ChainNode]) -> Callable[..., Iterator[Any]]:
    def run_operator(
        context: dg.AssetExecutionContext,
        upstream: StageBatch,
        pipeline: PipelineResource,
        wal: WalResource,
        stage_io: dg.ResourceParam[StageIOManager],
    ) -> Iterator[Any]:
        parts = {"dataset": dataset, "partition": context.partition_key, "run_id": root_run_id(context.run)}
        node = kind(pipeline=pipeline.get(), read_ahead=pipeline.state().read_ahead, **parts)
        yield from run_stage(context, node, upstream, wal, stage_io)

    return run_operator
