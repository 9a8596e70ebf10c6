"""Re-executions: which runs of Dagster share a root run, and when each was at work.

Run-state and intents are kept under the root run's id; which re-execution a person means is known to Dagster alone.
Belongs here: what is asked of it. Does not belong here: how Dagster answers (`defs/reexecutions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Reexecution:
    """A run that another run's id stands for. `started_at` None: it waits; `ended_at` None: it is at work."""

    run_id: str
    root_run_id: str
    started_at: datetime | None
    ended_at: datetime | None


class Reexecutions(Protocol):
    """Where runs are kept. Both raise DatabaseUnavailableError where that is there and cannot be read."""

    def beginning(self, beginning: str, *, limit: int) -> Sequence[Reexecution]:
        """Return the re-executions whose id begins so, by id, `limit` at most."""
        ...

    def of(self, root_run_id: str) -> Sequence[Reexecution]:
        """Return the re-executions of a run, oldest first."""
        ...
