"""What a stage runs: the protocol of a node. Does not belong here: the operators' nodes (`ingest/node.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.run_state.inputs_hash import InputReference
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.stages.audit import AuditEvent
from kfm_dagster.stages.gates.verdict import Verdict
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction


class Node(Protocol):
    """What a stage runs: one operator over the batch of one dataset."""

    @property
    def dataset_id(self) -> str:
        """Node id of run-state: `<dataset>.<operator>`."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """What the seams reached in this stage are labelled with."""
        ...

    @property
    def checkpoint(self) -> str:
        """Key of the node's checkpoint: `<dataset_id>@<partition>`."""
        ...

    def inputs(self) -> Sequence[InputReference]:
        """Return what the node consumes, besides the batch."""
        ...

    def manifest(self) -> Sequence[ManifestEntry]:
        """Return what of the node's inputs is content, besides the batch: it tells two runs apart, or does not."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Return every setting that changes the result, as JSON values."""
        ...

    def context(self) -> Mapping[str, Any]:
        """Return what running the node again needs and that changes no result, as JSON values."""
        ...

    def finished(self, tx: Transaction) -> bool:
        """Tell whether nothing is in work that an earlier output for the same content names, so it may be handed on."""
        ...

    def working(self, batch: Sequence[Envelope]) -> AbstractContextManager[None]:
        """Hold on, for as long as the block lasts, to what the run must not lose while it computes from a batch."""
        ...

    @property
    def partition(self) -> str:
        """What part of the dataset it works on, e.g. a UTC day."""
        ...

    @property
    def window(self) -> str:
        """The time that its inputs are of, as an ISO 8601 interval."""
        ...

    @property
    def leaves_effects(self) -> bool:
        """Whether `compute` changes something outside the database: no unit can leave alone after that."""
        ...

    def unlocked(self) -> str | None:
        """Say why the clock is not right enough to write by, or None when it is (pipeline card: E_SYNC)."""
        ...

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        """Judge the output of a node (`of`, its dataset_id) by every gate: this one's own, or what it was given."""
        ...

    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        """Undo what `compute` has left behind; return what that was, or None when it cannot be undone.

        With `tx` the database's part joins the caller's transaction; then it may be repeated until that is committed.
        """
        ...

    def held(self, batch: Sequence[Envelope], tx: Transaction) -> int:
        """Return how many units are still the run's, and keep them so until the transaction ends.

        Nobody else may rely on what was done for these. Units of a node that leaves no effects count as held.
        """
        ...

    def told(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Return the lines of audit that are the node's own, once `apply` is done."""
        ...

    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        """Enrich the batch. External effects made here must converge when the call is repeated."""
        ...

    def verify(self, batch: Sequence[Envelope]) -> None:
        """Read back what `compute` left outside the database. Raises KfmError when it is not there as written."""
        ...

    def apply(self, tx: Transaction, batch: list[Envelope]) -> list[Envelope]:
        """Make the ledger's part durable in the stage's transaction; return the batch as it is stored."""
        ...

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the checks of this node over the batch."""
        ...

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        """Do what may only happen once the stage is durable; another process repeats it when this one dies here."""
        ...
