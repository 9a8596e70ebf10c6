"""Follow a replay: a progress bar until it ends, and a warning when no daemon works on it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from kfm_dagster.cli.progress_bar import bar_of
from kfm_dagster.recovery.replay.engine import ReplayEngine, Report
from kfm_dagster.recovery.replay.runs import OPEN, ReplayState, outcome_line

POLL_SECONDS = 1.0
IDLE_SECONDS = 30.0
"""Time without a change before the warning: a daemon takes about ten seconds to start a run."""


def follow(
    engine: ReplayEngine,
    replay_run_id: str,
    *,
    console: Console,
    idle_seconds: float = IDLE_SECONDS,
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Report:
    """Advance and follow a replay until it is finished or stopped; return its last report.

    Warns once without progress. Ctrl-C ends the following, not the replay.
    """
    bar = bar_of(console, "units", "{task.fields[waiting]}")
    task = bar.add_task("replaying", total=None, waiting="")
    previous: object = None
    since, warned = now(), False
    try:
        with bar:
            while True:
                engine.advance(replay_run_id)
                report = engine.report(replay_run_id)
                account = report.account
                bar.update(task, total=account.units, completed=account.units - account.open, waiting=_waiting(report))
                if report.ended:
                    return report
                current = (report.run.state, dict(account.outcomes))
                if current != previous:
                    previous, since = current, now()
                elif not warned and now() - since >= idle_seconds:
                    console.print(_nobody_works(report), soft_wrap=True)
                    warned = True
                wait(POLL_SECONDS)
    except KeyboardInterrupt:
        console.print(
            f"the replay goes on without this terminal; kfm replay status {replay_run_id} shows it, "
            f'kfm replay stop {replay_run_id} --reason "..." ends it',
            soft_wrap=True,
        )
        raise


def _waiting(report: Report) -> str:
    if report.run.state is ReplayState.PAUSED:
        return f"paused: {report.run.state_reason}"
    return str(report.hold) if report.hold else outcome_line(report.account.outcomes, among=OPEN)


def _nobody_works(report: Report) -> str:
    if report.run.state is ReplayState.PAUSED:
        return f"the replay is paused ({report.run.state_reason}); kfm replay resume {report.run.replay_run_id} goes on"
    if report.hold is not None:
        return f"nothing is let in: {report.hold}"
    return "nothing moves: no daemon seems to work on this ledger; kfm drain or kfm ui does the work"
