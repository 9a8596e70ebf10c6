"""The report of a run: each node's work in words, and the reason of each skip (pure).

Belongs here: joining the records of run-state and intents into a report, for command, JSON and Dagster metadata.
Does not belong here: reading the records (`explanation.py`), or showing the report (`cli/runs.py`,
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
"""Ends of a unit in a run, as counted by the settlement's summary."""
BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
AFTER_ALL = datetime.max.replace(tzinfo=UTC)


@unique
class StepResult(StrEnum):
    """Result of a node in a run."""

    RAN = "ran"
    """The node computed, whatever the outcome."""
    SKIPPED = "skipped"
    """The node did no work; `cause` is the reason."""
    UNFINISHED = "unfinished"
    """The node has an intent without an end: the node is at work, or its process died."""
    OVERTAKEN = "overtaken"
    """The node's process died; a later run has done the work that was left, if any."""
    NOT_RUN = "not_run"
    """This re-execution does not include the node, or did not reach the node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """When a run was at work."""

    since: datetime = BEFORE_ALL
    until: datetime = AFTER_ALL

    def holds(self, at: datetime) -> bool:
        """Return whether a time lies in the window."""
        return self.since <= at <= self.until


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAccount:
    """A node's work in a run. `superseded_at` None: its output is still the node's latest."""

    node: str
    fate: StepResult
    did: str
    """The node's work, in words."""
    why: str | None = None
    """The reason of a skip; None if the node was not skipped."""
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
    """Measures of the node's last step (`telemetry/measures.py`)."""

    @property
    def stage(self) -> str:
        """The node's name without the partition."""
        return self.node.partition("@")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingGate:
    """A gate that failed in a stage's last attempt; `units` at fault, 0 for the whole batch."""

    stage: str
    gate: str
    outcome: str
    units: int
    observed: str
    expected: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """The report of the run `run_id`; a root run's report includes its re-executions."""

    run_id: str
    root_run_id: str
    reexecutions: Sequence[str]
    nodes: Sequence[NodeAccount]
    units: Mapping[str, Mapping[str, int]]
    """Counts of units by dataset and end; they sum to `claimed`."""
    failing_gates: Sequence[FailingGate] = ()


def node_accounts(states: Sequence[RunState], intents: Sequence[Any], window: Window) -> list[NodeAccount]:
    """Return the account of every node with a state or an intent, in the order of their start."""
    recorded = {state.dataset_id: state for state in states}
    by_node: dict[str, list[Any]] = {}
    for row in intents:
        name = row.node.partition("@")[0]
        # A node of another team has no run-state and keeps its whole name.
        by_node.setdefault(name if name in recorded else row.node, []).append(row)
    # Nodes that failed before their intent come last.
    names = [*by_node, *(name for name in recorded if name not in by_node)]
    return [node_account(name, recorded.get(name), by_node.get(name, []), window) for name in names]


def node_account(name: str, state: RunState | None, intents: Sequence[Any], window: Window) -> NodeAccount:
    """Return a node's account from run-state and intents, oldest first (`explanation.intents`)."""
    within = [row for row in intents if window.holds(row.started_at)]
    # If the re-execution did not run the node, the node's last intent is from before the re-execution.
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
    """Return a node's result and skip cause, by its run-state and last intent in the window."""
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
    """Return the result and skip cause of a node without run-state, from its intent."""
    status = IntentStatus(intent.status)
    if status is IntentStatus.SKIPPED:
        is_applied = intent.applied_by is not None
        return (StepResult.SKIPPED, SkipCause.CONTENT_APPLIED) if is_applied else (StepResult.OVERTAKEN, None)
    return StepResult.RAN if status is IntentStatus.APPLIED else StepResult.UNFINISHED, None


UNDER_OTHER_INPUTS = (
    "it had succeeded in this run under another contract, card or feed; to apply the new version: kfm replay run"
)
_PLAIN = {
    StepResult.SKIPPED: "was skipped",
    StepResult.UNFINISHED: "began and recorded no end: it is at work, or its process died",
    StepResult.OVERTAKEN: "died; a later run has done its work, if any was left",
    StepResult.NOT_RUN: "did not run: this re-execution does not include it, or did not reach it",
}


_DEEDS = {node.operator: node.did for node in chain()}


def _did(fate: StepResult, name: str, state: RunState | None, *, forced: str | None) -> str:
    if fate in _PLAIN:
        return _PLAIN[fate]
    suffix = "" if forced is None else f"; forced: {forced}"
    if state is None:
        return f"applied its content{suffix}"
    if state.rolled_back_by is not None:
        suffix = f", rolled back because of {state.rolled_back_by}{suffix}"
    summary = state.validation_summary
    if state.outcome is Outcome.FAILED and not summary["checks"]:
        return f"failed{suffix}"
    verb, noun = _DEEDS.get(name.partition("@")[0].rpartition(".")[2], ChainNode.did)
    failed = f", {summary['failed']} failed" if summary["failed"] else ""
    return f"{verb} {counted(summary['checks'], noun)}{failed}{suffix}"


def _why(cause: SkipCause | None, *, applied_by: str | None) -> str | None:
    reasons = {
        SkipCause.ALREADY_SUCCEEDED: "it had succeeded in this run with the same inputs",
        SkipCause.CONTENT_APPLIED: f"run {applied_by} had applied exactly this content",
    }
    return reasons.get(cause) if cause else None


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
    """Count the run's claimed units by end; `unsettled` are units that the run did not settle."""
    by_dataset: dict[str, dict[str, int]] = {}
    for node in nodes:
        dataset, _, operator = node.stage.rpartition(".")
        summary = node.validation_summary or {}
        if node.fate is not StepResult.RAN:
            continue
        if operator == MessageParse.operator and summary.get("checks"):
            by_dataset[dataset] = {"claimed": summary["checks"]}
        elif operator == Settle.operator:
            counts = {end: summary[end] for end in ENDS if end in summary}
            by_dataset[dataset] = {"claimed": sum(counts.values()), **by_dataset.get(dataset, {}), **counts}
    for counts in by_dataset.values():
        if unsettled := counts["claimed"] - sum(counts.get(end, 0) for end in ENDS):
            counts["unsettled"] = unsettled
    return by_dataset
