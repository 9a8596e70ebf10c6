"""Day window: the UTC days that a deployment takes units of. A value; who keeps it is `ingest/window.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

AHEAD = timedelta(days=2)
"""A unit may be of one of the next days: two machines' clocks differ, and its run comes when the day has begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DayWindow:
    """From the first day of the partitions to AHEAD of `today`, both included."""

    first: date
    today: date

    def holds(self, day: date, *, sent_at: datetime | None) -> bool:
        """Return whether a unit of that day may come in, by a message that its queue received at `sent_at`.

        A clock that is behind loses nothing, because the queue's own clock counts, too. The sender's times do not.
        """
        # The day is moved, not the others: a queue's clock may be at the calendar's last day.
        return self.first <= day and day - AHEAD <= max(self.today, sent_at.date() if sent_at else self.today)
