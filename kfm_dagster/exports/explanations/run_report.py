"""The account of a run: what each node did in words, and why a node that was skipped had nothing to do.

Belongs here: joining what run-state and intents recorded into one account, which command, JSON and Dagster metadata all
show. Pure. Does not belong here: reading the records (`explanation.py`), or showing the account (`cli/explain.py`,
`defs/display.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.idempotent_node.transaction import FORCED
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, Settle, chain
from kfm_dagster.plural import counted
from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.stages.batch import SkipCause
from kfm_dagster.telemetry.measures import MEASURES, inputs_of

ENDS = ("succeeded", "retrying", "quarantined", "lost")
"""How a unit ends in a run, as the settlement's summary counts it."""
BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
AFTER_ALL = datetime.max.replace(tzinfo=UTC)


@unique
class StepResult(StrEnum):
    """What became of a node in a run."""

    RAN = "ran"
    """It computed, whatever the outcome."""
    SKIPPED = "skipped"
    """It had nothing to do; `cause` says why."""
    UNFINISHED = "unfinished"
    """It has an intent and no end: it is at work, or its process died."""
    OVERTAKEN = "overtaken"
    """It died, and a later run has done its work."""
    NOT_RUN = "not_run"
    """It is no part of this re-execution, or the re-execution did not get there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """When a run was at work."""

    since: datetime = BEFORE_ALL
    until: datetime = AFTER_ALL

    def holds(self, at: datetime) -> bool:
        """Tell whether a moment lies in it."""
        return self.since <= at <= self.until


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAccount:
    """What a node did in a run. `superseded_at` None: its output is still what the node made last."""

    node: str
    fate: StepResult
    did: str
    """What it did, in words."""
    why: str | None = None
    """Why it was skipped; None where it was not."""
    cause: SkipCause | None = None
    applied_by: str | None = None
    forced: str | None = None
    inputs: Sequence[Mapping[str, Any]] = ()
    inputs_hash: str | None = None
    content_hash: str | None = None
    intent: IntentStatus | None = None
    attempts: int = 0
    outcome: Outcome | None = None
    validation_summary: Mapping[str, Any] | None = None
    started_at: datetime | None = None
    applied_at: datetime | None = None
    recorded_at: datetime | None = None
    output_uri: str | None = None
    output_sha256: str | None = None
    superseded_at: datetime | None = None
    took: Mapping[str, float | int | str] = field(default_factory=dict)
    """What was measured of its last step (`telemetry/measures.py`)."""

    @property
    def stage(self) -> str:
        """The node in every partition."""
        return self.node.partition("@")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingGate:
    """A gate that did not pass in the last attempt of a stage; of `units`, 0 where the batch as a whole is at fault."""

    stage: str
    gate: str
    outcome: str
    units: int
    observed: str
    expected: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What a run did. `run_id` is the one that was asked for; a root run's account holds its re-executions' part."""

    run_id: str
    root_run_id: str
    reexecutions: Sequence[str]
    nodes: Sequence[NodeAccount]
    units: Mapping[str, Mapping[str, int]]
    """Counts of units by dataset and end; they sum to `claimed`."""
    failing_gates: Sequence[FailingGate] = ()


def node_accounts(states: Sequence[RunState], intents: Sequence[Any], window: Window) -> list[NodeAccount]:
    """Return the account of every node that recorded a state or an intent, in the order in which they began."""
    recorded = {state.dataset_id: state for state in states}
    by_node: dict[str, list[Any]] = {}
    for row in intents:
        name = row.node.partition("@")[0]
        # A node of another team has no run-state; it goes by its whole name.
        by_node.setdefault(name if name in recorded else row.node, []).append(row)
    # What failed before it had an intent comes last.
    names = [*by_node, *(name for name in recorded if name not in by_node)]
    return [node_account(name, recorded.get(name), by_node.get(name, []), window) for name in names]


def node_account(name: str, state: RunState | None, intents: Sequence[Any], window: Window) -> NodeAccount:
    """Return the account of one node from its record and its intents, oldest first (`explanation.intents`)."""
    within = [row for row in intents if window.holds(row.started_at)]
    # What a re-execution did not do itself rests on what had been done before it.
    last = (within or [row for row in intents if row.started_at < window.since] or [None])[-1]
    fate, cause = _fate(state, within[-1] if within else None, window)
    if state is not None and state.recorded_at > window.until:
        state = None
    params = last.payload["params"] if last is not None else {}
    forced = params.get(FORCED, {}).get("reason")
    applied_by = last.applied_by if last is not None and cause is SkipCause.CONTENT_APPLIED else None
    facts = _of_intent(last, attempts=len(within)) | _of_state(state)
    return NodeAccount(
        node=facts.pop("node", name),
        fate=fate,
        did=_did(fate, name, state, forced=forced),
        why=_why(cause, applied_by=applied_by),
        cause=cause,
        applied_by=applied_by,
        forced=forced if fate is StepResult.RAN else None,
        **facts,
    )


