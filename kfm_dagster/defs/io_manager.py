"""The IO manager: stores operators' outputs and run-states, and loads outputs after a skip."""

# No postponed annotations here: Dagster reads ResourceDependency from the annotation itself.

import dagster as dg
from pydantic import PrivateAttr

from kfm_dagster.defs.chain import dataset_of, node_of, tag_run
from kfm_dagster.defs.display import account_of, arrivals_metadata, skip_metadata, stage_metadata
from kfm_dagster.defs.failing import retry_or_roll_back
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.errors import KfmError
from kfm_dagster.exports.explanations.run_report import NodeAccount
from kfm_dagster.ingest.nodes import Settle
from kfm_dagster.ingest.path_arrivals import PathArrivals
from kfm_dagster.redaction import redacted_error
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.stages.staged import StagedNode

MAX_UNITS_KEPT = 5_000
"""Units kept in memory between stages, over all datasets of a run; a unit takes about 25 KB, of HRRR 100 KB."""


class StageIOManager(dg.ConfigurableIOManager):
    """Has the runner of stages, which decides on skips and records outcomes with outputs.

    The newest batch stays in memory, and the last batches of other datasets up to MAX_UNITS_KEPT units in all. All
    other batches are read from the artifact, for example in a re-executed run, or if another process executed the step
    before (Celery).
    """

    pipeline: dg.ResourceDependency[PipelineResource]
    wal: dg.ResourceDependency[WalResource]

    _recent: dict[str, StageBatch] = PrivateAttr(default_factory=dict)

    @property
    def stages(self) -> StageRunner:
        """The runner of the stages; only its `port` reads and writes run-state."""
        return self.pipeline.get().stages

    def content_hash(self, stage: StagedNode) -> str | None:
        """Return the hash of a stage's content, or of the content whose output it reuses."""
        if stage.content is not None:
            return stage.content.content_hash
        return self._account(stage).content_hash

    def _account(self, stage: StagedNode) -> NodeAccount:
        return account_of(self.pipeline.get(), stage.kind, stage.run_id)

    def handle_output(self, context: dg.OutputContext, obj: StagedNode) -> None:
        """Commit the stage; report units' outcomes as a materialisation, a skip as an observation.

        The cause of a skip is in the log and in the observation; the run's tags count the skips.
        """
        pipeline = self.pipeline.get()
        try:
            batch = self.stages.commit(obj)
        except Exception as error:
            step = context.step_context
            retry_or_roll_back(obj.node, error, tries=step.previous_attempt_count + 1, log=context.log)
            shown = redacted_error(error)
            raise shown from shown.__cause__
        dataset, noun = dataset_of(context.asset_key), context.asset_key.path[-1]
        maker = node_of(noun)
        if maker is not None:
            self._remember(dataset, batch)
        day = self.wal.get().day(dataset=dataset, partition=context.partition_key)
        account = self._account(obj)
        run = context.step_context.dagster_run
        if batch.skipped is not None:
            by = batch.applied_by
            context.log.info("%s skipped: %s%s", obj.kind, batch.skipped, f", by run {by}" if by else "")
            skip = skip_metadata(obj, batch.skipped, day=day, account=account)
            context.log_event(dg.AssetObservation(context.asset_key, partition=context.partition_key, metadata=skip))
        if batch.skipped is not None or maker is Settle:
            skipped = _stages_skipped(context, dataset, this=batch.skipped is not None)
            settled = batch if maker is Settle else None
            tag_run(context.step_context.instance, run, dataset, day=day, skipped=skipped, settled=settled)
        context.add_output_metadata(
            {
                **stage_metadata(noun, batch, day=day, settings=pipeline.settings, account=account),
                **(arrivals_metadata(batch) if noun == PathArrivals.asset else {}),
            }
        )

    def load_input(self, context: dg.InputContext) -> StageBatch:
        """Return the upstream output of the same root run. Raises KfmError when that run has none."""
        dataset, noun = dataset_of(context.asset_key), context.asset_key.path[-1]
        maker = node_of(noun)
        dataset_id = f"{dataset}.{maker.operator if maker else noun}"
        run_id = root_run_id(context.step_context.dagster_run)
        recent = self._recent.get(dataset)
        if recent is not None and (recent.state.dataset_id, recent.state.run_id) == (dataset_id, run_id):
            return recent
        recalled = self.stages.port.load_output(dataset_id, run_id)
        if recalled is None:
            raise KfmError(
                f"{dataset}/{noun} has no output in this run, or it was rolled back",
                observed=f"run {run_id}",
                expected="the chain from envelopes on in one run",
                next_step=f"start a new run: materialise {context.asset_key.path[0]}/envelopes and everything "
                "downstream of it together",
            )
        return recalled

    def _remember(self, dataset: str, batch: StageBatch) -> None:
        self._recent.pop(dataset, None)
        self._recent[dataset] = batch
        while len(self._recent) > 1 and sum(len(kept.envelopes) for kept in self._recent.values()) > MAX_UNITS_KEPT:
            self._recent.pop(next(iter(self._recent)))


def root_run_id(run: dg.DagsterRun) -> str:
    """Return the id that a run shares with all its re-executions."""
    return run.root_run_id or run.run_id


def _stages_skipped(context: dg.OutputContext, dataset: str, *, this: bool) -> int:
    """Count a dataset's skipped stages of the run: earlier stages by observations, and `this`.

    Counted by events, because a process only knows the steps that it executed, and a run may have several processes.
    """
    step = context.step_context
    observations = step.instance.all_logs(step.run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION)
    keys = [entry.asset_observation.asset_key for entry in observations if entry.asset_observation is not None]
    return len({key for key in keys if dataset_of(key) == dataset} - {context.asset_key}) + this
