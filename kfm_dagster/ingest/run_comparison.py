"""Comparing a run with itself: each stage is done again from what the stage before it saved, and nothing is written.

Reads objects and checkpoints only. Belongs here: what is the same and what is not (PCS-08). Does not belong here: what
follows from it (`run_replay.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kfm_dagster.contracts.envelope import Envelope, StacStatus, WalId
from kfm_dagster.contracts.issues import IntegrityIssue, MetadataIssue
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError, ExitCode
from kfm_dagster.ingest.node import ChainNode, Operator
from kfm_dagster.ingest.nodes import IntegrityCheck, MetadataExtract
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.operators.stac_register import NoItemError, may_register, stac_register
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import Replay, StageState

Results = Mapping[WalId, bytes]
"""Primary key of a unit > what a stage made of it, as bytes that are equal where the results are."""


_SILENT = frozenset({IntegrityIssue.STORAGE_UNAVAILABLE.value, MetadataIssue.STORAGE_UNAVAILABLE.value})


class StoreSilentError(DependencyUnavailableError):
    """An object's store does not answer, so that nothing can be said of the result."""


class RunReplayRefusedError(ConfigurationError):
    """A run cannot be replayed."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, kw_only=True, slots=True)
class StageComparison:
    """One stage of a run, done again. Hashes are SHA-256 in hex over keys and results, in the order of the keys."""

    stage: str
    units: int
    original_sha256: str
    replayed_sha256: str
    keys_differing: tuple[WalId, ...]
    """Units with a result on one side only, sorted."""
    results_differing: tuple[WalId, ...]
    """Units with two results that differ, sorted."""

    def diverges(self, plan: Replay) -> bool:
        """Tell whether anything differs that the plan wants equal."""
        return bool((plan.verify.primary_keys and self.keys_differing) or (plan.verify.hash and self.results_differing))

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "stage": self.stage,
            "units": self.units,
            "original_sha256": self.original_sha256,
            "replayed_sha256": self.replayed_sha256,
            "keys_differing": len(self.keys_differing),
            "results_differing": len(self.results_differing),
            "first": min((*self.keys_differing, *self.results_differing), default=None),
        }


def compare_run(pipeline: Pipeline, *, dataset: str, run_id: str) -> Iterator[StageComparison]:
    """Yield the stages of a run that can be done again without effects, in reverse topological order.

    Looks at the units that the run brought to success. Raises RunReplayRefusedError where the plan or the run does not
    allow a replay, StoreSilentError where an object's store does not answer: then nothing is known.
    """
    outputs = {operator: _output(pipeline, dataset, operator, run_id) for operator in Operator}
    # What failed there is no result of it: another attempt may have gone another way.
    succeeded = {unit.wal_id for unit in outputs[Operator.SETTLE].envelopes if unit.failure is None}
    original = {
        operator: [unit for unit in output.envelopes if unit.wal_id in succeeded]
        for operator, output in outputs.items()
    }
    parts = {"pipeline": pipeline, "dataset": dataset, "run_id": run_id}
    operators = list(Operator)
    for operator in reversed(list(_AGAIN)):
        given = original[operators[operators.index(operator) - 1]]
        made = original[operator]
        partition = next((unit.partition for unit in given), "")
        again = _AGAIN[operator](parts | {"partition": partition}, given)
        yield _compared(f"{dataset}.{operator}", _results(operator, made), again)


def _output(pipeline: Pipeline, dataset: str, operator: Operator, run_id: str) -> StageBatch:
    """Return what a stage of the run saved. Raises RunReplayRefusedError."""
    plan, stage = pipeline.card.replay_plan.replay, f"{dataset}.{operator}"
    if not plan.enabled:
        raise RunReplayRefusedError(
            observed="replay.enabled false", next_step="see replay_plan.yaml (KFM_CONFIGS_DIR), or kfm replay run"
        )
    attempt = pipeline.stages.keeper.store.newest(run_id, stage)
    saved = attempt is not None and attempt.state is StageState.SUCCEEDED
    if plan.require_checkpoint and not (saved and attempt is not None and attempt.checkpoint_uri is not None):
        raise RunReplayRefusedError(
            observed=f"{stage} has no checkpoint in run {run_id}",
            expected="a run whose every stage succeeded and saved one (state_machine.yaml, checkpoints)",
            next_step="kfm explain names the runs and what they did; kfm replay run does units again without one",
        )
    output = pipeline.stages.recall(stage, run_id)
    if output is None:
        raise RunReplayRefusedError(
            observed=f"{stage} has no output in run {run_id}, or it was taken back",
            expected="a run that stands",
            next_step="see kfm explain",
        )
    return output


def _computed(operator: Operator, kind: type[ChainNode]) -> Callable[[Mapping[str, Any], Sequence[Envelope]], Results]:
    def again(parts: Mapping[str, Any], given: Sequence[Envelope]) -> Results:
        made = kind(**parts).compute(given)
        for unit in made:
            if any(issue.code in _SILENT for issue in unit.issues):
                raise StoreSilentError(observed=f"{unit.object_uri} cannot be read now")
        return _results(operator, made)

    return again


def _items(parts: Mapping[str, Any], given: Sequence[Envelope]) -> Results:
    """Build the Items and keep what they say, not them."""
    pipeline, dataset = parts["pipeline"], parts["dataset"]
    contract, grammar = pipeline.registry[dataset], pipeline.registry.grammars[dataset]
    found: dict[WalId, bytes] = {}
    for unit in given:
        if may_register(unit):
            try:
                item = stac_register(unit, contract=contract, grammar=grammar)
            except NoItemError:
                continue
            found[unit.wal_id] = f"{item.item_id} {item.content_sha256}".encode()
    return found


_AGAIN: Mapping[Operator, Callable[[Mapping[str, Any], Sequence[Envelope]], Results]] = {
    Operator.INTEGRITY_CHECK: _computed(Operator.INTEGRITY_CHECK, IntegrityCheck),
    Operator.METADATA_EXTRACT: _computed(Operator.METADATA_EXTRACT, MetadataExtract),
    Operator.STAC_REGISTER: _items,
}
"""Stages that are functions of what they are given, in topological order. Lineage names runs, so it is told anew."""


def _results(operator: Operator, units: Sequence[Envelope]) -> Results:
    if operator is Operator.STAC_REGISTER:
        return {
            unit.wal_id: f"{unit.stac.item_id} {unit.stac.content_sha256}".encode()
            for unit in units
            # What a newer unit kept out of the catalog says nothing of its own.
            if unit.stac and unit.stac.write_status is not StacStatus.FAILED and not unit.stac.superseded
        }
    section = "integrity" if operator is Operator.INTEGRITY_CHECK else "metadata"
    return {
        unit.wal_id: orjson.dumps(made, option=orjson.OPT_SORT_KEYS)
        for unit in units
        if (made := getattr(unit, section)) is not None
    }


def _compared(stage: str, original: Results, again: Results) -> StageComparison:
    both = original.keys() & again.keys()
    return StageComparison(
        stage=stage,
        units=len(original),
        original_sha256=_sha256(original),
        replayed_sha256=_sha256(again),
        keys_differing=tuple(sorted(original.keys() ^ again.keys())),
        results_differing=tuple(sorted(wal_id for wal_id in both if original[wal_id] != again[wal_id])),
    )


def _sha256(results: Results) -> str:
    digest = hashlib.sha256()
    for wal_id in sorted(results):
        digest.update(f"{wal_id} {hashlib.sha256(results[wal_id]).hexdigest()}\n".encode())
    return digest.hexdigest()
