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
from kfm_dagster.defs.display import account_metadata, account_of, day_metadata
from kfm_dagster.defs.failing import try_again_or_roll_back
from kfm_dagster.defs.gate_checks import gate_results, gate_specs, unlooked
from kfm_dagster.defs.io_manager import root_run_id
from kfm_dagster.defs.jobs import FORCE_TAG
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, Source, StacRegister, chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import ReplayedParse
from kfm_dagster.recovery.backfill.days import DayListing
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.gates.verdict import Gate


class ReplayOf(dg.Config):
    """The run that is done again as replay_plan.yaml says, and who wants it."""

    run_id: str = Field(description="The run: the id that it has in Dagster, the root's of a re-execution.")
    actor: str = Field(description="Who decides.")
    reason: str = Field(description="Why.")
    change_ref: str = Field(description="The change or incident under which it was approved.")


class MessageParseConfig(dg.Config):
    """Where a run takes its units from. Empty is right for a run started by hand."""

    source: Source = Field(
        default=Source.LISTING,
        description="LANDING: the landed batches below; LEDGER: what is pending; LISTING: the bucket's objects of the "
        "day, and what is pending.",
    )
    landing: list[str] = Field(default_factory=list, description="Digests of landed message batches.")
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
    registry: ContractRegistry, *, days: dg.PartitionsDefinition, code_version: str
) -> list[dg.AssetsDefinition]:
    """Return the chain of every dataset: envelopes > integrity > metadata > stac_items > provenance > ledger."""
    return [asset for contract in registry for asset in _chain(contract, days, code_version)]


def _chain(contract: DatasetContract, days: dg.PartitionsDefinition, code_version: str) -> list[dg.AssetsDefinition]:
    assets = []
    upstream: dg.AssetKey | None = None
    for kind in chain():
        key = asset_key(contract.id, kind.asset)
        made = stage_asset(
            contract.id,
            key,
            name=op_name(contract.id, kind.operator),
            description=kind.description,
            gates=kind.held_against,
            days=days,
            code_version=code_version,
            upstream=upstream,
        )
        asset = made(_first(contract.id, key) if upstream is None else _later(contract.id, kind, key))
        assets.append(asset.map_asset_specs(partial(_described, contract=contract, kind=kind)))
        upstream = key
    return assets


def _described(spec: dg.AssetSpec, *, contract: DatasetContract, kind: type[ChainNode]) -> dg.AssetSpec:
    described = spec.replace_attributes(
        description=f"{kind.description}\n\n{contract.metadata.title}.",
        owners=contract.metadata.owners,
        kinds={"python", *({"json"} if kind is StacRegister else {"parquet"})},
        tags={**spec.tags, "kfm/dataset": contract.id},
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
    )


def _first(dataset: str, key: dg.AssetKey) -> Callable[..., Iterator[Any]]:
    def message_parse(
        context: dg.AssetExecutionContext,
        config: MessageParseConfig,
        pipeline: PipelineResource,
        wal: WalResource,
    ) -> Iterator[Any]:
        opened = pipeline.get()
        parts = {
            "pipeline": opened,
            "dataset": dataset,
            "partition": context.partition_key,
            "run_id": root_run_id(context.run),
        }
        node: ChainNode
        if config.replay is not None:
            node = ReplayedParse(**parts, original=config.replay.run_id, decision=_decision(config.replay))
        else:
            node = MessageParse(
                **parts,
                source=config.source,
                landing=tuple(config.landing),
                limit=opened.settings.max_units_per_run,
                lane=config.lane,
                account=_account(opened, config, dataset=dataset, day=context.partition_key),
            )
        yield from run_stage(context, node, None, pipeline, wal, key)

    return message_parse


def _decision(replay: ReplayOf) -> Decision:
    decision = Decision(actor=replay.actor, reason=replay.reason, change_ref=replay.change_ref)
    decision.require_change_ref()
    return decision


def _account(pipeline: Pipeline, config: MessageParseConfig, *, dataset: str, day: str) -> DayListing | None:
    if config.backfill_id is None:
        return None
    return DayListing(pipeline=pipeline, backfill_id=config.backfill_id, dataset=dataset, day=day)


def _later(dataset: str, kind: type[ChainNode], key: dg.AssetKey) -> Callable[..., Iterator[Any]]:
    def run_operator(
        context: dg.AssetExecutionContext, upstream: StageBatch, pipeline: PipelineResource, wal: WalResource
    ) -> Iterator[Any]:
        node = kind(
            pipeline=pipeline.get(),
            dataset=dataset,
            partition=context.partition_key,
            run_id=root_run_id(context.run),
        )
        yield from run_stage(context, node, upstream, pipeline, wal, key)

    return run_operator


def run_stage(
    context: dg.AssetExecutionContext,
    node: ChainNode,
    upstream: StageBatch | None,
    pipeline: PipelineResource,
    wal: WalResource,
    key: dg.AssetKey,
) -> Iterator[Any]:
    """Yield what a stage's gates said, and its output for the IO manager. Raises what makes Dagster fail or retry."""
    opened, run_id = pipeline.get(), root_run_id(context.run)
    stages, dataset = opened.stages, key.path[0]
    day = partial(wal.get().day, dataset=dataset, partition=context.partition_key)
    try:
        stage = stages.run(node, run_id=run_id, upstream=upstream, force=context.run.tags.get(FORCE_TAG))
    except StageFailedError as error:
        if error.judgement is not None:
            yield from gate_results(key, node.held_against, error.judgement, day=day())
        try_again_or_roll_back(node, error, tries=context.retry_number + 1, log=context.log)
        raise dg.Failure(description=str(error), metadata={"error_class": error.error_class.value}) from error
    if stage.judgement is None:
        yield from unlooked(key, node.held_against, stage, day=day())
    else:
        yield from gate_results(key, node.held_against, stage.judgement, day=day())
    content_hash = stage.content and stage.content.content_hash
    if stage.skipped is not None and stage.skipped.skipped is not None:
        account = account_of(opened, node.kind, stage.run_id)
        content_hash = account.content_hash
        cause = stage.skipped.skipped
        by = stage.skipped.applied_by
        context.log.info("%s skipped: %s%s", node.kind, cause, f", by run {by}" if by else "")
        context.log_event(
            dg.AssetObservation(
                key,
                partition=context.partition_key,
                metadata={
                    **day_metadata(day()),
                    "outcome": "skipped",
                    "cause": cause.value,
                    "inputs_hash": stage.key.inputs_hash,
                    **account_metadata(account),
                    **({"applied_by": by} if by else {}),
                },
            )
        )
    # The same inputs, parameters and code are the same data: what was handed on keeps its version.
    version = dg.DataVersion(content_hash) if content_hash else None
    yield dg.Output(stage, output_name="result", data_version=version)
