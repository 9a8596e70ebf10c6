"""Process state: the memory of a process between two ticks or stages.

If this memory is lost, or if each of several processes has its own, no result changes: checks and reads are repeated,
and some runs find no units.
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
"""Requested runs count for this time. Otherwise, if the sensor is stopped, units would wait for its runs for ever."""


@dataclass(frozen=True)
class RequestedRuns:
    """Runs requested by the last tick of each sensor, by partition and lane.

    After a tick, Dagster launches the requested runs one by one, which takes seconds per run. Meanwhile, another sensor
    would request runs for the same pending units, and these runs would have no units. So each sensor's requests are
    kept until its next tick, which Dagster starts only after launching them all. Hold `lock` from reading pending
    units until `record` returns. Does not belong here: planning (`plan.py`).
    """

    lock: Lock = field(default_factory=Lock)
    _of: dict[str, tuple[datetime, Counter[tuple[str, Lane]]]] = field(default_factory=dict)

    def record(self, sensor: str, runs: Iterable[tuple[str, Lane]], *, at: datetime) -> None:
        """Replace the requests of the sensor's last tick by its current requests."""
        self._of[sensor] = (at, Counter(runs))

    def by_others(self, sensor: str, *, at: datetime) -> Counter[tuple[str, Lane]]:
        """Count the runs that the other sensors' last ticks requested."""
        others = (runs for name, (then, runs) in self._of.items() if name != sensor and at - then < FORGOTTEN_AFTER)
        return sum(others, Counter())


@dataclass(kw_only=True)
class ProcessState:
    """The memory of a process about its deployment."""

    requested: RequestedRuns = field(default_factory=RequestedRuns)
    """The runs that the sensors' last ticks requested."""
    idle: Counter[str] = field(default_factory=Counter)
    """By sensor: the ticks since the last tick with work."""
    intents: set[int] = field(default_factory=set)
    """Failed intents that were examined already (`recovery/intents.py`)."""
    unleased: dict[str, datetime] = field(default_factory=dict)
    """By run: the time when a tick first found it without a lease and unknown to Dagster."""
    read_ahead: dict[str, ReadAhead] = field(default_factory=dict)
    """First bytes of each dataset's objects from integrity-check, until metadata-extract takes them."""
    feeds_due: datetime | None = None
    """Time of the next check for silences and drops (`feed_watch.py`); None: now."""
    ready: bool = False
    """Whether the last preflight (`preflight.py`) succeeded, and the landing zone has refused nothing since."""
    held: bool = False
    """Whether the roots are marked as roots of this deployment."""

    def ensure_ready(self, settings: Settings, database: Database) -> None:
        """Check the stores, unless `ready`. Raises PreflightError and ForeignRootError.

        The queue is not checked, because receiving from a missing or forbidden queue gives an error anyway.
        """
        if not self.ready:
            preflight(settings)
            self.hold_roots(settings, database)
            self.ready = True

    def hold_roots(self, settings: Settings, database: Database) -> None:
        """Call `preflight.hold_roots` once, and raise its errors."""
        if not self.held:
            hold_roots(settings, database)
            self.held = True
