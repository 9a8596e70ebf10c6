"""Measuring the clock once per run: the kernel, what answers told anyway, and a request where that is not enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from kfm_dagster.telemetry.clock.decision import ClockRules, decides
from kfm_dagster.telemetry.clock.kernel import kernel_clock
from kfm_dagster.telemetry.clock.reading import ClockReading
from kfm_dagster.telemetry.clock.server_dates import AnswerDates, ask_date

MOST_REQUESTS = 2
"""An answer that comes as the second changes decides nothing; the next one, a round trip later, does."""


def measure(
    rules: ClockRules,
    *,
    clock: Callable[[], datetime],
    endpoint: str | None = None,
    answers: AnswerDates | None = None,
) -> tuple[ClockReading, ...]:
    """Return the readings of this moment, the kernel's first, in the order in which they are judged.

    `endpoint` is asked only while what servers have told decides nothing by the rules: not at all, once, or twice.
    Never raises for a network that is away: the kernel's reading is left then.
    """
    found = [kernel_clock(clock())]
    taken = None if answers is None else answers.take()
    if taken is not None:
        found.append(taken)
    requests = 0
    while endpoint is not None and requests < MOST_REQUESTS and not any(decides(one, rules) for one in found[1:]):
        requests += 1
        asked = ask_date(endpoint, clock=clock)
        if asked is None:
            break
        found.append(asked)
    return tuple(found)
