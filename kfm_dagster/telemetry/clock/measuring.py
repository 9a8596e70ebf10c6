"""Measuring the clock once per run: the kernel, what answers have told anyway, and at most one request."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from kfm_dagster.telemetry.clock.kernel import kernel_clock
from kfm_dagster.telemetry.clock.reading import ClockReading
from kfm_dagster.telemetry.clock.server_dates import AnswerDates, ask_date


def measure(
    *, clock: Callable[[], datetime], endpoint: str | None = None, answers: AnswerDates | None = None
) -> tuple[ClockReading, ...]:
    """Return the readings of this moment; never raises for a network that is away: the kernel's is left then.

    `endpoint` is asked only where `answers` have told nothing since they were last taken.
    """
    told = None if answers is None else answers.take()
    if told is None and endpoint is not None:
        told = ask_date(endpoint, clock=clock)
    kernel = kernel_clock(clock())
    return (kernel,) if told is None else (kernel, told)
