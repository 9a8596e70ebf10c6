"""Readings: what one source says of this machine's clock.

Offsets are seconds of true time minus this clock: a clock that is behind has a positive one, as the kernel and NTP
(RFC 5905) have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique

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
    """What one source says at one time; `at` by the clock that is read.

    Offset and uncertainty are seconds, both or neither: the true offset is within offset +- uncertainty. `state` is the
    source's own word, before any rule.
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
