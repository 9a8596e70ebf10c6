"""The node: hourly means, extremes and counts per place, from the landed observations of the hour.

Belongs here: the members of `IdempotentNode` and `ReadsBack`. Does not belong here: landing deliveries (`landing.py`),
and running the node (`running.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from docs.examples.atmo_window.duck import from_parquet, session, table, to_parquet
from docs.examples.atmo_window.landing import Landed
from docs.examples.atmo_window.sites import DATASET
from docs.examples.atmo_window.window import Window
from kfm_dagster.governance.log import GovernanceLog
from kfm_dagster.governance.masking import MaskingDecision
from kfm_dagster.idempotent_node import Effect, Intent, ManifestEntry
from kfm_dagster.run_state import InputReference, Outcome, RunState, RunStateStore, ValidationSummary, inputs_hash
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.measures import StepVolume

KIND = f"{DATASET}.window"


def checkpoint_of(window: Window) -> str:
    """Return the key of a window's checkpoint, which names its newest version."""
    return f"{KIND}@{window.name}"


def _nothing(moment: str) -> None:
    """Ignore a moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """Tools of a node. `reached` is called at each moment at which a caller may end the run."""

    landing: Artifacts
    outputs: Artifacts
    run_states: RunStateStore
    log: GovernanceLog
    clock: Callable[[], datetime]
    reached: Callable[[str], None] = field(default=_nothing)


@dataclass(frozen=True, kw_only=True, slots=True)
class AtmoWindow:
    """A window of a run. It has neither the location nor the id of a sensitive station."""

    window: Window
    landed: Sequence[Landed]
    decisions: Sequence[MaskingDecision]
    run_id: str
    tools: Tools

    @property
    def name(self) -> str:
        """Key of the checkpoint; each hour has its own."""
        return checkpoint_of(self.window)

    @property
    def dataset_id(self) -> str:
        """Node of run-state; it names the hour, so that a run may have several hours."""
        return f"{KIND}.{self.window.name.lower()}"

    @property
    def kind(self) -> str:
        """The same for every hour."""
        return KIND

    @property
    def step(self) -> str:
        """The node's only effect."""
        return "aggregate"

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return the landed objects, named by place and distinguished by the hash of the masked bytes."""
        return [landed.entry for landed in self.landed]

    def params(self) -> Mapping[str, Any]:
        """Return the window and the masking of sites: both change the result."""
        masking = {decision.method: dict(decision.parameters) for decision in self.decisions}
        return {**self.window.bounds(), "masking": masking}

    def context(self) -> Mapping[str, Any]:
        """Return the addresses of the inputs, and who requested the masks; neither changes the result."""
        return {
            "run_id": self.run_id,
            "landed": {landed.entry.uri: landed.reference.uri for landed in self.landed},
            "decisions": [decision.as_json() for decision in self.decisions],
        }

    @classmethod
    def rebuilt(cls, intent: Intent, tools: Tools) -> AtmoWindow:
        """Rebuild the node from its intent alone, for a replay."""
        payload, context = intent.payload, intent.payload["context"]
        entries = [ManifestEntry(**entry) for entry in payload["inputs"]]
        return cls(
            window=Window.named(payload["params"]["start"]),
            landed=[
                Landed(
                    entry=entry,
                    reference=ArtifactReference(uri=context["landed"][entry.uri], sha256=str(entry.checksum)),
                )
                for entry in entries
            ],
            decisions=[MaskingDecision.from_json(decision) for decision in context["decisions"]],
            run_id=context["run_id"],
            tools=tools,
        )

    def transform(self) -> Effect:
        """Compute the window in DuckDB, and store it under the hash of its bytes."""
        self.tools.reached("intent")
        slices = [from_parquet(self.tools.landing.get(landed.reference)) for landed in self.landed]
        with session() as connection:
            connection.register("observations", pa.concat_tables(slices))
            rows = table(connection, "window")
        content = to_parquet(rows)
        stored = self.tools.outputs.put(content, suffix="parquet")
        self.tools.reached("output")
        record = {
            "window": self.window.bounds(),
            "artifact": {"uri": stored.uri, "sha256": stored.sha256},
            "places": rows.num_rows,
            "observations": pc.sum(rows["observations"]).as_py(),
            "suspect": pc.sum(rows["suspect"]).as_py(),
        }
        volume = StepVolume(rows_in=record["observations"], rows_out=rows.num_rows, bytes_out=len(content))
        return Effect(record=record, lineage=self._lineage(stored), volume=volume)

    def verify(self, effect: Effect) -> None:
        """Read the stored window back. Raises ArtifactError."""
        self.tools.outputs.get(ArtifactReference(**effect.record["artifact"]))

    def apply(self, tx: Transaction, effect: Effect) -> Effect:
        """Write the run-state and the masking decisions, in the transaction that makes the window APPLIED."""
        record = effect.record
        summary = ValidationSummary(
            checks=record["observations"],
            passed=record["observations"] - record["suspect"],
            failed=record["suspect"],
        )
        outcome = Outcome.SUCCESS if summary.failed == 0 else Outcome.PARTIAL
        self.tools.run_states.put(self.state(outcome, summary, record["artifact"]), tx)
        for decision in self.decisions:
            details = {"node": self.name, "output_sha256": record["artifact"]["sha256"]}
            decision.record(self.tools.log, tx=tx, details=details)
        return effect

    def state(
        self, outcome: Outcome, summary: ValidationSummary, artifact: Mapping[str, str] | None = None
    ) -> RunState:
        """Return this run's record."""
        return RunState(
            dataset_id=self.dataset_id,
            run_id=self.run_id,
            lakefs_branch="main",
            inputs_hash=self.inputs_hash,
            validation_summary=summary.as_json(),
            outcome=outcome,
            recorded_at=self.tools.clock(),
            artifact_uri=None if artifact is None else artifact["uri"],
            artifact_sha256=None if artifact is None else artifact["sha256"],
        )

    @property
    def inputs_hash(self) -> str:
        """The hash that run-state compares within a run."""
        references = [InputReference(uri=entry.uri, checksum=entry.checksum) for entry in self.inputs()]
        return inputs_hash(references, self.params())

    def _lineage(self, stored: ArtifactReference) -> dict[str, Any]:
        """Return PROV-O nodes: the output, its sources, and their masking."""
        uris = sorted(entry.uri for entry in self.inputs())
        output = {"id": f"urn:sha256:{stored.sha256}", "type": ["Entity", "kfm:AtmoWindow"], "wasDerivedFrom": uris}
        nodes: list[dict[str, Any]] = [output]
        for decision in self.decisions:
            group = f"urn:kfm:masked:{DATASET}:{decision.method}:"
            nodes += decision.prov_nodes([uri for uri in uris if uri.startswith(group)])
        return {"prov": nodes}