def _fate(state: RunState | None, last: Any | None, window: Window) -> tuple[StepResult, SkipCause | None]:
    """Tell what became of a node, from its record and its last intent in the window."""
    if last is not None and last.status == IntentStatus.PENDING:
        return StepResult.UNFINISHED, None
    if state is not None and window.holds(state.recorded_at):
        skipped = state.outcome is Outcome.SKIPPED
        return (StepResult.SKIPPED, SkipCause(state.validation_summary["cause"])) if skipped else (StepResult.RAN, None)
    if last is not None:
        return _fate_of(last)
    if state is not None and state.recorded_at < window.since and state.outcome is Outcome.SUCCESS:
        return StepResult.SKIPPED, SkipCause.ALREADY_SUCCEEDED
    return StepResult.NOT_RUN, None


def _fate_of(intent: Any) -> tuple[StepResult, SkipCause | None]:
    """Tell what became of a node without a record, from its intent."""
    match IntentStatus(intent.status):
        case IntentStatus.APPLIED:
            return StepResult.RAN, None
        case IntentStatus.SKIPPED if intent.applied_by is not None:
            return StepResult.SKIPPED, SkipCause.CONTENT_APPLIED
        case IntentStatus.SKIPPED:
            return StepResult.OVERTAKEN, None
        case _:
            return StepResult.UNFINISHED, None


UNDER_OTHER_INPUTS = "it had succeeded in this run under another contract, card or feed; kfm replay run applies the new"
_PLAIN = {
    StepResult.SKIPPED: "was skipped",
    StepResult.UNFINISHED: "began and recorded no end: it is at work, or its process died",
    StepResult.OVERTAKEN: "died, and a later run has done its work, or none was left",
    StepResult.NOT_RUN: "did not run: no part of this re-execution, or not reached by it",
}


_DEEDS = {node.operator: node.did for node in chain()}


def _did(fate: StepResult, name: str, state: RunState | None, *, forced: str | None) -> str:
    if fate in _PLAIN:
        return _PLAIN[fate]
    because = "" if forced is None else f"; forced: {forced}"
    if state is None:
        return f"applied its content{because}"
    if state.rolled_back_by is not None:
        because = f", rolled back because of {state.rolled_back_by}{because}"
    summary = state.validation_summary
    if state.outcome is Outcome.FAILED and not summary["checks"]:
        return f"failed{because}"
    verb, noun = _DEEDS.get(name.partition("@")[0].rpartition(".")[2], ChainNode.did)
    failed = f", of which {summary['failed']} failed" if summary["failed"] else ""
    return f"{verb} {counted(summary['checks'], noun)}{failed}{because}"


def _why(cause: SkipCause | None, *, applied_by: str | None) -> str | None:
    match cause:
        case SkipCause.ALREADY_SUCCEEDED:
            return "it had succeeded in this run with the same inputs"
        case SkipCause.CONTENT_APPLIED:
            return f"run {applied_by} had applied exactly this content"
        case _:
            return None


def _of_intent(row: Any, *, attempts: int) -> dict[str, Any]:
    if row is None:
        return {}
    record = row.record or {}
    return {
        "node": row.node,
        "inputs": inputs_of(row),
        "content_hash": row.content_hash,
        "intent": IntentStatus(row.status),
        "attempts": attempts,
        "started_at": row.started_at,
        "applied_at": row.applied_at,
        "output_uri": record.get("artifact_uri"),
        "output_sha256": record.get("artifact_sha256"),
        "superseded_at": row.valid_to,
        "took": {name: value for name in MEASURES if (value := getattr(row, name)) is not None},
    }


def _of_state(state: RunState | None) -> dict[str, Any]:
    if state is None:
        return {}
    return {
        "inputs_hash": state.inputs_hash,
        "outcome": state.outcome,
        "validation_summary": dict(state.validation_summary),
        "recorded_at": state.recorded_at,
        "output_uri": state.artifact_uri,
        "output_sha256": state.artifact_sha256,
    }


def units_by_end(nodes: Sequence[NodeAccount]) -> dict[str, dict[str, int]]:
    """Count the units that the run claimed by how they ended; what it did not settle went to another run."""
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        dataset, _, operator = node.stage.rpartition(".")
        summary = node.validation_summary or {}
        if node.fate is not StepResult.RAN:
            continue
        if operator == MessageParse.operator and summary.get("checks"):
            found[dataset] = {"claimed": summary["checks"]}
        elif operator == Settle.operator:
            counts = {end: summary[end] for end in ENDS if end in summary}
            found[dataset] = {"claimed": sum(counts.values()), **found.get(dataset, {}), **counts}
    for counts in found.values():
        if unsettled := counts["claimed"] - sum(counts.get(end, 0) for end in ENDS):
            counts["unsettled"] = unsettled
    return found
