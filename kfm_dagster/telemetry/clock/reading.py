"""Readings: what one source says of this machine's clock, and the arithmetic of an HTTP Date (pure).

Offsets are seconds of true time minus this clock: a clock that is behind has a positive one, as the kernel and NTP
(RFC 5905) have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum, unique

from kfm_dagster.errors import KfmError

KERNEL = "kernel"
"""Source of the kernel's own readings; any other source is a server."""

DATE_RESOLUTION_SECONDS = 1.0
"""An HTTP Date has whole seconds (RFC 9110, 5.6.7), and servers leave the rest of the second out."""


class UnusableDateError(KfmError):
    """An answer's Date tells no time."""


@unique
class ClockState(StrEnum):
    """Whether a clock is kept right."""

    LOCKED = "locked"
    UNLOCKED = "unlocked"
    UNKNOWN = "unknown"
    """Nobody can tell: a server's Date tells an offset, and not whether anything keeps this clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockReading:
    """What one source says at one time; `at` by the clock that is read.

    Offset and uncertainty are seconds, both or neither: the true offset is within offset +- uncertainty. `state` is the
    source's own word, before any rule.
    """

    at: datetime
    source: str
    offset_seconds: float | None
    uncertainty_seconds: float | None
    state: ClockState

    @property
    def delta_t_abs(self) -> float | None:
        """Absolute time error in seconds (the card's KPI); None where no offset is known."""
        return None if self.offset_seconds is None else abs(self.offset_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetInterval:
    """Where an offset lies: seconds, low <= high, both included."""

    low: float
    high: float

    @property
    def midpoint(self) -> float:
        """Best estimate, in seconds."""
        return (self.low + self.high) / 2

    @property
    def half_width(self) -> float:
        """Uncertainty, in seconds."""
        return (self.high - self.low) / 2

    def intersection(self, other: OffsetInterval) -> OffsetInterval | None:
        """Return what both allow; None when they contradict each other, as after a step of the clock.

        This is how NTP combines sources (RFC 5905, 11.2.1): what is true lies in every correct interval.
        """
        low, high = max(self.low, other.low), min(self.high, other.high)
        return OffsetInterval(low=low, high=high) if low <= high else None


def offset_from_date(date_header: str, *, sent_at: datetime, received_at: datetime) -> OffsetInterval:
    """Return where the offset lies, from a Date that a server set between sending and receiving by this clock.

    The server's time was within [date, date + 1 s), this clock's within [sent_at, received_at]. Raises
    UnusableDateError for a header that is no date, and for an answer that came before its question: the clock was set
    meanwhile.
    """
    if received_at < sent_at:
        raise UnusableDateError(
            "the clock was set back while an answer was on its way",
            observed=f"sent {sent_at.isoformat()}, received {received_at.isoformat()}",
            expected="an answer after its question",
        )
    date = _parsed(date_header)
    return OffsetInterval(
        low=(date - received_at).total_seconds(),
        high=(date - sent_at).total_seconds() + DATE_RESOLUTION_SECONDS,
    )


def _parsed(date_header: str) -> datetime:
    try:
        date = parsedate_to_datetime(date_header)
        # HTTP means UTC; two of its three forms say so in a way that the parser takes for no zone at all.
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        raise UnusableDateError(observed=repr(date_header[:100]), expected="an HTTP date (RFC 9110, 5.6.7)") from None
