"""A stage's output: the batch's envelopes, its run-state record, and the cause of a skip.

Belongs here: the value. Does not belong here: its production (`run_contract.py`), or its stored form
(`envelope_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from functools import cached_property
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.run_state.record import InputReference, RunState
from kfm_dagster.stages.envelope_table import Column
from kfm_dagster.stages.machine import GateDecision


@unique
class SkipCause(StrEnum):
    """The reason for skipping a node."""

    ALREADY_SUCCEEDED = "ALREADY_SUCCEEDED"
    """This node ended in this run with the same inputs: all units passed, or the run has no claim any more."""
    OTHER_INPUTS = "OTHER_INPUTS"
    """This node ended in this run with other inputs, and the run has no claim any more. A replay applies
    the new inputs (`kfm replay run`)."""
    CONTENT_APPLIED = "CONTENT_APPLIED"
    """An earlier run applied exactly this content: the same inputs, parameters and code."""


class StoredEnvelopes(Sequence[Envelope]):
    """A stored batch that is read on first access; its number of units is known without reading."""

    def __init__(self, units: int, load: Callable[[], list[Envelope]]) -> None:
        self._units = units
        self._load = load

    def __len__(self) -> int:
        return self._units

    def __getitem__(self, index: Any) -> Any:
        return self._envelopes[index]

    @cached_property
    def _envelopes(self) -> list[Envelope]:
        return self._load()


@dataclass(frozen=True, kw_only=True)
class StageBatch:
    """A node's output: envelopes, its record in run-state, and the cause of a skip."""

    envelopes: Sequence[Envelope]
    state: RunState
    skipped: SkipCause | None = None
    applied_by: str | None = None
    """Run whose output a skip for CONTENT_APPLIED reuses."""
    stored_bytes: int | None = None
    """Size of the stored output; None if an earlier release stored it."""
    decision: GateDecision | None = field(default=None, compare=False)
    """The gates' decision, for the stage that computed the batch and for the next stage; None for a stored batch."""
    columns: Sequence[Column] = field(default=(), compare=False, repr=False)
    """The encoded envelopes, for the next stage; empty for a stored batch."""

    @property
    def restricted(self) -> tuple[str, ...]:
        """The reasons for [Restricted]: failed gates that stopped no stage so far, and E_SYNC."""
        return tuple(self.state.validation_summary.get("restricted", ()))

    @property
    def reused(self) -> bool:
        """Whether an earlier run computed this output from exactly the same content."""
        return self.skipped is SkipCause.CONTENT_APPLIED

    @property
    def reused_whole(self) -> bool:
        """Whether this is a reused output whose units all passed; it need not be read again."""
        passed = self.state.validation_summary.get("passed")
        return self.reused and passed == len(self.envelopes)

    @property
    def reference(self) -> InputReference:
        """The output as an input of the next node."""
        return InputReference(uri=str(self.state.artifact_uri), checksum=self.state.artifact_sha256)
