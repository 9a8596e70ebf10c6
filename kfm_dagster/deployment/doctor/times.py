"""The clock: recorded readings, the kernel and the Date of the queue's answers, by the rule of the pipeline card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.deployment.doctor.databases import missing_file
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.errors import KfmError, QueueUnavailableError
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock.decision import ClockRules, decide, decides
from kfm_dagster.telemetry.clock.log import ClockLog
from kfm_dagster.telemetry.clock.measuring import MOST_REQUESTS, measure
from kfm_dagster.telemetry.clock.reading import ClockReading, ClockState
from kfm_dagster.telemetry.clock.server_dates import AnswerDates

_SET = "let a time service keep the clock (chrony, systemd-timesyncd), then: kfm clock --ask"


def check_clock(
    rules: ClockRules,
    connect: Callable[[AnswerDates], Queue],
    clock: Callable[[], datetime],
    *,
    recorded: Callable[[], Sequence[ClockReading]] = tuple,
) -> Iterator[Diagnosis]:
    """Ask the queue, once more where that decides nothing, and judge the clock by all readings, as stages do."""
    dates = AnswerDates(clock=clock)
    readings: tuple[ClockReading, ...] = ()
    for _ in range(MOST_REQUESTS):
        with suppress(QueueUnavailableError):  # a refusal has a Date, too; that the queue refuses is another finding
            connect(dates).described()
        readings += measure(rules, clock=clock, answers=dates)
        if any(decides(one, rules) for one in readings):
            break
    decision = decide([*recorded(), *readings], rules, ts_start=clock())
    limit = f"within {rules.max_offset.total_seconds():g} s of true time"
    if decision.state is ClockState.LOCKED:
        yield ok(f"the clock is right: {decision.reason}")
    elif decision.deciding is not None:
        yield fault(
            "the clock is wrong: stages will not write by it", observed=decision.reason, expected=limit, next_step=_SET
        )
    else:
        yield warning(
            "the clock is not verified: stages will not write by it",
            observed=decision.reason,
            expected=limit,
            next_step=_SET,
        )


def recorded_readings(settings: Settings, since: datetime) -> Sequence[ClockReading]:
    """Return what runs have recorded of this clock; none where the ledger does not answer, which is another finding."""
    if missing_file(settings) is not None:
        return ()
    with suppress(KfmError, SQLAlchemyError), ExitStack() as stack:
        database = Database.open(settings.database_url, read_only=True)
        stack.callback(database.dispose)
        return ClockLog(database).recent(since=since)
    return ()
