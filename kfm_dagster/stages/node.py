"""What a stage runs: an idempotent node over a batch of envelopes, and what one may be able to do besides.

A stage asks for each ability by `isinstance`, so that a node declares what it has and nothing else. Does not belong
here: the protocol of a node (`idempotent_node/node.py`), or the nodes of the chain (`ingest/node.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.idempotent_node.node import IdempotentNode
from kfm_dagster.run_state.inputs_hash import InputReference
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.stages.audit import AuditEvent
from kfm_dagster.stages.gates.verdict import Verdict
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction

StageNode: TypeAlias = IdempotentNode[list[Envelope], list[Envelope]]
"""One operator over the batch of one dataset. Its kind is its id in run-state, `<dataset>.<operator>`, and its name
`<kind>@<UTC day>`; a stage adds the batch that it is given to its inputs."""


@runtime_checkable
class Receives(Protocol):
    """A node that works on the batch of the node before it."""

    received: Sequence[Envelope]
    """That batch; empty for the first node of a chain. The stage sets it before it asks for anything."""


@runtime_checkable
class RefersToInputs(Protocol):
    """A node of which run-state compares something else within a run than its inputs."""

    def references(self) -> Sequence[InputReference]:
        """Return what that is, besides the batch."""
        ...


@runtime_checkable
class Gated(Protocol):
    """A node of which the pipeline card asks something: gates, and a clock that is right."""

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        """Judge the output of a node (`of`, its kind) by every gate: this one's own, or what it was given."""
        ...

    def unlocked(self) -> str | None:
        """Say why the clock is not right enough to write by, or None when it is (E_SYNC)."""
        ...


@runtime_checkable
class Leased(Protocol):
    """A node whose run must not lose something while it computes."""

    def working(self) -> AbstractContextManager[None]:
        """Hold on to that for as long as the block lasts."""
        ...


@runtime_checkable
class LeavesEffects(Protocol):
    """A node whose `transform` changes something outside the database: no unit can leave alone after that.

    What it changes must converge when the call is repeated.
    """

    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        """Undo what `transform` has left behind; return what that was, or None when it cannot be undone.

        With `tx` the database's part joins the caller's transaction; then it may be repeated until that is committed.
        """
        ...

    def count_owned(self, tx: Transaction) -> int:
        """Return how many units of the batch are still the run's, and keep them so until the transaction ends.

        Nobody else may rely on what was done for these.
        """
        ...


@runtime_checkable
class HoldsUnits(Protocol):
    """A node whose run claims units."""

    def holds_units(self, tx: Transaction) -> bool:
        """Tell whether a unit is still claimed by the run."""
        ...


@runtime_checkable
class ReusedWithCare(Protocol):
    """A node that an earlier run's output for the same content does not always do for."""

    def can_reuse_output(self, tx: Transaction) -> bool:
        """Tell whether it does, because nothing that it names is in work."""
        ...


@runtime_checkable
class Checking(Protocol):
    """A node that checks its units; those of any other have all passed."""

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the checks of this node over the batch as it is stored."""
        ...


@runtime_checkable
class Claims(Protocol):
    """A node that takes its batch from the ledger."""

    def claimed(self, batch: Sequence[Envelope]) -> ManifestEntry:
        """Name the units of the batch and their records' versions, of which intent and lineage say that it was made."""
        ...


@runtime_checkable
class Audited(Protocol):
    """A node of which the audit has lines besides those of every stage."""

    def audit_lines(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Return them, once `apply` is done."""
        ...


@runtime_checkable
class ActsAfterCommit(Protocol):
    """A node that has something to do which may only happen once the stage is durable."""

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        """Do it; another process repeats it when this one dies here."""
        ...
