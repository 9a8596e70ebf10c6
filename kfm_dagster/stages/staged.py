"""A node in a stage: wraps a node and adds batch, gates and run-state.

Belongs here: the additions of a stage to each method of its node, and the record of an output. Does not belong here:
the order of calls (`run_contract.py`), or the consequence of a gate's verdict (`machine.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.idempotent_node.node import transformed
from kfm_dagster.idempotent_node.transaction import Content, Effect
from kfm_dagster.idempotent_node.wal import Intent
from kfm_dagster.run_state.record import ValidationSummary, inputs_hash
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import ErrorClass
from kfm_dagster.stages.lifecycle import StageLifecycle
from kfm_dagster.stages.machine import GateDecision
from kfm_dagster.stages.node import StageNode
from kfm_dagster.stages.port import RunStateKey, RunStatePort
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.measures import StepVolume

GatedBatch = tuple[list[Envelope], GateDecision]
"""A batch whose faulty units the gates have marked, and the gates' decision."""


@dataclass(kw_only=True)
class StagedNode:
    """A node in a stage: `StageRunner.run` computes or skips it, `StageRunner.commit` stores it."""

    node: StageNode
    run_id: str
    received: StageBatch | None
    """The output of the node before; None for the first node of a chain."""
    lifecycle: StageLifecycle
    port: RunStatePort

    skipped: StageBatch | None = None
    """The earlier output of a skipped node."""
    content: Content | None = None
    intent: Intent | None = None
    attempt: StageAttempt | None = None
    unlocked: str | None = None
    """Reason why the clock is not locked, which restricts the output; None if the clock is locked."""
    gated: GatedBatch | None = field(default=None, repr=False)
    batch: StageBatch | None = field(default=None, repr=False)
    """The stored output."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def kind(self) -> str:
        """The node's kind."""
        return self.node.kind

    @property
    def step(self) -> str:
        """The name of the node's effect."""
        return self.node.step

    @property
    def decision(self) -> GateDecision | None:
        """The gates' decision on the computed output; None before the gates, and for a skipped node."""
        return self.gated and self.gated[1]

    @cached_property
    def key(self) -> RunStateKey:
        """The key in run-state: the node's id, the run, and the hash of inputs and parameters."""
        batch = [self.received.reference] if self.received else []
        digest = inputs_hash([*self.node.references(), *batch], self.params())
        return RunStateKey(dataset_id=self.kind, run_id=self.run_id, inputs_hash=digest)

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the failpoints that the stage reaches."""
        dataset, _, operator = self.kind.rpartition(".")
        partition = self.name.partition("@")[2]
        return {"dataset": dataset, "operator": operator, "partition": partition, "run": self.run_id}

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return the node's inputs and the batch."""
        batch = self.received and self.received.reference
        return [*self.node.inputs(), *([ManifestEntry(uri=batch.uri, checksum=batch.checksum)] if batch else [])]

    def params(self) -> Mapping[str, Any]:
        """Return the node's parameters and the card's gates, which may remove units from the output."""
        return {**self.node.params(), "card_gates": self.lifecycle.card.gates.model_dump(mode="json")}

    def context(self) -> Mapping[str, Any]:
        """Return the node's context and the key of its run-state."""
        return {**self.node.context(), "dataset_id": self.kind, "run_id": self.run_id}

    def transform(self) -> GatedBatch:
        """Compute, and evaluate the gates. Raises StageStoppedError."""
        with self.node.working():
            computed = transformed(self.node)
            return self.lifecycle.evaluate_gates(self.node, computed)

    def apply(self, tx: Transaction, gated: GatedBatch, /) -> Effect:
        """Store the batch and its record, with the node's own tables."""
        computed, decision = gated
        envelopes = self.node.apply(tx, computed)
        summary = self._with_gates(self.node.summarize(envelopes), gated)
        stored = self.port.keep(
            self.key, envelopes, summary, earlier=self.received.columns if self.received else (), tx=tx
        )
        self.batch = replace(stored, decision=_evaluated(decision))
        volume = StepVolume(rows_out=len(envelopes), bytes_out=stored.stored_bytes)
        if self.received is not None:
            volume = replace(volume, rows_in=len(self.received.envelopes), bytes_in=self.received.stored_bytes)
        claimed = self.node.claimed(envelopes)
        lineage = self._lineage(stored, claimed)
        return Effect(record=_record_of(stored), lineage=lineage, volume=volume, claimed=claimed)

    def _lineage(self, kept: StageBatch, claimed: ManifestEntry | None) -> dict[str, Any]:
        """Return PROV-O nodes of the output and its sources, identified by their digests.

        The sources are the inputs that were hashed before the computation. The node's inputs are not read again,
        because a second listing of a bucket could differ.
        """
        # `claimed` replaces the input with the same URI, which describes the ledger's records before the claim.
        entries = (*(self.content.inputs if self.content else ()), *((claimed,) if claimed else ()))
        by_uri = {entry.uri: entry for entry in entries}
        sources = {_entity(entry): entry for entry in by_uri.values()}
        output = {
            "id": f"urn:sha256:{kept.state.artifact_sha256}",
            "type": ["Entity", "kfm:StageOutput"],
            "kfm:node": self.name,
            "wasDerivedFrom": sorted(sources),
        }
        derived = [
            {"id": identifier, "type": ["Entity", "kfm:Content"], "kfm:uri": entry.uri}
            for identifier, entry in sorted(sources.items())
        ]
        return {"prov": [output, *derived]}

    def _with_gates(self, summary: ValidationSummary, gated: GatedBatch) -> ValidationSummary:
        """Count units that a gate removed as failed, not passed; add the output's restrictions."""
        envelopes, decision = gated
        removed = sum(1 for unit in envelopes if unit.gate_issues and unit.wal_id in decision.leaving)
        reasons: set[str] = {
            *decision.restricted,
            *(self.received.restricted if self.received else ()),
            *({ErrorClass.E_SYNC.value} if self.unlocked else ()),
        }
        extra = {**summary.extra, **({"restricted": sorted(str(name) for name in reasons)} if reasons else {})}
        return replace(summary, passed=summary.passed - removed, failed=summary.failed + removed, extra=extra)


def _entity(entry: ManifestEntry) -> str:
    return entry.uri if entry.checksum is None else f"urn:sha256:{entry.checksum}"


def _evaluated(decision: GateDecision) -> GateDecision | None:
    return decision if any(verdict.applies for verdict in decision.verdicts) else None


def _record_of(batch: StageBatch) -> dict[str, Any]:
    """Return a stage's record for `node_output`; a later run can reuse the output by it.

    A summary's `product` is a file that the node writes besides its batch; lineage lists it as the step's output.
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
