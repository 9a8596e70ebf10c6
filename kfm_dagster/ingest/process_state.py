"""Process state: what a process that ticks, or works stages, remembers between two of them.

Where it is lost, or there are several processes, a question is asked again; nothing else follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from kfm_dagster.ingest.preflight import hold_roots, preflight
from kfm_dagster.ingest.requested_runs import RequestedRuns
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.read_ahead import ReadAhead


@dataclass(kw_only=True)
class ProcessState:
    """The memory of one process over one deployment."""

    requested: RequestedRuns = field(default_factory=RequestedRuns)
    """The runs that the sensors' last ticks asked for."""
    intents: set[int] = field(default_factory=set)
    """Failed intents that were revisited."""
    unleased: dict[str, datetime] = field(default_factory=dict)
    """Since when runs without a lease have been seen that Dagster does not know."""
    read_ahead: dict[str, ReadAhead] = field(default_factory=dict)
    """What integrity-check read of each dataset's objects, until metadata-extract takes it."""
    feeds_due: datetime | None = None
    """When the feeds are looked at next (`feed_watch.py`); None: at once."""
    ready: bool = False
    """Whether the stores took what was written when they were last asked (`preflight.py`)."""
    held: bool = False
    """Whether the roots are marked as this deployment's."""

    def ensure_ready(self, settings: Settings, database: Database) -> None:
        """Ask the stores once, and again until all is well. Raises PreflightError and ForeignRootError.

        The queue is not asked: receiving from one that is not there, or that refuses, receives nothing and says so.
        """
        if not self.ready:
            preflight(settings)
            self.hold_roots(settings, database)
            self.ready = True

    def hold_roots(self, settings: Settings, database: Database) -> None:
        """Mark the roots as this deployment's, once. Raises what `preflight.hold_roots` does."""
        if not self.held:
            hold_roots(settings, database)
            self.held = True
