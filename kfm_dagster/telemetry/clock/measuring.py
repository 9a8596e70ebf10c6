"""Measuring the clock once per run: the kernel, and the Date of a server's answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from kfm_dagster.telemetry.clock.decision import ClockRules, decides
from kfm_dagster.telemetry.clock.kernel import kernel_clock
from kfm_dagster.telemetry.clock.reading import ClockReading
from kfm_dagster.telemetry.clock.server_dates import ask_date

MOST_REQUESTS = 5
"""An answer during which the server's second changes decides nothing: three in ten where answers take 0.3 s, and 0.2 %
of five in a row."""


def measure(rules: ClockRules, *, clock: Callable[[], datetime], endpoint: str | None = None) -> list[ClockReading]:
    """Return the readings of this moment, the kernel's first, in the order in which they are judged.

    `endpoint` is asked again while its answer decides nothing by the rules. Never raises for a network that is away:
    the kernel's reading is left then.
    """
    readings = [kernel_clock(clock())]
    for _ in range(0 if endpoint is None else MOST_REQUESTS):
        if (answer := ask_date(endpoint or "", clock=clock)) is None:
            break
        readings.append(answer)
        if decides(answer, rules):
            break
    return readings
