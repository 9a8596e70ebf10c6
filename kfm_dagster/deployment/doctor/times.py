"""The clock: this machine's against the Date of the queue's answers, by the rule of the pipeline card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime

from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.errors import QueueUnavailableError
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.telemetry.clock.decision import ClockRules, decide, decides
from kfm_dagster.telemetry.clock.measuring import MOST_REQUESTS, measure
from kfm_dagster.telemetry.clock.reading import ClockReading, ClockState
from kfm_dagster.telemetry.clock.server_dates import AnswerDates

_SET = "let a time service keep the clock (chrony, systemd-timesyncd), then: kfm clock --ask"


def check_clock(
    rules: ClockRules, connect: Callable[[AnswerDates], Queue], clock: Callable[[], datetime]
) -> Iterator[Diagnosis]:
    """Ask the queue, once more where that decides nothing, and judge the clock by its answers and the kernel's."""
    dates = AnswerDates(clock=clock)
    readings: tuple[ClockReading, ...] = ()
    for _ in range(MOST_REQUESTS):
        with suppress(QueueUnavailableError):  # a refusal has a Date, too; that the queue refuses is another finding
            connect(dates).described()
        readings += measure(rules, clock=clock, answers=dates)
        if any(decides(one, rules) for one in readings):
            break
    decision = decide(readings, rules, ts_start=clock())
    limit = f"within {rules.max_offset.total_seconds():g} s of true time"
    if decision.state is ClockState.LOCKED:
        yield ok(f"the clock is right: {decision.reason}")
    elif decision.state is ClockState.UNLOCKED:
        yield fault(
            "the clock is wrong: stages will not write by it", observed=decision.reason, expected=limit, next_step=_SET
        )
    else:
        yield warning(
            "nothing tells whether the clock is right", observed=decision.reason, expected=limit, next_step=_SET
        )
