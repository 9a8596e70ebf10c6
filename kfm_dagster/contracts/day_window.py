"""Day window: the UTC days that a deployment takes units of. A value; who keeps it is `ingest/window.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

AHEAD = timedelta(days=1)
"""A unit may be of tomorrow: two machines' clocks differ, and its run comes when the day has begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DayWindow:
    """From the first day of the partitions to the day after `today`, both included."""

    first: date
    today: date

    def holds(self, day: date, *, announced: datetime) -> bool:
        """Tell whether a unit of that day may come in, which was announced then.

        A clock that is behind loses nothing: what is of the future here, and not where it was announced, is held.
        """
        # The day is moved, not the others: an announcement may be of the calendar's last day.
        return self.first <= day and day - AHEAD <= max(self.today, announced.date())
