"""Assets: an op in a software-defined asset for each (dataset, operator) of the contracts.

Belongs here, too: how an op runs a stage. The op yields check results of the stage's gates and an output for the IO
manager, or raises Failure or RetryRequested. Does not belong here: the record of a stage (`io_manager.py`).
"""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from kfm_dagster.contracts.cadence import DROP_OVER, SILENT_AFTER
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.chain import DATASET_TAG, FORCE_TAG, QUEUE_KEY, asset_key, dataset_of, op_name, slug
from kfm_dagster.defs.failing import refuse_foreign_roots, retry_or_roll_back
from kfm_dagster.defs.gate_checks import gate_results, gate_specs, not_evaluated
from kfm_dagster.defs.io_manager import StageIOManager, root_run_id
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.governance.log import DAGSTER_UI, Decision
from kfm_dagster.ingest.discovery import DayListing
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, MetadataExtract, Source, StacRegister, chain
from kfm_dagster.ingest.path_arrivals import PathArrivals, radars
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import ReplayedParse
from kfm_dagster.settings import FeedKind, Settings
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.failure import StageFailedError


class ReplayOf(dg.Config):
    """The run to replay, and the reason; a replay's first start asks for approval."""

    run_id: str = Field(description="Dagster's id of the run; for a re-execution, the id of its root run.")
    reason: str = Field(description="Reason of the replay.")
    change_ref: str = Field(description="The change or incident under which the replay was approved.")


class MessageParseConfig(dg.Config):
    """The source of a run's units. Leave all fields empty for a manual run."""

    source: Source = Field(
        default=Source.LISTING,
        description="LEDGER: pending units; LISTING: the bucket's objects of the day, and pending units.",
    )
    lane: Lane | None = Field(
        default=None, description="LIVE or BULK: only units of this lane are claimed. Empty: all, live units first."
    )
    replay: ReplayOf | None = Field(
        default=None,
        description="Repeat a run of this day, and compare results (replay_plan.yaml, docs/pipeline-card.md).",
    )
    backfill_id: str | None = Field(default=None, description="The backfill (kfm backfill) that requests the listing.")


def queue_asset() -> dg.AssetSpec:
    """Return the external asset of the SQS queue."""
    return dg.AssetSpec(
        QUEUE_KEY,
        description="The SQS queue that NOAA's SNS topics feed. The sensor nodd_messages receives from it.",
        group_name="queue",
        kinds={"sqs"},
    )


def dataset_assets(
    registry: ContractRegistry, *, days: dg.PartitionsDefinition, code_version: str, settings: Settings
) -> list[dg.AssetsDefinition]:
    """Return all chains: envelopes > integrity > metadata > stac_items > provenance > ledger.

    A dataset of radar volumes also has `path_arrival`, downstream of its metadata.
    """
    nodes = [(contract, node) for contract in registry for node in chain()]
    nodes += [(contract, PathArrivals) for contract in radars(registry)]
    return [_asset(contract, node, days, code_version, settings) for contract, node in nodes]


def _asset(
    contract: DatasetContract,
    kind: type[ChainNode],
    days: dg.PartitionsDefinition,
    code_version: str,
    settings: Settings,
) -> dg.AssetsDefinition:
    key, before = asset_key(contract.id, kind.asset), kind.follows
    run = _first(contract.id) if kind is MessageParse else _later(kind)
    reads = {MessageParse: QUEUE_KEY, PathArrivals: asset_key(contract.id, MetadataExtract.asset)}
    out = dg.AssetOut(
        key=key,
        io_manager_key="stage_io",
        code_version=code_version,
        description=f"{kind.description}\n\n{contract.metadata.title}.",
        owners=contract.metadata.owners,
        kinds={"python", "json" if kind is StacRegister else "parquet"},
        tags={DATASET_TAG: contract.id},
        freshness_policy=_freshness_policy(contract, settings) if kind is StacRegister else None,
    )
    return dg.multi_asset(
        name=op_name(contract.id, kind.operator),
        description=kind.description,
        ins={} if before is None else {"upstream": dg.AssetIn(key=asset_key(contract.id, before.asset))},
        outs={"result": out},
        deps=[reads[kind]] if kind in reads else None,
        check_specs=gate_specs(key, kind.required_gates, days=days),
        partitions_def=days,
        group_name=slug(contract.id),
        # All steps of a dataset share a pool. Its limit (dagster.yaml) bounds the runs that work on the dataset.
        pool=contract.id,
    )(run)


