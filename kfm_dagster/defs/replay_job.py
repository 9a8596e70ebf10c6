"""The job `replay`: the same engine as `kfm replay`, started from the launchpad."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from typing import Any

import dagster as dg
from pydantic import Field

from kfm_dagster.defs.display import markdown_table
from kfm_dagster.defs.failing import redacted
from kfm_dagster.defs.jobs import job_of
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.errors import ConfigurationError, KfmError
from kfm_dagster.governance.log import DAGSTER_UI, Decision
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.selection import Selection, parse_selection, selection_from
from kfm_dagster.recovery.work_orders import start

REPLAY_JOB = "replay"


class ReplayConfig(dg.Config):
    """What to have done again. Either `spec`, or the fields below it. Who decides is no part of it: DAGSTER_UI does."""

    spec: str = Field("", description="A selection spec (YAML), as kfm replay select --save writes it; alone.")
    mode: str = Field("failed-only", description="failed-only, repair-and-replace or backfill.")
    datasets: list[str] = Field(default_factory=list, description="Dataset ids.")
    status: list[str] = Field(default_factory=list, description="failed; for repairs succeeded or quarantined, too.")
    error_codes: list[str] = Field(default_factory=list, description="Only records whose last error is one of these.")
    event_time_start: str = Field("", description="Written then or later: 2025-12-04T00:00:00Z.")
    event_time_end: str = Field("", description="Written before: 2025-12-05T00:00:00Z.")
    wal_ids: list[str] = Field(default_factory=list, description="Exactly these units.")
    max_records: int = Field(0, description="The first so many, by event time; 0: all that match.")
    batch_size: int = Field(0, description="Units let in at a time; 0: the environment's.")
    allow_repair_and_replace: bool = Field(default=False, description="Needed for that mode, with a change reference.")
    must_match: bool = Field(default=False, description="Repeat successes: a result that differs stops the replay.")
    allow_downgrade: bool = Field(default=False, description="Replace results that a newer release has made.")
    replay_reason: str = Field("incident", description="Word of the ledger's vocabulary.")
    reason: str = Field("", description="Why, for readers of the governance log; needed to run.")
    change_ref: str = Field("", description="Change or incident under which it was approved.")
    dry_run: bool = Field(default=True, description="true: only say what would be done. false: do it.")


def replay_job() -> dg.JobDefinition:
    """Return the job."""

    @dg.op(
        name="start_replay",
        description="Counts the selection, refuses what a guard refuses, and unless it is a dry run starts the "
        "replay, which the sensor nodd_ledger carries out batch by batch.",
    )
    @redacted
    def start_replay(
        context: dg.OpExecutionContext, config: ReplayConfig, pipeline: PipelineResource
    ) -> dict[str, Any]:
        engine = ReplayEngine(pipeline=pipeline.get())
        try:
            result = _started(engine, config, context.run_id)
        except KfmError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from None
        context.add_output_metadata(_metadata(result))
        return result

    return job_of(
        start_replay,
        name=REPLAY_JOB,
        description="Have units done again, always through the ledger: the launchpad's form of kfm replay. A dry run "
        "unless dry_run is false; kfm replay status shows how it goes on. It acts as dagster-ui: failed units and days "
        "are let in at once, units that succeeded or are quarantined once a person approves the proposal.",
    )


def _started(engine: ReplayEngine, config: ReplayConfig, run_id: str) -> dict[str, Any]:
    selection = _selection(engine, config)
    change_ref = config.change_ref or None
    if config.dry_run or selection.spec.options.dry_run:
        plan = engine.plan(selection, change_ref=change_ref)
        plan.refuse()
        return {"replay_run_id": None, "proposal_id": None, **plan.as_json()}
    decision = Decision(actor=DAGSTER_UI, reason=config.reason, change_ref=change_ref, dagster_run_id=run_id)
    started = start(engine, selection, decision)
    return {"replay_run_id": started.replay_run_id, "proposal_id": started.proposal_id, **started.plan.as_json()}


def _selection(engine: ReplayEngine, config: ReplayConfig) -> Selection:
    if config.spec:
        if fields := [name for name in _FILTERS if getattr(config, name)]:
            raise ConfigurationError(
                "a spec is given together with fields that select",
                observed=", ".join(fields),
                expected="one of the two",
                next_step="empty one of them",
            )
        return parse_selection(config.spec, source="the field spec")
    parts = {name: getattr(config, name) or None for name in (*_FILTERS, *_OTHERS)}
    env = engine.pipeline.settings.env
    return selection_from(env, "the configuration", name="from the launchpad", **parts)


_FILTERS = ("datasets", "status", "error_codes", "event_time_start", "event_time_end", "wal_ids")
_OTHERS = (
    "mode", "replay_reason", "max_records", "batch_size", "allow_repair_and_replace", "must_match", "allow_downgrade"
)  # fmt: skip


def _metadata(found: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in found.items() if not isinstance(value, (list, dict)) and value is not None}
    tables = {name: dg.MetadataValue.md(_table(found[name])) for name in ("breakdown", "examples") if found[name]}
    return {**shown, **tables}


def _table(rows: list[dict[str, Any]]) -> str:
    return markdown_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
