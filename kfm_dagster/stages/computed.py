"""A stage between computing and commit, and what is recorded of its output.

Belongs here: what follows from a computed stage by itself. Does not belong here: when it is recorded
(`run_contract.py`), or what a gate's verdict leads to (`machine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.transaction import Content
from kfm_dagster.idempotent_node.wal import Intent
from kfm_dagster.run_state.record import Outcome, ValidationSummary
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import ErrorClass
from kfm_dagster.stages.machine import Judgement
from kfm_dagster.stages.node import Node
from kfm_dagster.stages.store import StageAttempt


@dataclass(frozen=True, kw_only=True)
class ComputedStage:
    """A stage between `run` and `commit`; `skipped` holds the earlier output when there was nothing to do."""

    node: Node
    run_id: str
    inputs_hash: str
    envelopes: list[Envelope] = field(default_factory=list)
    content: Content | None = None
    intent: Intent | None = None
    attempt: StageAttempt | None = None
    judgement: Judgement | None = None
    unlocked: str | None = None
    """Why the clock was not right enough to write by, where the card lets that restrict the output."""
    received: StageBatch | None = None
    """What the node before handed on; the first node of a chain has none."""
    skipped: StageBatch | None = None


def with_gates(summary: ValidationSummary, stage: ComputedStage) -> ValidationSummary:
    """Count the units that a gate made leave as failed, and say what restricts the output."""
    leaving = stage.judgement.leaving if stage.judgement else {}
    left = sum(1 for unit in stage.envelopes if unit.gate_issues and unit.wal_id in leaving)
    why: set[str] = {
        *(stage.judgement.restricted if stage.judgement else ()),
        *(stage.received.restricted if stage.received else ()),
        *({ErrorClass.E_SYNC.value} if stage.unlocked else ()),
    }
    extra = {**summary.extra, **({"restricted": sorted(str(one) for one in why)} if why else {})}
    return replace(summary, passed=summary.passed - left, failed=summary.failed + left, extra=extra)


def looked(judgement: Judgement | None) -> Judgement | None:
    """Return a judgement for the next stage to rely on, unless no gate had anything to look at."""
    return judgement if judgement and any(verdict.applies for verdict in judgement.verdicts) else None


def outcome_of(summary: ValidationSummary) -> Outcome:
    """Success when nothing failed, failed when nothing passed, else partial."""
    if summary.failed == 0:
        return Outcome.SUCCESS
    return Outcome.FAILED if summary.passed == 0 else Outcome.PARTIAL


def record_of(batch: StageBatch) -> dict[str, Any]:
    """Return what `node_output` keeps of a stage: enough to hand its output on.

    `product` of a summary is the file that a node makes besides its batch; lineage names it as the step's output.
    """
    state = batch.state
    product = state.validation_summary.get("product")
    return {
        "dataset_id": state.dataset_id,
        "run_id": state.run_id,
        "inputs_hash": state.inputs_hash,
        "outcome": state.outcome.value,
        "units": len(batch.envelopes),
        "bytes": batch.stored_bytes,
        "validation_summary": dict(state.validation_summary),
        "artifact_uri": state.artifact_uri,
        "artifact_sha256": state.artifact_sha256,
        **({"artifact": product} if product else {}),
    }
