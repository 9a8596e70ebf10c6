"""Runs that are asked for and that Dagster may not know yet.

Dagster launches what a sensor's tick asked for one by one after the tick, which takes seconds a run. A second sensor
that looks meanwhile sees the same units waiting and no run that comes for them; what it asks for finds nothing left.
Here each sensor says what it asked for, until its next tick: Dagster evaluates no sensor again before it has launched
all that the tick before asked for.

Kept in the process that evaluates the sensors. Where it is lost, or there are several, a run may find nothing to claim;
nothing else follows. Does not belong here: which runs are needed (`plan.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock

from kfm_dagster.contracts.envelope import Lane

FORGOTTEN_AFTER = timedelta(minutes=10)
"""A sensor that was stopped after a tick has no next one: what waits must not wait for it for ever."""


@dataclass(frozen=True)
class RequestedRuns:
    """What the last tick of each sensor asked for, by partition and lane. Hold `lock` from looking until `tell`."""

    lock: Lock = field(default_factory=Lock)
    _of: dict[str, tuple[datetime, Counter[tuple[str, Lane]]]] = field(default_factory=dict)

    def record(self, sensor: str, runs: Iterable[tuple[str, Lane]], *, at: datetime) -> None:
        """Say which runs a tick asks for; they take the place of what the sensor's last tick asked for."""
        self._of[sensor] = (at, Counter(runs))

    def by_others(self, sensor: str, *, at: datetime) -> Counter[tuple[str, Lane]]:
        """Count the runs that the other sensors' last ticks asked for."""
        found = (runs for name, (asked, runs) in self._of.items() if name != sensor and at - asked < FORGOTTEN_AFTER)
        return sum(found, Counter())
