"""Process state: what a process that ticks, or works stages, remembers between two of them.

Where it is lost, or there are several processes, a question is asked again; nothing else follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.ingest.preflight import hold_roots, preflight
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.read_ahead import ReadAhead

FORGOTTEN_AFTER = timedelta(minutes=10)
"""A sensor that was stopped after a tick has no next one: what waits must not wait for it for ever."""


@dataclass(frozen=True)
class RequestedRuns:
    """What the last tick of each sensor asked for, by partition and lane. Hold `lock` from looking until `record`.

    Dagster launches what a sensor's tick asked for one by one after the tick, which takes seconds a run. A second
    sensor that looks meanwhile sees the same units waiting and no run that comes for them; what it asks for finds
    nothing left. Each sensor's requests stay here until its next tick: Dagster evaluates no sensor again before it has
    launched all that the tick before asked for. Does not belong here: which runs are needed (`plan.py`).
    """

    lock: Lock = field(default_factory=Lock)
    _of: dict[str, tuple[datetime, Counter[tuple[str, Lane]]]] = field(default_factory=dict)

    def record(self, sensor: str, runs: Iterable[tuple[str, Lane]], *, at: datetime) -> None:
        """Say which runs a tick asks for; they take the place of what the sensor's last tick asked for."""
        self._of[sensor] = (at, Counter(runs))

    def by_others(self, sensor: str, *, at: datetime) -> Counter[tuple[str, Lane]]:
        """Count the runs that the other sensors' last ticks asked for."""
        found = (runs for name, (asked, runs) in self._of.items() if name != sensor and at - asked < FORGOTTEN_AFTER)
        return sum(found, Counter())


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
