"""Long ticks: an idle deployment's sensor looks for work several times in one tick.

Dagster's part of a tick takes some 60 ms of CPU, a look at an empty queue or an idle ledger only a few ms. So a long
tick looks as often as several ticks, and costs about as much as one. Does not belong here: what a look does
(`sensors.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import TypeVar

IDLE_TICKS = 6
"""Ticks of a sensor, one after the other without work, until its ticks are long: by default half a minute, and 90 s for
`nodd_due`."""
TICK_SECONDS = 30.0
"""Longest time until a long tick's last look begins. Dagster ends a tick after 60 s, so 30 s are left for a queue that
does not answer: three attempts of 10 s (`notifications/sqs.py`)."""
SHORT = Event()
"""Set if ticks must be short, as in every process but our code server, which clears it until SIGTERM arrives. A look
waits for this event, so that SIGTERM ends its wait."""
SHORT.set()

_Result = TypeVar("_Result")


def look_for_work(
    idle: Counter[str], sensor: str, look: Callable[[float], tuple[_Result, bool]], *, interval_seconds: float
) -> _Result:
    """Look once, or, after IDLE_TICKS idle ticks, until there is work or TICK_SECONDS end.

    `look` gets the seconds to wait first, and returns a result and whether there is work. `idle` counts, by sensor, the
    ticks since the last tick with work. Returns the result of the last look.
    """
    end = time.monotonic() + TICK_SECONDS
    looks = int(TICK_SECONDS // interval_seconds) if idle[sensor] >= IDLE_TICKS else 1
    result, work = look(0)
    for _ in range(looks - 1):
        if work or SHORT.is_set() or time.monotonic() + interval_seconds > end:
            break
        result, work = look(interval_seconds)
    idle[sensor] = 0 if work else idle[sensor] + 1
    return result
