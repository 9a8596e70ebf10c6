"""Exponential back-off: how long a delivery that failed waits for its next try."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

MOST_DOUBLINGS = 20
"""Beyond it every pause is the longest; a timedelta has no room for 2^40 of them."""


@dataclass(frozen=True, slots=True)
class DeliveryBackoff:
    """Pauses that double from the first to the longest."""

    first: timedelta
    longest: timedelta

    def pause(self, failures: int) -> timedelta:
        """Return the pause after so many failures in a row, at least 1."""
        doublings: int = 2 ** min(failures - 1, MOST_DOUBLINGS)
        return min(self.first * doublings, self.longest)


DELIVERY = DeliveryBackoff(timedelta(seconds=15), timedelta(minutes=10))
"""Of lineage and followers: an outage of a minute costs seconds, one of a day some 150 tries."""