def _freshness_policy(contract: DatasetContract, settings: Settings) -> dg.FreshnessPolicy | None:
    """Return the policy for late datasets: a warning after two intervals, a failure after four.

    An interval is the contract's freshness budget, else the interval of its scheduled listing. None for a sample of a
    feed, a retired dataset, and a contract without budget and listing.
    """
    if settings.feed is FeedKind.SAMPLE or contract.metadata.retired:
        return None
    listing = contract.storage.scheduled_listing if settings.scheduled_listings else None
    seconds = contract.freshness.budget_seconds if contract.freshness else listing and listing.every_seconds
    if not seconds:
        return None
    newest_for = timedelta(seconds=seconds)
    return dg.FreshnessPolicy.time_window(warn_window=SILENT_AFTER * newest_for, fail_window=DROP_OVER * newest_for)


def _first(dataset: str) -> Callable[..., Iterator[Any]]:
    def message_parse(
        context: dg.AssetExecutionContext,
        config: MessageParseConfig,
        pipeline: PipelineResource,
        wal: WalResource,
        stage_io: dg.ResourceParam[StageIOManager],
    ) -> Iterator[Any]:
        node = _first_node(pipeline.get(), config, dataset, context.partition_key, context.run)
        yield from _run_stage(context, node, None, wal, stage_io)

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


def _later(kind: type[ChainNode]) -> Callable[..., Iterator[Any]]:
    def run_operator(
        context: dg.AssetExecutionContext,
        pipeline: PipelineResource,
        wal: WalResource,
        stage_io: dg.ResourceParam[StageIOManager],
        **inputs: StageBatch,
    ) -> Iterator[Any]:
        parts = {"partition": context.partition_key, "run_id": root_run_id(context.run)}
        dataset, read_ahead = dataset_of(context.asset_key), pipeline.state().read_ahead
        node = kind(pipeline=pipeline.get(), dataset=dataset, read_ahead=read_ahead, **parts)
        yield from _run_stage(context, node, inputs.get("upstream"), wal, stage_io)

    return run_operator


def _run_stage(
    context: dg.AssetExecutionContext,
    node: ChainNode,
    upstream: StageBatch | None,
    wal: WalResource,
    stage_io: StageIOManager,
) -> Iterator[Any]:
    """Yield gate results and the output for the IO manager. Raises Failure or RetryRequested."""
    refuse_foreign_roots(stage_io.pipeline)
    key = context.asset_key
    day = partial(wal.get().day, dataset=dataset_of(key), partition=context.partition_key)
    console = wal.settings().console_url
    try:
        force = context.run.tags.get(FORCE_TAG)
        stage = stage_io.stages.run(node, run_id=node.run_id, upstream=upstream, force=force)
    except StageFailedError as error:
        if error.decision is not None:
            yield from gate_results(key, node.required_gates, error.decision, day=day(), console=console)
        retry_or_roll_back(node, error, tries=context.retry_number + 1, log=context.log)
        raise dg.Failure(description=str(error), metadata={"error_class": error.error_class.value}) from error
    if stage.decision is None:
        yield from not_evaluated(key, node.required_gates, stage, day=day())
    else:
        yield from gate_results(key, node.required_gates, stage.decision, day=day(), console=console)
    # The same inputs, parameters and code give the same data, so a reused output keeps its version.
    version = stage_io.content_hash(stage)
    yield dg.Output(stage, output_name="result", data_version=dg.DataVersion(version) if version else None)
