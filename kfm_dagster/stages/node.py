"""The node of a stage: an idempotent node over a batch, with default methods.

Does not belong here: the protocol of nodes (`idempotent_node/node.py`), or the chain (`ingest/node.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.run_state.record import InputReference, ValidationSummary
from kfm_dagster.stages.audit import AuditEvent
from kfm_dagster.stages.gates.verdict import Verdict
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction


class StageNode(ABC):
    """An operator over a dataset's batch; the stage adds the batch to the node's inputs."""

    leaves_effects: ClassVar[bool] = False
    """Whether `transform` has effects outside the database; a gate then cannot remove single units.

    Repeating `transform` gives the same effects, and `compensate` undoes them.
    """
    step: ClassVar[str] = "commit"
    """Name of the effect (`IdempotentNode.step`)."""
    received: Sequence[Envelope]
    """The upstream node's batch; empty for a chain's first node. The stage sets it before any call."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Node id of run-state: `<dataset>.<operator>`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Key of the node's checkpoint: `<kind>@<UTC day>`."""

    @abstractmethod
    def params(self) -> Mapping[str, Any]:
        """Return every setting that changes the result."""

    @abstractmethod
    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        """Return the gates' verdicts on a batch that this or the upstream node made (kind: `of`)."""

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return the node's inputs besides the batch."""
        return ()

    def references(self) -> Sequence[InputReference]:
        """Return the inputs that run-state compares within a run, besides the batch."""
        return [InputReference(uri=entry.uri, checksum=entry.checksum) for entry in self.inputs()]

    def context(self) -> Mapping[str, Any]:
        """Return further values that a replay needs to rebuild the node; they change no result."""
        return {}

    def unlocked(self) -> str | None:
        """Return why the clock is not locked (E_SYNC), or None if it is locked."""
        return None

    def working(self) -> AbstractContextManager[None]:
        """Return a context that renews the run's leases; by default, one without effect."""
        return nullcontext()

    def transform(self) -> list[Envelope]:
        """Compute the output; by default the unchanged batch."""
        return list(self.received)

    def apply(self, tx: Transaction, computed: list[Envelope], /) -> list[Envelope]:  # noqa: ARG002, a default
        """Write the node's own tables in the stage's commit; return the batch to store."""
        return computed

    def compensate(self, *, tx: Transaction) -> Mapping[str, Any] | None:  # noqa: ARG002, a default
        """Undo the effects of `transform`; return a summary, or None if this is impossible.

        Rows change in the caller's transaction; the call may be repeated until that transaction is committed.
        """
        return {}

    def count_owned(self, tx: Transaction) -> int:  # noqa: ARG002, a default
        """Lock this run's claimed units until the transaction ends; return their number.

        The effects of these units can be undone, because no other run relies on the effects.
        """
        return len(self.received)

    def holds_units(self, tx: Transaction) -> bool:  # noqa: ARG002, a default
        """Return whether the run still claims a unit; without a claim no stage of the run has work."""
        return True

    def can_reuse_output(self, tx: Transaction) -> bool:  # noqa: ARG002, a default
        """Return whether an earlier run's output for the same content may be reused."""
        return True

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the node's checks over the stored batch."""
        return ValidationSummary(checks=len(batch), passed=len(batch), failed=0)

    def claimed(self, batch: Sequence[Envelope]) -> ManifestEntry | None:  # noqa: ARG002, a default
        """Return an entry for the units that `apply` claimed, with their records' versions, or None."""
        return None

    def audit_lines(self, attempt: StageAttempt) -> Sequence[AuditEvent]:  # noqa: ARG002, a default
        """Return this node's audit lines; called after `apply`."""
        return ()

    def after_commit(self, batch: Sequence[Envelope]) -> None:  # noqa: B027, a default
        """Act after the stage's commit. If this process dies here, the call is not repeated."""
