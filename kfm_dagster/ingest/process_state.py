"""Process state: the memory of a process between two ticks or stages.

If it is lost, or if several processes have their own, a check is only repeated.
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
"""Lifetime of a tick's requests: a stopped sensor has no next tick, and units must not wait for it for ever."""


@dataclass(frozen=True)
class RequestedRuns:
    """Runs requested by the last tick of each sensor, by partition and lane.

    Dagster launches the requested runs one by one after the tick, which takes seconds a run. Meanwhile a second sensor
    sees the same units pending without a run, and would request runs that find no units. Each sensor's requests stay
    here until its next tick: Dagster evaluates a sensor again only after launching all requests of its last tick. Hold
    `lock` from reading until `record`. Does not belong here: planning (`plan.py`).
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
    intents: set[int] = field(default_factory=set)
    """Failed intents that were revisited."""
    unleased: dict[str, datetime] = field(default_factory=dict)
    """Times since which runs without a lease, unknown to Dagster, have been seen."""
    read_ahead: dict[str, ReadAhead] = field(default_factory=dict)
    """First bytes of each dataset's objects from integrity-check, until metadata-extract takes them."""
    feeds_due: datetime | None = None
    """Time of the next check of the feeds (`feed_watch.py`); None: at once."""
    ready: bool = False
    """Whether the last preflight succeeded (`preflight.py`)."""
    held: bool = False
    """Whether the roots are marked as this deployment's."""

    def ensure_ready(self, settings: Settings, database: Database) -> None:
        """Check the stores until a preflight succeeds. Raises PreflightError and ForeignRootError.

        Without the queue: receiving from a queue that is missing or refuses reports the error and receives nothing.
        """
        if not self.ready:
            preflight(settings)
            self.hold_roots(settings, database)
            self.ready = True

    def hold_roots(self, settings: Settings, database: Database) -> None:
        """Mark the roots as this deployment's, once. Raises the errors of `preflight.hold_roots`."""
        if not self.held:
            hold_roots(settings, database)
            self.held = True
