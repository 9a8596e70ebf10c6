"""Readings of this machine's clock, and their append-only record (`clock_readings`).

Offsets are seconds of true time minus this clock: positive for a slow clock, as in the kernel and NTP (RFC 5905).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum, unique
from pathlib import Path

from kfm_dagster.storage.database import Database

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RECENT = 10_000
"""Most readings per query: five weeks of a run every five minutes."""

KERNEL = "kernel"
"""Source of the kernel's own readings; any other source is a server."""


@unique
class ClockState(StrEnum):
    """Whether a clock is kept right."""

    LOCKED = "locked"
    UNLOCKED = "unlocked"
    UNKNOWN = "unknown"
    """A server's Date gives an offset, and not whether anything keeps this clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockReading:
    """The reading of one source at one time; `at` is by the clock under test.

    Offset and uncertainty are seconds, both or neither: the true offset is within offset +- uncertainty. `state` is as
    reported by the source, before any rule.
    """

    at: datetime
    source: str
    offset_seconds: float | None = None
    uncertainty_seconds: float | None = None
    state: ClockState

    @property
    def delta_t_abs(self) -> float | None:
        """Absolute time error in seconds (the card's KPI); None where no offset is known."""
        return None if self.offset_seconds is None else abs(self.offset_seconds)


def clock_id() -> str:
    """Return the id of this kernel's clock since boot; `unknown` where the kernel has none.

    Containers of one machine share its clock and this id; workers of one database do not share a clock, and none may
    trust another's readings. The id is random and reveals nothing about the machine.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"


class ClockLog:
    """Readings of one clock only, by default this machine's since boot."""

    def __init__(self, database: Database, *, clock: str | None = None) -> None:
        self._database = database
        self._clock = clock_id() if clock is None else clock

    def record(self, readings: Iterable[ClockReading]) -> None:
        """Record readings, in their order."""
        with self._database.transaction() as tx:
            tx.run_many("clock.record", [{"clock_id": self._clock, **asdict(reading)} for reading in readings])

    def recent(self, *, since: datetime, limit: int = RECENT) -> tuple[ClockReading, ...]:
        """Return the last `limit` readings since `since`, in the order of measurement."""
        with self._database.snapshot() as tx:
            readings = tx.rows(ClockReading, "clock.recent", clock_id=self._clock, since=since, limit=limit)
        return tuple(reversed(readings))
