"""A node as a stage runs it: an idempotent node itself, with the batch, the gates and run-state around its own work.

Belongs here: what a stage adds to each member of a node, and what is recorded of an output. Does not belong here: when
it is done (`run_contract.py`), or what a gate's verdict leads to (`machine.py`).
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
from kfm_dagster.run_state.inputs_hash import inputs_hash
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import ErrorClass
from kfm_dagster.stages.lifecycle import StageLifecycle
from kfm_dagster.stages.machine import GateDecision
from kfm_dagster.stages.node import StageNode
from kfm_dagster.stages.port import RunStateKey, RunStatePort
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.measures import StepVolume

Judged = tuple[list[Envelope], GateDecision]
"""A batch with the units at fault marked, and what the gates said of it."""


@dataclass(kw_only=True)
class StagedNode:
    """A node in a stage: `StageRunner.run` computes it, or finds it `skipped`, and `StageRunner.commit` stores it."""

    node: StageNode
    run_id: str
    received: StageBatch | None
    """What the node before handed on; the first node of a chain has none."""
    lifecycle: StageLifecycle
    port: RunStatePort

    skipped: StageBatch | None = None
    """The earlier output, where there was nothing to do."""
    content: Content | None = None
    intent: Intent | None = None
    attempt: StageAttempt | None = None
    unlocked: str | None = None
    """Why the clock was not right enough to write by, where the card lets that restrict the output."""
    made: Judged | None = field(default=None, repr=False)
    batch: StageBatch | None = field(default=None, repr=False)
    """The output, once it is stored."""

    @property
    def name(self) -> str:
        """The node's."""
        return self.node.name

    @property
    def kind(self) -> str:
        """The node's."""
        return self.node.kind

    @property
    def step(self) -> str:
        """The node's."""
        return self.node.step

    @property
    def decision(self) -> GateDecision | None:
        """What the gates said of what was computed; None before that, and of what was skipped."""
        return self.made and self.made[1]

    @cached_property
    def key(self) -> RunStateKey:
        """What run-state has of it: its id, the run, and the hash of what it consumes within the run."""
        given = [self.received.reference] if self.received else []
        digest = inputs_hash([*self.node.references(), *given], self.params())
        return RunStateKey(dataset_id=self.kind, run_id=self.run_id, inputs_hash=digest)

    @property
    def labels(self) -> Mapping[str, str]:
        """What the failpoints reached in the stage are labelled with."""
        dataset, _, operator = self.kind.rpartition(".")
        partition = self.name.partition("@")[2]
        return {"dataset": dataset, "operator": operator, "partition": partition, "run": self.run_id}

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return what the node consumes, and the batch."""
        given = self.received and self.received.reference
        return [*self.node.inputs(), *([ManifestEntry(uri=given.uri, checksum=given.checksum)] if given else [])]

    def params(self) -> Mapping[str, Any]:
        """Return the node's parameters and the gates of the card, which decide as they do what leaves the chain."""
        return {**self.node.params(), "card_gates": self.lifecycle.card.gates.model_dump(mode="json")}

    def context(self) -> Mapping[str, Any]:
        """Return the node's context and the key of its run-state."""
        return {**self.node.context(), "dataset_id": self.kind, "run_id": self.run_id}

    def transform(self) -> Judged:
        """Compute, and have the gates judge it. Raises StageStoppedError."""
        with self.node.working():
            computed = transformed(self.node)
            return self.lifecycle.evaluate_gates(self.node, computed)

    def apply(self, tx: Transaction, made: Judged, /) -> Effect:
        """Store the batch and record what came of it, with the node's own tables."""
        computed, decision = made
        envelopes = self.node.apply(tx, computed)
        summary = self._with_gates(self.node.summarize(envelopes), made)
        kept = self.port.keep(self.key, envelopes, summary, tx=tx)
        self.batch = replace(kept, decision=_evaluated(decision))
        volume = StepVolume(rows_out=len(envelopes), bytes_out=kept.stored_bytes)
        if self.received is not None:
            volume = replace(volume, rows_in=len(self.received.envelopes), bytes_in=self.received.stored_bytes)
        claimed = self.node.claimed(envelopes)
        lineage = self._lineage(kept, claimed)
        return Effect(record=_record_of(kept), lineage=lineage, volume=volume, claimed=claimed)

    def _lineage(self, kept: StageBatch, claimed: ManifestEntry | None) -> dict[str, Any]:
        """Return PROV-O nodes: the output, and what it was made from, under the digest by which another output has it.

        From the content, as it was hashed: a node that lists a bucket would find another one by now.
        """
        # The ledger is asked before the claim, and answers with it.
        entries = (*(self.content.inputs if self.content else ()), *((claimed,) if claimed else ()))
        found = {entry.uri: entry for entry in entries}
        sources = {_entity(entry): entry for entry in found.values()}
        output = {
            "id": f"urn:sha256:{kept.state.artifact_sha256}",
            "type": ["Entity", "kfm:StageOutput"],
            "kfm:node": self.name,
            "wasDerivedFrom": sorted(sources),
        }
        made_from = [
            {"id": one, "type": ["Entity", "kfm:Content"], "kfm:uri": entry.uri}
            for one, entry in sorted(sources.items())
        ]
        return {"prov": [output, *made_from]}

    def _with_gates(self, summary: ValidationSummary, made: Judged) -> ValidationSummary:
        """Count the units that a gate made leave as failed, and say what restricts the output."""
        envelopes, decision = made
        left = sum(1 for unit in envelopes if unit.gate_issues and unit.wal_id in decision.leaving)
        why: set[str] = {
            *decision.restricted,
            *(self.received.restricted if self.received else ()),
            *({ErrorClass.E_SYNC.value} if self.unlocked else ()),
        }
        extra = {**summary.extra, **({"restricted": sorted(str(one) for one in why)} if why else {})}
        return replace(summary, passed=summary.passed - left, failed=summary.failed + left, extra=extra)


def _entity(entry: ManifestEntry) -> str:
    return entry.uri if entry.checksum is None else f"urn:sha256:{entry.checksum}"


def _evaluated(decision: GateDecision) -> GateDecision | None:
    """Return a decision for the next stage to rely on, unless no gate had anything to look at."""
    return decision if any(verdict.applies for verdict in decision.verdicts) else None


def _record_of(batch: StageBatch) -> dict[str, Any]:
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
